"""Hooks as scripts written for Claude Code meet them: whole runs of the real command, scripts that read JSON on stdin."""

from __future__ import annotations

import json
import os
import pty
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program, Ran
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, Reply, Request, http_error, message, tool_use

EVENTS = (
    "PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch", "UserPromptSubmit", "SessionStart", "SessionEnd", "Stop",
    "SubagentStart", "SubagentStop", "TaskCreated", "TaskCompleted", "PreCompact", "PostCompact", "Notification",
)  # fmt: skip
# In the style of public logging hooks: reads stdin, appends to a file below the project.
LOGGER = """#!/usr/bin/env python3
import json, os, sys
data = json.load(sys.stdin)
path = os.path.join(os.environ["CLAUDE_PROJECT_DIR"], "logs")
os.makedirs(path, exist_ok=True)
with open(os.path.join(path, data["hook_event_name"] + ".jsonl"), "a") as f:
    f.write(json.dumps(data) + "\\n")
sys.exit(0)
"""
# In the style of the validators that people copy from the documentation.
VALIDATOR = """#!/usr/bin/env python3
import json, re, sys
RULES = [(r"^grep\\b(?!.*\\|)", "Use 'rg' (ripgrep) instead of 'grep'"), (r"\\brm\\s+-rf\\b", "no rm -rf")]
try:
    input_data = json.load(sys.stdin)
except json.JSONDecodeError as e:
    print(f"Error: Invalid JSON input: {e}", file=sys.stderr)
    sys.exit(1)
if input_data.get("tool_name", "") != "Bash":
    sys.exit(0)
command = input_data.get("tool_input", {}).get("command", "")
issues = [message for pattern, message in RULES if re.search(pattern, command)]
if issues:
    for message in issues:
        print(f"• {message}", file=sys.stderr)
    sys.exit(2)
"""
# In the style of those that keep files from being written.
PROTECTOR = """import json, sys
data = json.load(sys.stdin)
path = data.get("tool_input", {}).get("file_path", "")
if not path.startswith("/"):
    sys.exit("paths are absolute before hooks see them")
if any(p in path for p in (".env", "package-lock.json", ".git/")):
    print(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
        "permissionDecisionReason": f"{path} is protected"}}))
"""


def script(program: Program, name: str, text: str) -> str:
    """A hook below `.claude/hooks`, as its command in a settings file."""
    path = program.cwd / ".claude/hooks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    start = "" if text.startswith("#!") else "python3 "
    return f'{start}"$CLAUDE_PROJECT_DIR"/.claude/hooks/{name}'


def handler(command: str, matcher: str | None = None, **fields: Any) -> dict[str, Any]:
    group: dict[str, Any] = {"hooks": [{"type": "command", "command": command, **fields}]}
    return group if matcher is None else {"matcher": matcher, **group}


def configure(program: Program, hooks: Mapping[str, Any], **more: Any) -> None:
    """The project's settings file, trusted."""
    (program.cwd / ".claude").mkdir(exist_ok=True)
    (program.cwd / ".claude/settings.json").write_text(json.dumps({"hooks": hooks, **more}))
    assert program.here("trust").code == 0


def run(program: Program, api: FakeAPI, *flags: str, prompt: str = "goal", **environment: str) -> Ran:
    arguments = ("run", prompt, "--permission-mode", "acceptEdits", "--output-format", "json", *flags)
    return program.here(*arguments, **with_api(program, api), **environment)


def single(program: Program, *answers: Any, flags: tuple[str, ...] = (), **environment: str) -> tuple[Ran, list[Request]]:
    with FakeAPI(by_turn(*answers)) as api:
        return run(program, api, "--no-coordinator", *flags, **environment), api.requests


def bash(command: str, id: str = "t0") -> Any:
    return tool_use("Bash", {"command": command}, id=id)


def result_of(program: Program, ran: Ran) -> tuple[str, str]:
    """Status and result of the one task of a run."""
    (task,) = ran.json["tasks"]
    shown = program.here("tasks", "show", task["id"], "--json").json
    return shown["status"], shown["result"]


def logged(program: Program, event: str) -> list[dict[str, Any]]:
    path = program.cwd / "logs" / f"{event}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ── all events in one run ────────────────────────────────────────────────────────────────────────────────────────────


