"""The Claude Agent SDK (PyPI `claude-agent-sdk`) drives the command unchanged, by `cli_path`.

The SDK is not among what the tests install (400 MB, with a program of its own in it). Where it is missing, what needs it is
skipped; `pip install claude-agent-sdk==0.2.189` into the tests' environment enables it. What does not need the SDK speaks
the same lines by hand, and always runs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.support.fake_api import FakeAPI, message, text, tool_use

needs_sdk = pytest.mark.skipif(
    importlib.util.find_spec("claude_agent_sdk") is None,
    reason="the Claude Agent SDK is not installed: `pip install claude-agent-sdk==0.2.189` here enables this test",
)
FLAGS = ("--output-format", "stream-json", "--verbose", "--system-prompt", "", "--input-format", "stream-json")


def said(words: str) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": words}, "parent_tool_use_id": None, "session_id": "default"}


def asked(id: str, subtype: str, **fields: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}}


def as_input(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_each_prompt_has_its_result_and_each_request_its_answer(program: Program) -> None:
    stdin = as_input(
        asked("1", "initialize", hooks=None), asked("2", "set_permission_mode", mode="plan"), asked("3", "mcp_status"),
        asked("4", "set_permission_mode", mode="sometimes"), asked("5", "stop_task", task_id="nothing"),
        asked("6", "make_tea"), asked("7", "initialize", agents={"a": {}}), asked("8", "interrupt"),
        said("first"), said("second"),
    )  # fmt: skip
    with FakeAPI([message(text("one")), message(text("two"))]) as api:
        ran = program(*FLAGS, stdin=stdin + "no JSON\n", **with_api(program, api))
    assert ran.code == 0, ran.err
    lines = ran.lines
    assert [line["result"] for line in lines if line["type"] == "result"] == ["one", "two"]
    assert all(line.get("uuid") for line in lines if line["type"] != "control_response")
    answers = {line["response"]["request_id"]: line["response"] for line in lines if line["type"] == "control_response"}
    assert {id: answer["subtype"] for id, answer in answers.items()} == {
        "1": "success", "2": "success", "3": "success", "4": "error", "5": "error", "6": "error", "7": "error", "8": "success",
    }  # fmt: skip
    assert "make_tea" in answers["6"]["error"] and "agent definitions" in answers["7"]["error"]
    assert "no JSON" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("flag", ["--betas=x", "--task-budget=20000", "--resume-session-at=x"])
def test_what_cannot_be_done_is_refused_by_its_name(program: Program, flag: str) -> None:
    ran = program(*FLAGS, flag)
    assert ran.code == ExitCode.USAGE
    assert flag.partition("=")[0] in ran.err and len(ran.err.splitlines()) == 1
    assert [line["type"] for line in ran.lines] == ["result"]


def test_a_call_that_nobody_can_be_asked_about_is_denied(program: Program) -> None:
    with FakeAPI([message(tool_use("Bash", {"command": "touch made"})), message(text("as you wish"))]) as api:
        ran = program(*FLAGS, "--no-coordinator", stdin=as_input(said("go")), **with_api(program, api))
    assert ran.code == 0, ran.err
    (result,) = [line for line in ran.lines if line["type"] == "result"]
    assert [denial["tool_name"] for denial in result["permission_denials"]] == ["Bash"]


def options(program: Program, api: FakeAPI, **more: Any) -> Any:
    from claude_agent_sdk import ClaudeAgentOptions

    return ClaudeAgentOptions(
        cli_path=Path(sys.executable).with_name("coordinator"), env=program.environment(**with_api(program, api)), cwd=str(program.cwd),
        extra_args={"no-coordinator": None}, **more,
    )  # fmt: skip


@needs_sdk
def test_the_sdks_query_gets_its_answer(program: Program) -> None:
    from claude_agent_sdk import ResultMessage, query

    async def run(api: FakeAPI) -> list[Any]:
        return [message async for message in query(prompt="hello", options=options(program, api))]

    with FakeAPI(message(text("hi there"))) as api:
        got = asyncio.run(run(api))
    results = [message for message in got if isinstance(message, ResultMessage)]
    assert [result.result for result in results] == ["hi there"]
    assert results[0].model_usage


@needs_sdk
def test_the_sdks_client_consents_and_refuses_and_goes_on(program: Program) -> None:
    from claude_agent_sdk import ClaudeSDKClient, PermissionResultAllow, PermissionResultDeny, ResultMessage

    calls: list[str] = []

    async def may(tool: str, input: dict[str, Any], _context: Any) -> Any:
        calls.append(input["command"])
        return PermissionResultAllow() if input["command"] == "touch yes" else PermissionResultDeny(message="not this one")

    async def run(api: FakeAPI) -> list[Any]:
        got = []
        async with ClaudeSDKClient(options(program, api, can_use_tool=may)) as client:
            for prompt in ("first", "second"):
                await client.query(prompt)
                got += [message async for message in client.receive_response()]
            await client.set_permission_mode("plan")
            await client.set_model("haiku")
            assert await client.get_mcp_status() == {"mcpServers": []}
            await client.interrupt()
        return got

    script = [
        message(tool_use("Bash", {"command": "touch yes"})), message(text("one")),
        message(tool_use("Bash", {"command": "touch no"})), message(text("two")),
    ]  # fmt: skip
    with FakeAPI(script) as api:
        got = asyncio.run(run(api))
    assert [message.result for message in got if isinstance(message, ResultMessage)] == ["one", "two"]
    assert calls == ["touch yes", "touch no"]
    assert (program.cwd / "yes").exists() and not (program.cwd / "no").exists()
