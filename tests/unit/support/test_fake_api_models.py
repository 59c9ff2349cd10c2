"""The other routes, the models, the named scenarios, and the fake as a program of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest

from tests.support.fake_api import MODELS, FakeAPI, scenario, tool_use
from tests.support.fake_api.scenarios import SINGLE, TOOL
from tests.unit.support.helpers import MODEL, READ, assistant, replay, result, stream, user, with_client

AGENT = {"name": "Agent", "description": "Start a worker", "input_schema": {"type": "object", "properties": {}}}


def test_a_model_tells_its_sizes_and_capabilities() -> None:
    with FakeAPI() as api:
        info = with_client(api, lambda sdk: sdk.models.retrieve(MODEL))
        beta = with_client(api, lambda sdk: sdk.beta.models.retrieve("claude-haiku-4-5", betas=["compact-2026-09-04"]))
    assert (info.max_input_tokens, info.max_tokens, info.line, info.lifecycle) == (1_000_000, 128_000, "opus", "active")
    assert info.capabilities.thinking.types.adaptive.supported
    assert not info.capabilities.thinking.types.disabled.supported
    assert (beta.max_input_tokens, beta.max_tokens) == (200_000, 64_000)
    assert not beta.capabilities.compaction.supported


def test_the_list_of_models_is_paged_and_complete() -> None:
    async def work(sdk: anthropic.AsyncAnthropic) -> list[str]:
        return [m.id async for m in sdk.models.list(limit=7)]

    with FakeAPI() as api:
        assert with_client(api, work) == list(MODELS)
        assert api.requests == [] and len(api.calls) == 3


def test_an_unknown_model_is_not_found() -> None:
    with FakeAPI() as api, pytest.raises(anthropic.NotFoundError):
        with_client(api, lambda sdk: sdk.models.retrieve("claude-none"))


def test_a_test_may_add_models_and_shrink_windows() -> None:
    tiny = replace(MODELS[MODEL], id="tiny", window=50)
    with FakeAPI("ok", models={"tiny": tiny}, windows={MODEL: 60}) as api:
        assert stream(api, model="tiny").model == "tiny"
        for model, window in (("tiny", 50), (MODEL, 60)):
            with pytest.raises(anthropic.BadRequestError, match=f"> {window} maximum"):
                stream(api, [user("x" * 400)], model=model)


def test_a_compatible_server_lacks_routes() -> None:
    with FakeAPI(without=("models", "count_tokens")) as api:
        for work in (lambda s: s.models.list(), lambda s: s.messages.count_tokens(model=MODEL, messages=[user("x")])):
            with pytest.raises(anthropic.NotFoundError):
                with_client(api, work)


def test_counting_refuses_what_it_cannot_count() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    search = {"type": "web_search_20260318", "name": "web_search"}
    with FakeAPI(allow_violations=("cannot be counted",)) as api:
        for fields in ({"messages": [user([picture])]}, {"messages": [user("x")], "tools": [search]}):
            with pytest.raises(anthropic.BadRequestError, match="cannot be counted"):
                with_client(api, lambda sdk, f=fields: sdk.messages.count_tokens(model=MODEL, **f))


def test_a_base_url_may_have_a_path() -> None:
    with FakeAPI("ok") as api:
        api.base_url += "/prefix/"
        assert stream(api).content[0].text == "ok"
    assert api.requests[0].path == "/prefix/v1/messages"


@pytest.mark.parametrize("name", sorted({*SINGLE, *TOOL} - {"stall", "stall_midway", "stall_pings"}))
def test_every_named_scenario_ends(name: str) -> None:
    fields: dict[str, Any] = {"tools": [READ]}
    with FakeAPI(scenario(name)) as api:
        with suppress(anthropic.APIError, httpx2.HTTPError, ValueError, AssertionError):
            stream(api, **fields)
        assert api.requests[0].kind


def test_an_unknown_scenario_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="fanout:N:TURNS"):
        scenario("nothing")


# ------------------------------------------------------------------ fan-out


def notification(task: str) -> str:
    return f"<task-notification>\n<task-id>{task}</task-id>\n<status>completed</status>\n</task-notification>"


def worker(api: Any, prompt: str) -> tuple[str, int]:
    """Drive a worker to its end: its report and the number of reads."""
    messages, reads = [user(prompt)], 0
    while True:
        answer = stream(api, messages, tools=[READ])
        calls = [b for b in answer.content if b.type == "tool_use"]
        if not calls:
            return answer.content[0].text, reads
        assert all(c.input == {"file_path": "README.md"} for c in calls)
        reads += len(calls)
        messages += [replay(answer), user([result(c.id, "text of the file") for c in calls])]


def drive(api: Any) -> list[str]:
    """A whole fan-out of 3 workers, by hand; the coordinator's closing texts in order."""
    first = stream(api, tools=[AGENT])
    calls = [b for b in first.content if b.type == "tool_use"]
    assert [c.input["prompt"] for c in calls] == ["worker 0", "worker 1", "worker 2"]
    started = user([result(c.id, json.dumps({"status": "async_launched"})) for c in calls])
    messages = [user("hi"), replay(first), started]
    said = []
    for task in (None, "a1", "a2", "a2", "a3"):
        if task:
            messages = [*messages, assistant(said[-1]), user(notification(task))]
        said.append(stream(api, messages, tools=[AGENT]).content[0].text)
    assert [worker(api, c.input["prompt"])[1] for c in calls] == [4, 4, 4]
    return said


def test_the_fan_out_waits_for_every_worker_once() -> None:
    with FakeAPI(scenario("fanout:3:2"), watch=("blocks",)) as api:
        assert drive(api) == ["waiting"] * 4 + ["All 3 workers have reported."]
        assert api.prefix_breaks == []


@contextmanager
def program(*arguments: str) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """The fake as a program; gives something with its `base_url`, and the process."""
    command = [sys.executable, "-m", "tests.support.fake_api", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield type("Running", (), {"base_url": process.stdout.readline().strip()}), process
        finally:
            process.kill()


def test_it_runs_as_a_program_and_says_what_it_saw() -> None:
    with program("--scenario", "fanout:3:2") as (api, process):
        assert drive(api)[-1] == "All 3 workers have reported."
        with urllib.request.urlopen(api.base_url + "/__fake__/stats") as answer:
            stats = json.load(answer)
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=10)
    assert process.returncode == 0, complaints
    assert stats["requests"] == 1 + 5 + 3 * 3 and stats["violations"] == []


def test_as_a_program_it_fails_after_a_violation() -> None:
    with program() as (api, process):
        with pytest.raises(anthropic.BadRequestError):
            stream(api, [assistant("hi")])
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=10)
    assert process.returncode == 1 and "first message must use the user role" in complaints


def test_two_fakes_never_give_the_same_tool_id() -> None:
    ids = set()
    for _ in range(2):
        with FakeAPI(tool_use("Read")) as api:
            ids |= {stream(api).content[0].id for _ in range(2)}
    assert len(ids) == 4