def test_every_event_reaches_a_script_with_the_fields_it_expects(program: Program) -> None:
    command = script(program, "log.py", LOGGER)
    configure(program, {event: [handler(command, "*")] for event in EVENTS})
    worker = by_turn(
        message(bash("echo hi"), bash("exit 3", "t1"), tool_use("Write", {"file_path": "new", "content": "x"}, id="t2")),
        "report",
    )
    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        ran = run(program, api)
    assert ran.code == 0, ran.err
    for event in set(EVENTS) - {"PreCompact", "PostCompact"}:
        assert logged(program, event), event
    (task,) = ran.json["tasks"]
    common = {"session_id": ran.json["session_id"], "cwd": str(program.cwd), "permission_mode": "acceptEdits"}
    for event in EVENTS:
        for said in logged(program, event):
            assert {key: said[key] for key in common} == common and Path(said["transcript_path"]).is_absolute(), event
            assert ("agent_id" in said) is (event in ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch", "SubagentStart", "SubagentStop",
                "TaskCompleted", "Notification") and said.get("tool_name", said.get("tool_calls", [{"tool_name": None}])[0]["tool_name"]) != "Agent"), event  # fmt: skip
    by_tool = {(said["tool_name"], said["tool_use_id"]): said for said in logged(program, "PreToolUse")}
    assert by_tool["Bash", "t0"]["tool_input"] == {"command": "echo hi"} and by_tool["Bash", "t0"]["agent_type"] == "worker"
    assert by_tool["Write", "t2"]["tool_input"] == {"file_path": str(program.cwd / "new"), "content": "x"}
    after = {said["tool_use_id"]: said for said in logged(program, "PostToolUse")}
    assert after["t0"]["tool_response"]["stdout"] == "hi\n" and isinstance(after["t0"]["duration_ms"], int)
    (failed,) = logged(program, "PostToolUseFailure")
    assert failed["tool_use_id"] == "t1" and "Exit code 3" in failed["error"]
    batch = next(said["tool_calls"] for said in logged(program, "PostToolBatch") if len(said["tool_calls"]) == 3)
    assert [(call["tool_use_id"], call["tool_name"]) for call in batch] == [("t0", "Bash"), ("t1", "Bash"), ("t2", "Write")]
    assert "hi" in str(batch[0]["tool_response"]) and batch[2]["tool_input"]["file_path"] == str(program.cwd / "new")
    assert logged(program, "UserPromptSubmit")[0]["prompt"] == "goal"
    assert [said["source"] for said in logged(program, "SessionStart")] == ["startup"]
    assert logged(program, "Stop")[-1]["last_assistant_message"] == "all done"
    assert logged(program, "SubagentStop")[0]["last_assistant_message"] == "report"
    assert task["id"] in Path(logged(program, "SubagentStop")[0]["agent_transcript_path"]).name
    for event in ("TaskCreated", "TaskCompleted"):
        (said,) = logged(program, event)
        assert (said["task_id"], said["task_subject"], said["task_description"]) == (task["id"], "do one", "one")
    assert "do one" in logged(program, "Notification")[0]["message"]
    assert len(logged(program, "SessionEnd")) == 1


def test_a_compaction_tells_its_hooks_and_may_be_refused_and_the_session_starts_anew(program: Program) -> None:
    command = script(program, "log.py", LOGGER)
    refuse = f"{command}; test -e refuse && {{ echo not now >&2; exit 2; }}; exit 0"
    says = f"""{command} <"$0" >/dev/null 2>&1; echo "the build is red" """
    configure(
        program,
        {
            "PreCompact": [handler(refuse, "auto")],
            "PostCompact": [handler(command)],
            "SessionStart": [handler(says, "compact")],
        },
    )

    def answer(request: Request) -> Reply:
        if "summary" in request.last_user_text and "SUMMED UP" not in request.user_text:
            return message("SUMMED UP")
        if "SUMMED UP" in request.user_text or request.turns > 7:
            return message("done")
        return message(bash(f"echo {request.turns} $(head -c 20000 /dev/zero | tr '\\0' x)", f"t{request.turns}"))

    def compacting() -> list[Request]:
        with FakeAPI(answer, allow_violations=True) as api:
            flags = ("--no-coordinator", "--model", "claude-haiku-4-5")
            small = {
                "COORDINATOR_CONTEXT_WINDOW": "30000",
                "COORDINATOR_CONTEXT_SUMMARY_RESERVE": "5000",
                "COORDINATOR_CONTEXT_COLLAPSE": "0",
            }
            ran = run(program, api, *flags, **small)
            assert ran.code == 0, ran.err
            return api.requests

    requests = compacting()
    assert [said["trigger"] for said in logged(program, "PreCompact")] == ["auto"]
    assert "SUMMED UP" in logged(program, "PostCompact")[0]["compact_summary"]
    assert any("the build is red" in request.user_text for request in requests)
    (program.cwd / "refuse").touch()
    compacting()
    assert len(logged(program, "PreCompact")) > 1 and len(logged(program, "PostCompact")) == 1


