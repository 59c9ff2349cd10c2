"""A program that drives a session by lines on standard input: what it says from the start, and what is asked of it.

These are the lines that the Claude Agent SDK exchanges with the command (PyPI `claude-agent-sdk` 0.2.189), played by hand: what
needs the SDK itself is in `test_sdk.py`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.support.fake_api import FakeAPI, message, text, tool_use

FLAGS = ("--output-format", "stream-json", "--verbose", "--system-prompt", "", "--input-format", "stream-json")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass
class Driver:
    """The other side: sends what it has to say, one prompt after the result of the one before, and answers what it is asked
    (`answers`, by subtype; an exception is told as an error)."""

    program: Program
    answers: Mapping[str, Answer] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    code: int = -1
    err: str = ""

    def run(self, flags: Sequence[str], first: Sequence[Mapping[str, Any]], prompts: Sequence[Any], **environment: str) -> None:
        process = subprocess.Popen(
            self.program.command(*FLAGS, *flags), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=self.program.cwd, env=self.program.environment(**environment),
        )  # fmt: skip
        assert process.stdin and process.stdout and process.stderr

        def say(line: Mapping[str, Any]) -> None:
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()

        def next_prompt() -> None:
            if waiting:
                say({"type": "user", "message": {"role": "user", "content": waiting.pop(0)}, "uuid": f"u{len(waiting)}"})
            else:
                process.stdin.close()

        waiting = list(prompts)
        for line in first:
            say(line)
        next_prompt()
        for said in process.stdout:
            line = json.loads(said)
            self.lines.append(line)
            if line["type"] == "control_request":
                self.asked.append(line["request"])
                say(
                    {
                        "type": "control_response",
                        "response": {"request_id": line["request_id"], **self._answer(line["request"])},
                    }
                )
            elif line["type"] == "result":
                next_prompt()
        self.err = process.stderr.read()
        self.code = process.wait()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return {"subtype": "success", "response": self.answers[request["subtype"]](request)}
        except Exception as error:
            return {"subtype": "error", "error": str(error)}

    def results(self) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["type"] == "result"]

    def of(self, kind: str, subtype: str | None = None) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind and (subtype is None or line.get("subtype") == subtype)]

    def response(self, id: str) -> Mapping[str, Any]:
        return next(line["response"] for line in self.of("control_response") if line["response"]["request_id"] == id)


def initialize(**fields: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": "init", "request": {"subtype": "initialize", **fields}}


def hook(event: str, id: str, matcher: str | None = None, **more: Any) -> dict[str, Any]:
    return {event: [{"matcher": matcher, "hookCallbackIds": [id], **more}]}


def results_sent(api: FakeAPI) -> list[str]:
    """The texts of the tool results of the last request."""
    blocks = [b for m in api.requests[-1].body["messages"] if isinstance(m["content"], list) for b in m["content"]]
    return [json.dumps(b["content"]) for b in blocks if b["type"] == "tool_result"]


def of_hooks(request: Mapping[str, Any]) -> Mapping[str, Any]:
    input = request["input"]
    match input["hook_event_name"]:
        case "UserPromptSubmit":
            return {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "THE-MOON-IS-FULL"}}
        case "PreToolUse" if "forbidden" in input["tool_input"]["command"]:
            own = {"permissionDecision": "deny", "permissionDecisionReason": "NOT-THIS-ONE"}
        case "PreToolUse":
            own = {"permissionDecision": "allow", "updatedInput": {"command": "echo CHANGED-BY-THE-HOOK"}}
        case "PostToolUse":
            return {"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "AND-A-WORD-BESIDE"}}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}}


def test_functions_of_the_program_are_hooks_and_their_answers_take_effect(program: Program) -> None:
    driver = Driver(program, {"hook_callback": of_hooks})
    hooks = (
        hook("UserPromptSubmit", "h0") | hook("PreToolUse", "h1", "Bash") | hook("PostToolUse", "h2", "Bash|Edit", timeout=5)
    )
    calls = [message(tool_use("Bash", {"command": "echo forbidden"})), message(tool_use("Bash", {"command": "touch made"}))]
    with FakeAPI([*calls, message(text("done"))]) as api:
        driver.run(("--include-hook-events",), [initialize(hooks=hooks)], ["go"], **with_api(program, api))
        sent = json.dumps(api.requests[-1].body)
        results = results_sent(api)
    assert driver.code == 0, driver.err
    assert "THE-MOON-IS-FULL" in sent and "AND-A-WORD-BESIDE" in sent
    assert "NOT-THIS-ONE" in results[0] and "CHANGED-BY-THE-HOOK" in results[1]
    assert not (program.cwd / "made").exists()
    assert [(one["callback_id"], one["input"]["hook_event_name"]) for one in driver.asked] == [
        ("h0", "UserPromptSubmit"), ("h1", "PreToolUse"), ("h1", "PreToolUse"), ("h2", "PostToolUse"),
    ]  # fmt: skip
    assert all(one["tool_use_id"] == one["input"].get("tool_use_id") for one in driver.asked)
    assert [line["outcome"] for line in driver.of("system", "hook_response")] == ["success"] * 4
    assert len(driver.of("system", "hook_started")) == 4


@pytest.mark.parametrize(("on_failure", "runs"), [("continue", True), ("block", False)])
def test_a_function_that_fails_blocks_where_it_is_to(program: Program, on_failure: str, runs: bool) -> None:
    driver = Driver(program, {"hook_callback": lambda request: {"hookSpecificOutput": {"permissionDecision": "Deny"}}})
    hooks = hook("PreToolUse", "h0", onFailure=on_failure)
    with FakeAPI([message(tool_use("Bash", {"command": "touch made"})), message(text("done"))]) as api:
        flags = ("--allowedTools", "Bash")
        driver.run(flags, [initialize(hooks=hooks)], ["go"], **with_api(program, api))
    assert driver.response("init")["response"]["hook_on_failure_supported"] is True
    assert (program.cwd / "made").exists() is runs, driver.err


class McpServer:
    """An MCP server in the program, as far as a client needs it."""

    def __call__(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = request["message"]
        match asked["method"]:
            case "initialize":
                result = {
                    "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "calc", "version": "7"},
                }  # fmt: skip
            case "tools/list":
                numbers = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
                result = {"tools": [{"name": "double", "description": "Doubles", "inputSchema": numbers}]}
            case "tools/call":
                result = {"content": [{"type": "text", "text": f"TWICE-IS-{2 * asked['params']['arguments']['a']}"}]}
            case method if method.startswith("notifications/"):
                return {"mcp_response": {"jsonrpc": "2.0", "result": {}}}
            case method:
                error = {"code": -32601, "message": f"no {method} here"}
                return {"mcp_response": {"jsonrpc": "2.0", "id": asked["id"], "error": error}}
        return {"mcp_response": {"jsonrpc": "2.0", "id": asked["id"], "result": result}}


def test_a_server_in_the_program_gives_tools(program: Program) -> None:
    driver = Driver(program, {"mcp_message": McpServer()})
    config = json.dumps({"mcpServers": {"calc": {"type": "sdk", "name": "calc"}}})
    flags = ("--mcp-config", config, "--allowedTools", "mcp__calc__double", "--tools", "")
    status = {"type": "control_request", "request_id": "status", "request": {"subtype": "mcp_status"}}
    with FakeAPI([message(tool_use("mcp__calc__double", {"a": 21})), message(text("done"))]) as api:
        driver.run(flags, [initialize(), status], ["go"], **with_api(program, api))
        assert "TWICE-IS-42" in results_sent(api)[0]
        assert {tool["name"] for tool in api.requests[-1].body["tools"]} == {"mcp__calc__double"}
    (server,) = driver.response("status")["response"]["mcpServers"]
    assert (server["status"], server["config"]) == ("connected", {"type": "sdk", "name": "calc"})
    assert server["serverInfo"] == {"name": "calc", "version": "7"} and server["tools"][0]["name"] == "double"
    (init,) = driver.of("system", "init")
    assert init["mcp_servers"] == [{"name": "calc", "status": "connected"}] and init["tools"] == ["mcp__calc__double"]


def test_a_server_of_a_program_that_is_not_there_is_named(program: Program) -> None:
    config = json.dumps({"mcpServers": {"calc": {"type": "sdk", "name": "calc"}}})
    with FakeAPI([message(text("done"))]) as api:
        ran = program("run", "-p", "--no-coordinator", "--mcp-config", config, "hello", **with_api(program, api))
    assert ran.code == 0 and "'calc' is not there" in ran.err and "none speaks on standard input" in ran.err


def test_consent_may_change_the_call_and_the_rules(program: Program) -> None:
    def consent(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request["input"]["command"] == "touch first":
            return {"behavior": "allow", "updatedInput": {"command": "touch other"}}
        if request["input"]["command"] == "touch rules":
            rules = [{"toolName": "Bash", "ruleContent": "touch again*"}]
            fence = [{"toolName": "Bash", "ruleContent": "touch never*"}]
            updates = [
                {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"},
                {"type": "addRules", "rules": fence, "behavior": "deny", "destination": "userSettings"},
            ]
            return {"behavior": "allow", "updatedInput": request["input"], "updatedPermissions": updates}
        return {"behavior": "deny", "message": "LEAVE-IT"}

    driver = Driver(program, {"can_use_tool": consent})
    names = ("first", "rules", "again", "never", "unknown")
    calls = [message(tool_use("Bash", {"command": f"touch {name}"})) for name in names]
    with FakeAPI([*calls, message(text("done"))]) as api:
        driver.run(("--permission-prompt-tool", "stdio"), [initialize()], ["go"], **with_api(program, api))
        results = results_sent(api)
    assert {path.name for path in program.cwd.iterdir()} == {"other", "rules", "again"}
    assert [one["input"]["command"] for one in driver.asked] == ["touch first", "touch rules", "touch unknown"]
    assert "LEAVE-IT" in results[-1] and "denied" in results[-2]
    (suggested,) = driver.asked[0]["permission_suggestions"]
    assert suggested["type"] == "addRules" and suggested["destination"] == "session"
    assert driver.asked[0]["title"] and driver.asked[0]["display_name"] == "Bash"


def test_kinds_of_worker_and_skills_come_with_initialize(program: Program) -> None:
    for name in ("brew", "bake"):
        (skill := program.home / ".claude" / "skills" / name).mkdir(parents=True)
        (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: How to {name}\n---\nUse HOT-WATER for $ARGUMENTS.\n")
    agents = {"Tea_Taster": {"description": "Tastes", "prompt": "TASTE-SLOWLY", "tools": ["Read"], "maxTurns": 3}}
    driver = Driver(program)
    script = [
        message(tool_use("Agent", {"description": "taste", "prompt": "this one", "subagent_type": "Tea_Taster"})),
        message(tool_use("Read", {"file_path": "leaf"})), message(text("BITTER")), message(text("it is bitter")),
        message(text("brewed")),
    ]  # fmt: skip
    (program.cwd / "leaf").write_text("green")
    with FakeAPI(script) as api:
        driver.run((), [initialize(agents=agents, skills=["brew"])], ["taste", "/brew a cup"], **with_api(program, api))
        asked = [json.dumps(request.body) for request in api.requests]
    assert [result["result"] for result in driver.results()] == ["it is bitter", "brewed"], driver.err
    assert "TASTE-SLOWLY" in asked[1] and "BITTER" in asked[3]
    assert "HOT-WATER for a cup" in asked[4]
    assert "How to brew" in asked[0] and "How to bake" not in asked[0]
    about = driver.response("init")["response"]
    assert "Tea_Taster" in [agent["name"] for agent in about["agents"]]
    assert {command["name"] for command in about["commands"]} == {"brew", "bake"}
    # Of a worker its calls and their results are told, with the call that began it; what it says is not wanted.
    call = driver.of("assistant")[0]["message"]["content"][0]["id"]
    theirs = [
        line["message"]["content"][0]["type"]
        for line in driver.lines
        if line.get("parent_tool_use_id") == call and "message" in line
    ]
    assert theirs == ["tool_use", "tool_result"]
    begun = driver.of("system", "task_started")[0]
    assert begun["tool_use_id"] == call and begun["task_type"] == "local_agent"


def test_every_piece_of_an_answer_comes_as_the_api_says_it(program: Program) -> None:
    driver = Driver(program)
    script = [message(text("first"), tool_use("TodoWrite", {"todos": []})), message(text("second"))]
    with FakeAPI(script) as api:
        driver.run(("--include-partial-messages",), [initialize()], ["go"], **with_api(program, api))
    events = [line["event"] for line in driver.of("stream_event")]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    end = ["message_delta", "message_stop"]
    assert kinds == ["message_start", *block, *block, *end, "message_start", *block, *end]
    said = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    assert said == "firstsecond"
    inputs = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("type") == "input_json_delta"]
    assert [json.loads(one) for one in inputs] == [{"todos": []}]
    assert [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"] == ["tool_use", "end_turn"]
    assert all(line["uuid"] and line["session_id"] for line in driver.lines if not line["type"].startswith("control_"))
    assert driver.results()[0]["stop_reason"] == "end_turn"


def test_whatever_a_prompt_is_it_has_its_result_and_its_state(program: Program) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    prompts: list[Any] = [
        [{"type": "text", "text": "look"}, image], [{"type": "audio", "data": "…"}], "", "/nonsense", "second", "/cost",
    ]  # fmt: skip
    driver = Driver(program)
    with FakeAPI([message(text("a pixel")), message(text("two"))]) as api:
        environment = with_api(program, api) | {"CLAUDE_CODE_SDK_READS_SESSION_STATE": "1"}
        driver.run((), [initialize()], prompts, **environment)
        assert "image" in [block["type"] for block in api.requests[0].body["messages"][-1]["content"]]
    told = [(result["is_error"], result["user_message_uuid"]) for result in driver.results()]
    assert told == [(False, "u5"), (True, "u4"), (True, "u3"), (True, "u2"), (False, "u1"), (False, "u0")], driver.err
    assert "audio" in driver.results()[1]["errors"][0] and "nonsense" in driver.results()[3]["errors"][0]
    states = driver.of("system", "session_state_changed")
    assert {line["sdk_host_only"] for line in states} == {True}
    assert [line["state"] for line in states][:4] == ["running", "idle", "running", "idle"]
    assert len(driver.of("system", "init")) == len(prompts)


@pytest.mark.parametrize("flag", ["--betas=x", "--thinking=disabled", "--setting-sources=enterprise", "--permission-mode=auto"])
def test_what_cannot_be_done_is_refused_by_its_name(program: Program, flag: str) -> None:
    ran = program(*FLAGS, flag)
    assert ran.code == ExitCode.USAGE
    assert flag.partition("=")[0] in ran.err and len(ran.err.splitlines()) == 1
    assert [line["type"] for line in ran.lines] == ["result"]


@pytest.mark.parametrize(
    ("named", "wanted"),
    [("WhenItRains", {"hooks": hook("WhenItRains", "h")}), ("prompt", {"agents": {"a": {}}}), ("hooks", {"hooks": "none"})],
)
def test_what_initialize_asks_for_in_vain_is_refused(program: Program, named: str, wanted: dict[str, Any]) -> None:
    """Hooks that would never run are a fence gone: the program is told before anything runs."""
    driver = Driver(program)
    with FakeAPI([message(text("hi"))]) as api:
        driver.run((), [initialize(**wanted)], ["go"], **with_api(program, api))
        assert not api.requests
    (result,) = driver.results()
    assert driver.code == ExitCode.USAGE and result["terminal_reason"] == "not_started"
    assert named in result["errors"][0] and named in driver.err and "Traceback" not in driver.err
