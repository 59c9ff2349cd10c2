"""`memory.extract`: after the end of a run notes are written in the background, and the run's end waits for nobody."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.support.fake_api import FakeAPI, Gate, Request, message, text

NOTES = json.dumps({"notes": [{"title": "Deploys happen on Tuesdays", "text": "Only then is the gate open."}]})


def with_api(api: FakeAPI) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": api.base_url, "ANTHROPIC_API_KEY": "sk-test-0123456789abcdef"}


def until_there(path: Path) -> None:
    end = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} is not there"
        time.sleep(0.05)


def test_a_run_ends_while_its_notes_are_still_written(program: Program) -> None:
    gate = Gate()

    def script(request: Request) -> Any:
        return message(text(gate, NOTES)) if "notes of a project" in request.system_text else message("done")

    (program.home / "data").mkdir(parents=True)
    (program.home / "data/config.toml").write_text("memory.extract = true\nchat.suggest = true\n")
    with FakeAPI(script) as api:
        ran = program("run", "when do we deploy?", "--output-format", "json", **with_api(api))
        api.wait_for_requests(2)
        id = ran.json["session_id"]
        assert (ran.code, ran.json["result"], ran.err) == (0, "done", ""), ran.err
        assert not (program.cwd / ".coordinator").exists()
        gate.open()
        note = program.cwd / ".coordinator/memory/deploys-happen-on-tuesdays.md"
        until_there(note)
        by_hand = program("sessions", "remember", id, **with_api(api))
        assert (by_hand.code, by_hand.out, by_hand.err) == (0, "", "nothing was said since the last look\n")
        assert len(api.requests) == 2
        spent = program.here("cost", "--by", "model", "--json", "--session", id).json
    assert sum(row["calls"] for row in spent) == 2 and (program.home / f"data/logs/{id}.log").read_text() == ""


def test_what_cannot_be_remembered_is_one_line(program: Program) -> None:
    with FakeAPI(lambda request: message("done")) as api:
        planned = program("run", "goal", "--plan-only", "--output-format", "json", **with_api(api)).json["session_id"]
        ran = program("sessions", "remember", planned, **with_api(api))
        unknown = program("sessions", "remember", "nobody", **with_api(api))
        no_key = program("sessions", "remember", planned)
        assert len(api.requests) == 1
    assert (ran.code, ran.out) == (ExitCode.USAGE, "") and ran.err.startswith("coordinator: the session was only to plan")
    assert unknown.code == ExitCode.NOT_FOUND and no_key.code == ExitCode.NOT_AUTHENTICATED
    assert all(len(one.err.splitlines()) == 1 for one in (ran, unknown, no_key))