# ── scripts of others, unchanged ─────────────────────────────────────────────────────────────────────────────────────


def test_a_command_validator_and_a_file_protector_work_as_they_are(program: Program) -> None:
    pre = [
        handler(script(program, "validate.py", VALIDATOR), "Bash"),
        handler(script(program, "protect.py", PROTECTOR), "Edit|Write|MultiEdit"),
    ]
    configure(program, {"PreToolUse": pre})
    made = (
        bash("grep x y"), bash("echo fine", "t1"), bash("ls; rm -rf build", "t2"),
        tool_use("Write", {"file_path": ".env", "content": "x"}, id="t3"), tool_use("Write", {"file_path": "ok", "content": "x"}, id="t4"),
    )  # fmt: skip
    ran, requests = single(program, message(*made), "done")
    results = requests[-1].tool_results
    assert "Use 'rg' (ripgrep) instead of 'grep'" in results["t0"] and "no rm -rf" in results["t2"]
    assert results["t1"] == "fine\n" and f"{program.cwd}/.env is protected" in results["t3"]
    assert not (program.cwd / ".env").exists() and (program.cwd / "ok").exists()
    assert sorted(entry["tool_name"] for entry in ran.json["permission_denials"]) == ["Bash", "Bash", "Write"]


def test_hooks_of_an_untrusted_project_do_not_run_and_the_person_is_told(program: Program) -> None:
    configure(program, {"PreToolUse": [handler("touch ran; exit 2")]})
    program.here("trust", "--revoke")
    ran, requests = single(program, message(bash("echo fine")), "done")
    assert requests[-1].tool_results["t0"] == "fine\n" and not (program.cwd / "ran").exists()
    assert "hooks do not count until `coordinator trust`" in ran.err


def decision(**output: Any) -> str:
    return f"echo '{json.dumps({'hookSpecificOutput': {'hookEventName': 'PreToolUse', **output}})}'"


def test_the_input_of_a_call_can_be_replaced_and_is_judged_again(program: Program) -> None:
    configure(
        program,
        {"PreToolUse": [handler(decision(updatedInput={"command": "echo replaced"}), "Bash")]},
        permissions={"deny": ["Bash(echo no*)"]},
    )
    _, requests = single(program, message(bash("echo asked")), "done")
    assert requests[-1].tool_results["t0"] == "replaced\n"
    assert requests[-1].messages[-2]["content"][0]["input"] == {"command": "echo asked"}
    configure(
        program,
        {"PreToolUse": [handler(decision(permissionDecision="allow", updatedInput={"command": "echo no"}), "Bash")]},
        permissions={"deny": ["Bash(echo no*)"]},
    )
    _, requests = single(program, message(bash("echo asked")), "done")
    assert "Bash(echo no*) denies" in requests[-1].tool_results["t0"]


def test_a_hooks_allow_lifts_the_mode_but_neither_a_deny_nor_an_ask_rule(program: Program) -> None:
    configure(
        program, {"PreToolUse": [handler(decision(permissionDecision="allow"), "Bash")]},
        permissions={"ask": ["Bash(touch ask)"], "deny": ["Bash(touch deny)"]},
    )  # fmt: skip
    made = [bash(f"touch {name}", f"t{i}") for i, name in enumerate(("free", "ask", "deny"))]
    single(program, message(*made), "done", flags=("--permission-mode", "default"))
    assert [(program.cwd / name).exists() for name in ("free", "ask", "deny")] == [True, False, False]


