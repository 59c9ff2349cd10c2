"""Which model a session uses: the flag, else the environment, else settings files that count, else our default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.harness import Bench
from tests.integration.scripts import coordinator, fleet, spawn
from tests.support.fake_api import FakeAPI
from worker_agent.config import DEFAULT_MODEL, Settings
from worker_agent.structs import replace
from worker_agent.tools.trust import EVERYTHING, NOTHING

OPUS, FABLE, HAIKU, SONNET = "claude-opus-5-5", "claude-fable-5-2", "claude-haiku-5-5", "claude-sonnet-5-5"


def put(folder: Path, model: str) -> None:
    (folder / ".claude").mkdir(parents=True, exist_ok=True)
    (folder / ".claude" / "settings.json").write_bytes(orjson.dumps({"model": model}))


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({"model": "opus"}, {"ANTHROPIC_MODEL": HAIKU}, OPUS),
        ({"model": "inherit"}, {"ANTHROPIC_MODEL": "haiku"}, HAIKU),
        ({}, {"COORDINATOR_MODEL": SONNET, "ANTHROPIC_MODEL": "haiku"}, SONNET),
        ({"trust": EVERYTHING}, {}, FABLE),  # the project's
        ({"trust": NOTHING}, {}, HAIKU),  # the person's own
    ],
)
def test_the_nearest_word_counts(
    flags: dict[str, Any], environ: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    bench = Bench(tmp_path)
    put(tmp_path / "person", "haiku")
    put(bench.work, "fable")
    config = replace(Settings.from_env(environ), home=bench.home)
    with FakeAPI("hello") as api:
        outcome = bench.run(api, config=config, **flags)
    assert [request.model for request in api.requests] == [expected]
    assert outcome.result is not None and list(outcome.result["model_usage"]) == [expected]


def test_a_worker_that_inherits_has_the_model_of_the_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    put(tmp_path / "person", "opus")
    bench = Bench(tmp_path)
    with FakeAPI(fleet(coordinator(spawn("one", model="inherit"), spawn("two", model="haiku")))) as api:
        bench.run(api)
    of_workers = sorted(request.model for request in api.requests if "Agent" not in request.tool_names)
    assert of_workers == [HAIKU, OPUS] and DEFAULT_MODEL not in {request.model for request in api.requests}
