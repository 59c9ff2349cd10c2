"""`coordinator doctor --endpoint`: what an endpoint can do, found out with three small calls."""

from __future__ import annotations

from typing import Any

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program, Ran
from tests.support.fake_api import FakeAPI, Model, http_error, message, thinking, tool_use
from tests.support.fake_api.request import Request


def answers(request: Request) -> Any:
    return message(thinking("hm"), tool_use("report", {"word": "ready"})) if request.tool_names else "ok"


def plainly(request: Request) -> Any:
    return message(tool_use("report", {"word": "ready"})) if request.tool_names else "ok"


def examine(program: Program, api: FakeAPI, *more: str) -> Ran:
    return program("doctor", "--endpoint", *more, ANTHROPIC_BASE_URL=f"{api.base_url}/v1/", ANTHROPIC_API_KEY="sk-0123456789ab")


def test_three_small_calls_say_what_the_vendors_own_can_do(program: Program) -> None:
    with FakeAPI(answers) as api:
        ran = examine(program, api, "--json", "--model", "opus")
    assert ran.code == ExitCode.DONE and ran.err == ""
    found = {finding["name"]: (finding["state"], finding["text"]) for finding in ran.json}
    assert found["address"] == ("ok", api.base_url)
    assert "claude-opus-5-5" in found["window"][1] and found["window"][1].startswith("1,000,000 tokens")
    assert found["tools"] == ("ok", "the model calls a tool")
    assert found["vendor features"] == ("ok", "it takes thinking, effort, cache marks, context management")
    assert len(api.calls) == 3 and not {"thinking", "cache_control"} & api.requests[0].body.keys()


def test_a_plain_server_is_told_in_words_and_can_be_used(program: Program) -> None:
    model = Model(id="local", line="local", window=8_192, cap=4_096)
    with FakeAPI(plainly, plain=True, models={"local": model}) as api:
        ran = examine(program, api, "--model", "local")
    assert ran.code == ExitCode.DONE, ran.err
    assert "8,192 tokens" in ran.out and "the model calls a tool" in ran.out
    assert "it does not take thinking: thinking: Extra inputs are not permitted. Runs send it plain requests" in " ".join(
        ran.out.split()
    )


def test_what_makes_it_useless_is_a_problem_with_its_code(program: Program) -> None:
    with FakeAPI(answers, expected_key="other", allow_violations=True) as api:
        ran = examine(program, api, "--json")
    assert ran.code == ExitCode.NOT_AUTHENTICATED and ran.json[-1]["state"] == "problem"
    with FakeAPI(http_error(500, "api_error", "no model is loaded"), without=["models"]) as api:
        ran = examine(program, api, "--json")
    assert ran.code == ExitCode.FAILED and ran.json[-1] == {
        "name": "messages",
        "state": "problem",
        "text": "no model is loaded",
    }
    assert [finding["state"] for finding in ran.json if finding["name"] == "models"] == ["note"]


def test_what_cannot_be_asked_is_refused_before_any_call(program: Program) -> None:
    assert program("doctor", "--model", "opus").code == ExitCode.USAGE
    assert program("doctor", "--endpoint").code == ExitCode.NOT_AUTHENTICATED
    ran = program("doctor", "--endpoint", ANTHROPIC_API_KEY="sk-0123456789ab", ALL_PROXY="socks://127.0.0.1:9")
    assert ran.code == ExitCode.USAGE and len(ran.err.splitlines()) == 1 and "ALL_PROXY" in ran.err