def test_feedback_after_a_call_reaches_the_model_and_continue_false_ends_the_turn(program: Program) -> None:
    configure(
        program,
        {
            "PostToolUse": [handler("echo the linter complains >&2; exit 2", "Bash")],
            "PostToolUseFailure": [handler("echo try make >&2; exit 2")],
        },
    )
    _, requests = single(program, message(bash("echo a"), bash("false", "t1")), "done")
    said = json.dumps(requests[-1].messages)
    assert "the linter complains" in said and "try make" in said
    configure(program, {"PostToolUse": [handler("""echo '{"continue": false, "stopReason": "enough"}'""")]})
    ran, requests = single(program, message(bash("echo a")), "never")
    assert len(requests) == 1 and ran.json["terminal_reason"] == "hook_stopped"


def test_a_hook_that_hangs_fails_or_cannot_start_blocks_nothing_and_leaves_nothing(program: Program) -> None:
    slow = "sleep 97531 & sleep 97531"
    configure(
        program,
        {
            "PreToolUse": [
                handler(slow, timeout=1),
                handler("exit 1"),
                handler("/nonexistent/hook"),
                {"hooks": [{"type": "command", "command": "/nonexistent", "args": []}]},
            ]
        },
    )
    began = time.monotonic()
    ran, requests = single(program, message(bash("echo fine")), "done")
    assert requests[-1].tool_results["t0"] == "fine\n" and time.monotonic() - began < 30
    assert "took longer than 1 s" in ran.err and "exit code 1" in ran.err and "could not start" in ran.err
    assert not _alive("97531")


def _alive(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if word.encode() in line.split(b"\0"):
            found.append(line.decode())
    return found


# ── prompts, session, environment ────────────────────────────────────────────────────────────────────────────────────


def test_a_session_start_hook_gives_context_and_environment(program: Program) -> None:
    start = 'echo "export GREETING=\'hello there\'" >> "$CLAUDE_ENV_FILE"; echo mind the freeze; env > env.txt'
    configure(program, {"SessionStart": [handler(start, "startup")], "UserPromptSubmit": [handler("echo it is Tuesday")]})
    _, requests = single(program, message(bash("echo $GREETING")), "done", ANTHROPIC_AUTH_TOKEN="sk-secret-0123456789")
    assert "mind the freeze" in requests[0].user_text and "it is Tuesday" in requests[0].user_text
    assert requests[-1].tool_results["t0"] == "hello there\n"
    environment = (program.cwd / "env.txt").read_text()
    assert "sk-secret" not in environment and "ANTHROPIC" not in environment
    assert f"CLAUDE_PROJECT_DIR={program.cwd}\n" in environment and f"COORDINATOR_PROJECT_DIR={program.cwd}\n" in environment


def test_a_refused_prompt_is_a_line_an_exit_code_and_no_call(program: Program) -> None:
    configure(
        program,
        {
            "UserPromptSubmit": [handler("""echo '{"decision": "block", "reason": "no secrets in prompts"}'""")],
            "SessionEnd": [handler("touch ended")],
        },
    )
    with FakeAPI("never") as api:
        ran = run(program, api)
    assert ran.code == 2 and not api.requests and (program.cwd / "ended").exists()
    assert ran.err.splitlines()[-1] == "coordinator: a hook refuses the prompt: no secrets in prompts"


def test_what_is_typed_in_a_chat_passes_the_same_hooks(program: Program) -> None:
    guard = (
        """python3 -c 'import json,sys; d=json.load(sys.stdin); sys.exit(2 if "secret" in d["prompt"] else print("noted"))'"""
    )
    configure(program, {"UserPromptSubmit": [handler(guard)]})
    with FakeAPI(lambda request: message("ok")) as api:
        ran = program("chat", "--no-coordinator", stdin="my secret\nhello\n/quit\n", **with_api(program, api))
    assert ran.code == 0, ran.err
    (request,) = api.requests
    assert "secret" not in request.user_text and "hello" in request.user_text and "noted" in request.user_text
    assert "a hook refuses the prompt" in ran.err


def test_a_resumed_session_says_so(program: Program) -> None:
    configure(program, {"SessionStart": [handler(script(program, "log.py", LOGGER))]})
    ran, _ = single(program, "done")
    with FakeAPI("again") as api:
        program.here("resume", ran.json["session_id"], "more", **with_api(program, api))
        run(program, api, "--resume", ran.json["session_id"], "--fork-session")
    assert [said["source"] for said in logged(program, "SessionStart")] == ["startup", "resume", "fork"]


# ── stop, tasks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_hook_is_heard_at_most_eight_times_in_a_row(program: Program) -> None:
    configure(program, {"Stop": [handler("echo not done yet >&2; exit 2")]})
    ran, requests = single(program, "I am done")
    assert ran.code == 0, ran.err
    assert len(requests) == 9 and ran.json["result"] == "I am done"


def test_a_subagent_stop_hook_keeps_a_worker_at_work_and_knows_that_it_did(program: Program) -> None:
    command = """python3 -c 'import json,sys
d = json.load(sys.stdin)
if not d["stop_hook_active"]:
    print(json.dumps({"decision": "block", "reason": "add the line numbers"}))'"""
    configure(program, {"SubagentStop": [handler(command, "worker")]})
    with FakeAPI(fleet(coordinator("one"), by_turn("first report", "with numbers"))) as api:
        ran = run(program, api)
    assert result_of(program, ran) == ("completed", "with numbers")
    assert any("add the line numbers" in request.last_user_text for request in api.requests)


def test_a_task_is_completed_when_its_hook_says_so_and_not_before(program: Program) -> None:
    gate = 'test -e "$CLAUDE_PROJECT_DIR"/tested || { echo "run the tests" >&2; exit 2; }'
    configure(program, {"TaskCompleted": [handler(gate)]})
    worker = by_turn("works, I think", message(bash("touch tested")), "tested")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        ran = run(program, api)
    assert result_of(program, ran) == ("completed", "tested")
    assert sum("run the tests" in request.last_user_text for request in api.requests) == 1


def test_a_task_that_a_hook_refuses_never_was(program: Program) -> None:
    configure(program, {"TaskCreated": [handler("echo too many already >&2; exit 2")]})
    with FakeAPI(fleet(by_turn(coordinator("one"), "so be it"))) as api:
        ran = run(program, api)
    (result,) = api.requests[-1].tool_results.values()
    assert "too many already" in result and ran.json["tasks"] == [] and program.here("ps", "--all", "--json").json == []


def test_a_stop_hook_sees_what_still_runs(program: Program) -> None:
    configure(program, {"Stop": [handler(script(program, "log.py", LOGGER))]})
    with FakeAPI(fleet(coordinator("one"), by_turn(message(bash("sleep 1")), "report"))) as api:
        ran = run(program, api)
    (task,) = ran.json["tasks"]
    first, last = logged(program, "Stop")[0], logged(program, "Stop")[-1]
    assert [(t["id"], t["description"]) for t in first["background_tasks"]] == [(task["id"], "do one")]
    assert last["background_tasks"] == []


# ── agents' own hooks, http ──────────────────────────────────────────────────────────────────────────────────────────


def test_hooks_in_an_agents_file_hold_for_that_agent_only(program: Program) -> None:
    hooks = "hooks:\n  PreToolUse:\n    - matcher: Bash\n      hooks:\n        - type: command\n          command: 'echo quiet please >&2; exit 2'\n"
    (program.cwd / ".claude/agents").mkdir(parents=True)
    (program.cwd / ".claude/agents/quiet.md").write_text(f"---\nname: quiet\ndescription: x\n{hooks}---\nWork.")
    configure(program, {})
    spawns = [tool_use("Agent", {"description": "x", "prompt": kind, "subagent_type": kind}) for kind in ("quiet", "worker")]
    with FakeAPI(fleet(coordinator(*spawns), by_turn(message(bash("echo loud")), "report"))) as api:
        ran = run(program, api)
    assert ran.code == 0, ran.err
    results = sorted(request.tool_results["t0"] for request in api.requests if "t0" in request.tool_results)
    assert "quiet please" in results[0] and results[1] == "loud\n"


@contextmanager
def listener(answer: Mapping[str, Any], status: int = 200) -> Iterator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """A web server that answers every POST; what it got."""
    got: list[tuple[dict[str, str], Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((dict(self.headers), json.loads(body)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("status", "blocked"), [(200, True), (500, False)])
def test_an_http_hook_gets_the_same_json_and_may_deny(program: Program, status: int, blocked: bool) -> None:
    denial = {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "by policy",
        }
    }
    with listener(denial, status) as (url, got):
        entry = {
            "type": "http",
            "url": url,
            "headers": {"Authorization": "Bearer $HOOK_TOKEN $ANTHROPIC_API_KEY"},
            "allowedEnvVars": ["HOOK_TOKEN"],
        }
        configure(program, {"PreToolUse": [{"matcher": "Bash", "hooks": [entry]}]})
        ran, requests = single(program, message(bash("echo fine")), "done", HOOK_TOKEN="token-0123456789")
    assert len(got) == 1, ran.err
    headers, body = got[0]
    assert headers["Authorization"] == "Bearer token-0123456789" and body["tool_input"] == {"command": "echo fine"}
    result = requests[-1].tool_results["t0"]
    assert ("by policy" in result) is blocked and (result == "fine\n") is not blocked


def test_a_person_who_is_asked_is_told_of_by_a_notification(program: Program) -> None:
    configure(program, {"Notification": [handler(script(program, "log.py", LOGGER), "permission_prompt")]})
    with FakeAPI(by_turn(message(tool_use("Write", {"file_path": "new", "content": "x"})), "done")) as api:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            program.command("run", "goal", "--no-coordinator"), stdin=slave, stdout=slave, stderr=slave, cwd=program.cwd,
            env=program.environment(TERM="xterm", **with_api(program, api)),
        )  # fmt: skip
        os.close(slave)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(master, 4096)
        os.write(master, b"y\n")
        with suppress(OSError):  # the terminal is gone when the program has ended
            while os.read(master, 65_536):
                pass
        assert process.wait(timeout=30) == 0
        os.close(master)
    (said,) = logged(program, "Notification")
    assert said["notification_type"] == "permission_prompt" and "Write" in said["message"]
    assert (program.cwd / "new").exists()


REQUEST = """import json, sys
data = json.load(sys.stdin)
assert "tool_use_id" not in data and isinstance(data["permission_suggestions"], list)
command = data["tool_input"]["command"]
answers = {
    "make all": {"behavior": "allow"},
    "make b": {"behavior": "allow", "updatedInput": {**data["tool_input"], "command": "echo instead"}},
    "make c": {"behavior": "deny", "message": "not this one"},
    "make e": {"behavior": "maybe"},
}
if command in answers:
    print(json.dumps({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": answers[command]}}))
sys.exit(2 if command == "make f" else 0)
"""


def test_a_permission_request_hook_answers_where_nobody_can_be_asked(program: Program) -> None:
    (program.cwd / "Makefile").write_text("all b c d e f:\n\t@echo made $@\n")
    command = script(program, "request.py", REQUEST)
    rules = {"ask": ["Bash(make d)"], "deny": ["Bash(rm *)"]}
    configure(program, {"PermissionRequest": [handler(command, "Bash")]}, permissions=rules)
    names = ("all", "b", "c", "d", "e", "f")
    calls = [bash(f"make {name}", id=name) for name in names]
    with FakeAPI(by_turn(message(*calls, bash("ls", id="ls")), "done")) as api:
        run(program, api, "--no-coordinator", "--permission-mode", "default", "--sandbox", "off")
        results = dict(api.requests[-1].tool_results)
    assert (results["all"], results["b"]) == ("made all\n", "instead\n"), results
    assert "not this one" in results["c"]
    assert all("nobody to ask" in results[name] for name in "def"), results


# ── the transcript that hooks read ───────────────────────────────────────────────────────────────────────────────────

# In the style of loops that send the agent back to work until it has made its promise: grep and jq over the transcript.
LOOP = """#!/bin/bash
set -euo pipefail
INPUT=$(cat)
TRANSCRIPT=$(echo "$INPUT" | jq -r '.transcript_path')
[[ -f "$TRANSCRIPT" ]] || { echo "no transcript" >&2; exit 1; }
grep -q '"role":"assistant"' "$TRANSCRIPT" || exit 0
LAST=$(grep '"role":"assistant"' "$TRANSCRIPT" | tail -1)
TEXT=$(echo "$LAST" | jq -r '.message.content | map(select(.type == "text")) | map(.text) | join("\n")')
if [[ "$TEXT" == *"<promise>DONE</promise>"* ]]; then exit 0; fi
PROMPT=$(jq -rs 'map(select(.type == "user" and (.message.content | type) == "string")) | .[0].message.content' "$TRANSCRIPT")
jq -n --arg p "$PROMPT" '{"decision": "block", "reason": ("again: " + $p), "systemMessage": "loop goes on"}'
"""
# In the style of those that count what a session did, in Python.
COUNTER = """#!/usr/bin/env python3
import json, sys
data = json.load(sys.stdin)
tools, tokens, parents = {}, {}, []
with open(data["transcript_path"]) as f:
    for line in f:
        entry = json.loads(line)
        parents.append((entry["parentUuid"], entry["uuid"], entry["sessionId"], entry["timestamp"][-1], entry["isSidechain"]))
        message = entry.get("message", {})
        if entry["type"] == "assistant":
            tokens[message["id"]] = message["usage"]["output_tokens"]
            for item in message.get("content", []):
                if item.get("type") == "tool_use":
                    tools[item["id"]] = item["name"]
        elif isinstance(message["content"], list):
            for item in message["content"]:
                if item.get("type") == "tool_result":
                    tools[item["tool_use_id"]] += " done"
assert [p[0] for p in parents] == [None, *[p[1] for p in parents[:-1]]], parents
assert {p[2:] for p in parents} == {(data["session_id"], "Z", False)}, parents
json.dump([tools, len(tokens)], open("counted.json", "w"))
"""
# In the style of notifiers: the first block of the last lines.
NOTIFIER = """tail -10 "$(jq -r .transcript_path)" | jq -r 'select(.message.role == "assistant") | .message.content[0].text // empty' | tail -1 > said"""


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not here")
def test_a_stop_hook_that_reads_the_transcript_loops_until_the_promise(program: Program) -> None:
    stop = [handler(script(program, "loop.sh", LOOP)), handler(script(program, "count.py", COUNTER)), handler(NOTIFIER)]
    configure(program, {"Stop": stop})
    ran, requests = single(program, message("I look.", bash("echo hi")), "not yet", "still not", "<promise>DONE</promise>")
    assert ran.code == 0, ran.err
    said = [block["text"] for block in requests[-1].body["messages"][-1]["content"]]
    assert "again: goal" in said[0] and len(requests) == 4
    assert json.loads((program.cwd / "counted.json").read_text()) == [{"t0": "Bash done"}, 4]
    assert (program.cwd / "said").read_text() == "<promise>DONE</promise>\n"
    assert "loop goes on" in ran.err


def test_a_batch_can_be_spoken_to_and_stopped_and_a_failed_turn_is_told(program: Program) -> None:
    batch = """python3 -c '
import json, sys
calls = json.load(sys.stdin)["tool_calls"]
if calls[0]["tool_use_id"] == "t1":
    print("enough", file=sys.stderr)
    sys.exit(2)
print(json.dumps({"hookSpecificOutput": {"hookEventName": "PostToolBatch", "additionalContext": "NOTED"}}))'"""
    log = script(program, "log.py", LOGGER)
    configure(program, {"PostToolBatch": [handler(batch)], "StopFailure": [handler(log, "rate_limit|authentication_failed")]})
    ran, requests = single(program, bash("echo a"), bash("echo b", "t1"), "never")
    assert len(requests) == 2 and "NOTED" in json.dumps(requests[1].body) and "enough" in ran.err
    assert ran.json["terminal_reason"] == "hook_stopped"
    with FakeAPI([http_error(401, "authentication_error", "no")]) as api:
        run(program, api, "--no-coordinator")
    (failed,) = logged(program, "StopFailure")
    assert failed["error"] == "authentication_failed" and failed["error_details"]
