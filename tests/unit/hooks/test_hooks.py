"""Hooks as scripts written for Claude Code know them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from worker_agent.hooks import HookConfig, HookRunner, HookSession, StopVerdict, Verdict
from worker_agent.hooks.config import Group, Handler
from worker_agent.hooks.run import _expanded


def script(body: str) -> dict[str, Any]:
    """A handler that runs Python with `data` (its input) at hand."""
    code = f"import json, os, sys, time\ndata = json.load(sys.stdin)\n{body}"
    return {"type": "command", "command": sys.executable, "args": ["-c", code]}


def says(answer: Any, code: int = 0, stderr: str = "") -> dict[str, Any]:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return script(f"sys.stdout.write({text!r}); sys.stderr.write({stderr!r}); sys.exit({code})")


class Bench:
    """A runner over `hooks`, with what it told the person."""

    def __init__(self, cwd: Path, hooks: dict[str, Any], **session: Any) -> None:
        self.notices: list[str] = []
        self.woken: list[tuple[str | None, str]] = []
        config = HookConfig.parse(
            {k: v if isinstance(v, list) and v and "hooks" in v[0] else [{"hooks": v}] for k, v in hooks.items()}
        )
        environment = {"PATH": os.environ["PATH"], "OTEL_X": "1", "KEPT": "yes"}
        self.session = HookSession(session_id="s1", cwd=cwd, project_dir=cwd, environment=environment, **session)
        self.runner = HookRunner(config, self.session, None, self.notices.append, lambda *said: self.woken.append(said))

    def pre(self, tool: str = "Bash", **input: Any) -> Verdict:
        return run(self.runner.pre_tool_use(tool, input or {"command": "ls"}, "toolu_1"))


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


def test_a_hook_that_only_refuses_allows_and_changes_nothing(tmp_path: Path) -> None:
    own = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "updatedInput": {"command": "x"},
        "additionalContext": "c",
    }
    bench = Bench(tmp_path, {"PreToolUse": [says({"hookSpecificOutput": own})]})
    assert bench.pre().decision == "allow"
    bench.runner.config = bench.runner.config.refusing(HookConfig())
    assert bench.pre() == Verdict()
    own["permissionDecision"] = "deny"
    bench.runner.config = HookConfig.parse({"PreToolUse": [{"hooks": [says({"hookSpecificOutput": own})]}]}).refusing(
        HookConfig()
    )
    assert bench.pre().decision == "deny" and bench.pre().blocking == ("a hook denies it",)


# ── configuration and matchers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("matcher", "subject", "matches"),
    [
        ("", "Bash", True), ("*", "Bash", True), ("Bash", "Bash", True), ("Bash", "BashOutput", False), ("Edit|Write", "Write", True),
        ("Edit, Write", "Write", True), ("Edit|Write", "NotebookEdit", False), ("mcp__db__.*", "mcp__db__read", True),
        ("mcp__db", "mcp__db__read", False), ("^Note", "NotebookEdit", True), (".*Edit$", "NotebookEdit", True), ("(?<x>Ba)sh", "Bash", True),
        ("Task", "Agent", True), ("Agent", "Agent", True), ("web-fetch_2", "web-fetch_2", True), ("(", "Bash", False), ("bash", "Bash", False),
    ],
)  # fmt: skip
def test_matchers(matcher: str, subject: str, matches: bool) -> None:
    assert Group("PreToolUse", matcher, ()).matches(subject) is matches


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"PreTolUse": []}, "write PreToolUse"),
        ({"pretooluse": []}, "write PreToolUse"),
        ({"PreToolUse": [{"matcher": "bash", "hooks": []}]}, "write Bash"),
        ({"PermissionRequest": [{"matcher": "Edit|Wirte", "hooks": []}]}, "write Write"),
    ],
)
def test_a_misspelled_event_or_tool_is_a_fence_that_cannot_be_read(hooks: dict[str, Any], said: str) -> None:
    (line,) = HookConfig.parse(hooks, "f.json").fences
    assert line.startswith("f.json: ") and line.endswith(said)


def test_unknown_events_and_fields_are_ignored_and_other_types_left_out_with_one_line() -> None:
    entries = [
        {"type": "prompt", "prompt": "x"},
        {"type": "prompt", "prompt": "y"},
        {"type": "command", "command": "true", "later": 1},
    ]
    config = HookConfig.parse({"Stop": [{"hooks": entries}], "FileChanged": [{"hooks": entries}], "Whatever": 7}, "f.json")
    assert config.problems == ("f.json: hooks of type 'prompt' are left out",)
    assert len(config.handlers("Stop")) == 1


@pytest.mark.parametrize(
    "data", [None, 7, [], {"Stop": 7}, {"Stop": [7]}, {"Stop": [{"hooks": 7}]}, {"Stop": [{"hooks": [7]}]}, {"Stop": [{"matcher": 7, "hooks": []}]},
             {"Stop": [{"matcher": "(", "hooks": []}]}, {"Stop": [{"hooks": [{"type": "command"}]}]}]
)  # fmt: skip
def test_a_file_that_is_wrong_in_any_way_is_not_fatal(data: Any) -> None:
    assert HookConfig.parse(data).handlers("Stop") == ()


def test_an_identical_handler_in_two_files_runs_once(tmp_path: Path) -> None:
    one = HookConfig.parse({"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}, "a")
    assert len((one + one).handlers("Stop")) == 1


# ── exit codes and answers ───────────────────────────────────────────────────────────────────────────────────────────


def test_exit_two_blocks_the_call_with_what_was_written_to_stderr(tmp_path: Path) -> None:
    verdict = Bench(tmp_path, {"PreToolUse": [says("", 2, "not here")]}).pre()
    assert (verdict.decision, verdict.reason, verdict.blocking) == ("deny", "not here", ("not here",))


def test_nothing_on_stdout_undoes_exit_two(tmp_path: Path) -> None:
    allow = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
    assert Bench(tmp_path, {"PreToolUse": [says(allow, 2, "no")]}).pre().decision == "deny"


def test_another_exit_code_is_one_notice_and_the_action_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"PreToolUse": [says("", 1, "oops")]})
    assert not bench.pre().blocked
    assert len(bench.notices) == 1 and "exit code 1" in bench.notices[0] and "oops" in bench.notices[0]


def test_json_counts_on_every_exit_code(tmp_path: Path) -> None:
    deny = {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "r"}
    }
    assert Bench(tmp_path, {"PreToolUse": [says(deny, 1)]}).pre().reason == "r"


def test_a_hook_that_takes_too_long_or_cannot_start_blocks_nothing(tmp_path: Path) -> None:
    slow = script("time.sleep(60)") | {"timeout": 0.2}
    missing = {"type": "command", "command": "/nonexistent/hook", "args": []}
    bench = Bench(tmp_path, {"PreToolUse": [slow, missing]})
    began = time.monotonic()
    assert not bench.pre().blocked
    assert time.monotonic() - began < 5
    assert ["ended" in n or "start" in n for n in bench.notices] == [True, True]


def test_a_child_that_holds_the_output_keeps_nobody_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"PreToolUse": [{"type": "command", "command": "sleep 3 & echo '{}'"}]})
    began = time.monotonic()
    bench.pre()
    assert time.monotonic() - began < 2


def test_of_several_decisions_the_stricter_wins(tmp_path: Path) -> None:
    def decision(*values: str) -> str | None:
        answers = [
            says(
                {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": v, "permissionDecisionReason": v}}
            )
            for v in values
        ]
        return Bench(tmp_path, {"PreToolUse": answers}).pre().decision

    assert decision("allow", "deny", "ask") == "deny"
    assert decision("allow", "ask") == "ask"
    assert decision("allow", "defer") == "ask"
    assert decision("allow") == "allow"
    assert decision() is None


def test_the_old_top_level_decision_still_counts(tmp_path: Path) -> None:
    assert Bench(tmp_path, {"PreToolUse": [says({"decision": "block", "reason": "r"})]}).pre().reason == "r"
    assert Bench(tmp_path, {"PreToolUse": [says({"decision": "approve"})]}).pre().decision == "allow"


def test_updated_input_and_context_are_handed_on(tmp_path: Path) -> None:
    output = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "updatedInput": {"command": "ls -l"},
        "additionalContext": "note",
    }
    verdict = Bench(tmp_path, {"PreToolUse": [says({"hookSpecificOutput": output, "systemMessage": "told"})]}).pre()
    assert (verdict.updated_input, verdict.context, verdict.notices) == ({"command": "ls -l"}, ("note",), ("told",))


def test_output_meant_for_another_event_does_not_count(tmp_path: Path) -> None:
    other = {"hookSpecificOutput": {"hookEventName": "PostToolUse", "permissionDecision": "deny"}}
    assert Bench(tmp_path, {"PreToolUse": [says(other)]}).pre().decision is None


def test_continue_false_stops_everything(tmp_path: Path) -> None:
    assert Bench(tmp_path, {"PreToolUse": [says({"continue": False, "stopReason": "enough"})]}).pre().stop == "enough"


def test_broken_json_is_a_notice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"PreToolUse": [says("{oops")]})
    assert not bench.pre().blocked and "JSON" in bench.notices[0]


def test_plain_text_is_context_for_prompts_and_session_starts_only(tmp_path: Path) -> None:
    hooks = {event: [says("some words")] for event in ("UserPromptSubmit", "SessionStart", "PreToolUse", "Stop")}
    bench = Bench(tmp_path, hooks)
    assert run(bench.runner.user_prompt_submit("p")).context == ("some words",)
    assert run(bench.runner.session_start("startup")).context == ("some words",)
    assert bench.pre().context == ()
    assert run(bench.runner.stop("", False)) == StopVerdict()


def test_long_strings_are_cut_and_the_whole_lies_in_a_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"PreToolUse": [says("", 2, "x" * 20_000)]}, spill_dir=tmp_path / "spill")
    reason = bench.pre().reason
    assert len(reason) < 10_300
    assert (tmp_path / "spill").joinpath(reason.rpartition("/")[2].rstrip(")")).read_text() == "x" * 20_000


def test_only_titles_notifications_and_the_bell_reach_a_terminal(tmp_path: Path) -> None:
    def terminal(sequence: str) -> str:
        return Bench(tmp_path, {"PreToolUse": [says({"terminalSequence": sequence})]}).pre().terminal

    for good in ("\a", "\x1b]0;title\a", "\x1b]777;notify;a;b\x1b\\", "\x1b]9;hi\a\a"):
        assert terminal(good) == good
    for bad in ("\x1b[2J", "\x1b]52;c;AAAA\a", "text", "\x1b]0;a\x1b[31m\a"):
        assert terminal(bad) == ""


# ── what a hook is given ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_gets_the_documented_input_and_environment(tmp_path: Path) -> None:
    keep = script("json.dump([data, dict(os.environ), os.getcwd()], open('seen.json', 'w'))")
    bench = Bench(
        tmp_path, {"PreToolUse": [keep]}, transcript_path=tmp_path / "t", permission_mode="plan", effort="high", task_id="a1"
    )
    bench.pre("Edit", file_path="/x", old_string="a", new_string="b")
    data, environment, cwd = json.loads((tmp_path / "seen.json").read_text())
    assert data == {
        "session_id": "s1", "transcript_path": str(tmp_path / "t"), "cwd": str(tmp_path), "permission_mode": "plan", "effort": {"level": "high"},
        "hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": {"file_path": "/x", "old_string": "a", "new_string": "b"},
        "tool_use_id": "toolu_1",
    }  # fmt: skip
    assert (environment["CLAUDE_PROJECT_DIR"], environment["COORDINATOR_SESSION_ID"]) == (str(tmp_path), "s1")
    assert (environment["COORDINATOR_TASK_ID"], environment["KEPT"]) == ("a1", "yes")
    assert "OTEL_X" not in environment and cwd == str(tmp_path)


def test_a_worker_is_named_in_its_events(tmp_path: Path) -> None:
    keep = script("json.dump(data, open('seen.json', 'w'))")
    bench = Bench(tmp_path, {"PreToolUse": [keep]})
    worker = bench.runner.for_agent(agent_id="a9", agent_type="reviewer")
    run(worker.pre_tool_use("Bash", {}, "t"))
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["agent_id"], seen["agent_type"]) == ("a9", "reviewer")


def test_without_args_a_shell_reads_the_command_and_with_args_none_does(tmp_path: Path) -> None:
    shell = {"type": "command", "command": 'echo "$CLAUDE_PROJECT_DIR" > a; exit 0'}
    plain = {"type": "command", "command": "touch", "args": ["${CLAUDE_PROJECT_DIR}/b; touch c"]}
    Bench(tmp_path, {"PreToolUse": [shell, plain]}).pre()
    assert (tmp_path / "a").read_text().strip() == str(tmp_path)
    assert not (tmp_path / "c").exists()


def test_all_handlers_run_side_by_side(tmp_path: Path) -> None:
    meet = [
        script(f"open('{n}', 'w').close()\nwhile not os.path.exists('{m}'): time.sleep(0.01)")
        for n, m in (("x", "y"), ("y", "x"))
    ]
    bench = Bench(tmp_path, {"PreToolUse": [one | {"timeout": 10} for one in meet]})
    bench.pre()
    assert bench.notices == []


def test_cancelling_ends_the_hook(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"PreToolUse": [script("open('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)")]})

    async def main() -> None:
        task = asyncio.create_task(bench.runner.pre_tool_use("Bash", {}, "t"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_condition_is_asked_on_tool_events_only_and_fails_open(tmp_path: Path) -> None:
    from worker_agent.tools.tool_hooks import rule_condition

    hook = says("", 2, "no") | {"if": "Bash(rm *)"}
    bench = Bench(tmp_path, {"PreToolUse": [hook], "Stop": [hook]})
    bench.runner.condition = rule_condition(tmp_path, tmp_path)
    assert bench.pre(command="ls; rm p").blocked
    assert bench.pre(command="$X p").blocked
    assert not bench.pre(command="ls").blocked
    assert not bench.pre("Read", file_path="x").blocked
    assert run(bench.runner.stop("", False)) == StopVerdict()
    broken = Bench(tmp_path, {"PreToolUse": [says("", 2, "no") | {"if": "Bash(("}]})
    broken.runner.condition = rule_condition(tmp_path, tmp_path)
    assert broken.pre(command="ls").blocked


def test_a_hook_in_the_background_is_not_waited_for_and_may_wake_the_model(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path, {"PreToolUse": [says("", 2, "look") | {"asyncRewake": True}, says("", 2, "unheard") | {"async": True}]}
    )

    async def main() -> None:
        assert not (await bench.runner.pre_tool_use("Bash", {}, "t")).blocked
        await asyncio.gather(*bench.runner._background)

    asyncio.run(main())
    assert bench.woken == [(None, "look")]


# ── the events ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_stop_hooks_send_back_to_work_or_forbid_going_on(tmp_path: Path) -> None:
    def stop(hook: dict[str, Any], **session: Any) -> StopVerdict:
        event = "SubagentStop" if session else "Stop"
        return run(Bench(tmp_path, {event: [hook]}, **session).runner.stop("done", True))

    assert stop(says("", 2, "tests fail")) == StopVerdict(("tests fail",))
    assert stop(says({"decision": "block", "reason": "go on"})) == StopVerdict(("go on",))
    assert stop(says({"continue": False, "stopReason": "over"})) == StopVerdict((), "over")
    assert stop(says("", 1, "broken")) == StopVerdict()
    echo = script(
        "print(json.dumps({'decision': 'block', 'reason': str([data['stop_hook_active'], data['last_assistant_message']])}))"
    )
    assert stop(echo) == StopVerdict(("[True, 'done']",))
    assert stop(says("", 2, "more"), agent_type="reviewer", agent_id="a1") == StopVerdict(("more",))


def test_task_completed_exit_two_is_the_verification_gate(tmp_path: Path) -> None:
    gate = script("sys.stderr.write(data['task_subject'] + ' lacks tests'); sys.exit(2)")
    bench = Bench(tmp_path, {"TaskCompleted": [gate], "TaskCreated": [says("", 2, "too many")]})
    assert run(bench.runner.task_completed("a1", "Mend it")).blocking == ("Mend it lacks tests",)
    assert run(bench.runner.task_created("a1", "Mend it")).blocking == ("too many",)


def test_after_a_tool_exit_two_is_feedback_and_the_output_can_be_replaced(tmp_path: Path) -> None:
    replaced = {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": "new", "additionalContext": "c"}}
    bench = Bench(
        tmp_path,
        {
            "PostToolUse": [says("", 2, "lint"), says(replaced)],
            "PostToolUseFailure": [says({"decision": "block", "reason": "f"})],
        },
    )
    verdict = run(bench.runner.post_tool_use("Bash", {}, "t", {"content": "old"}, 0.5))
    assert (verdict.blocking, verdict.updated_output, verdict.context) == (("lint",), "new", ("c",))
    failed = run(bench.runner.post_tool_use("Bash", {}, "t", {}, 0.5, error="boom"))
    assert failed.blocking == ("f",)


def test_events_that_cannot_be_blocked_tell_the_person(tmp_path: Path) -> None:
    hooks = {
        event: [says("", 2, event)] for event in ("SessionStart", "SessionEnd", "SubagentStart", "Notification", "PostCompact")
    }
    bench = Bench(tmp_path, hooks)
    for call in (bench.runner.session_start("startup"), bench.runner.session_end("other"), bench.runner.subagent_start("worker", "a1"),
                 bench.runner.notification("idle_prompt", "m"), bench.runner.post_compact("auto")):  # fmt: skip
        assert not run(call).blocked
    assert bench.notices == ["SessionStart", "SessionEnd", "SubagentStart", "Notification", "PostCompact"]


def test_a_prompt_and_a_compaction_can_be_blocked(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        {"UserPromptSubmit": [says("", 2, "no")], "PreCompact": [{"matcher": "auto", "hooks": [says("", 2, "later")]}]},
    )
    assert run(bench.runner.user_prompt_submit("p")).blocking == ("no",)
    assert run(bench.runner.pre_compact("auto")).blocking == ("later",)
    assert run(bench.runner.pre_compact("manual")).blocking == ()


def test_a_session_start_hook_sets_variables_through_its_file(tmp_path: Path) -> None:
    hook = {"type": "command", "command": 'echo \'export A="b c"\' >> "$CLAUDE_ENV_FILE"; echo \'D=e\' >> "$CLAUDE_ENV_FILE"'}
    assert run(Bench(tmp_path, {"SessionStart": [hook]}).runner.session_start("resume")).environment == {"A": "b c", "D": "e"}


def test_session_end_hooks_share_a_second_and_a_half(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"SessionEnd": [script("time.sleep(30)"), script("time.sleep(31)")]})
    began = time.monotonic()
    run(bench.runner.session_end("exit"))
    assert time.monotonic() - began < 4


# ── http ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    seen: list[Any] = []
    reply: dict[str, Any] = {"status": 200, "body": b"{}"}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((json.loads(body), dict(self.headers)))
            self.send_response(reply["status"])
            self.end_headers()
            self.wfile.write(reply["body"])

        def log_message(self, *args: Any) -> None: ...

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/", seen, reply
    http.shutdown()
    http.server_close()
    thread.join()


def test_an_http_hook_is_posted_the_same_input_and_answers_in_its_body(tmp_path: Path, server: Any) -> None:
    url, seen, reply = server
    reply["body"] = json.dumps(
        {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "r"}}
    ).encode()
    hook = {"type": "http", "url": url, "headers": {"X-Key": "v-$KEPT-$OTHER"}, "allowedEnvVars": ["KEPT"]}
    bench = Bench(tmp_path, {"PreToolUse": [hook]})
    assert bench.pre().reason == "r"
    assert seen[0][0]["tool_name"] == "Bash"
    assert seen[0][1]["X-Key"] == "v-yes-"
    reply["status"] = 500
    assert not bench.pre().blocked and "500" in bench.notices[-1]
    unreachable = Bench(tmp_path, {"PreToolUse": [{"type": "http", "url": "http://127.0.0.1:1/"}]})
    assert not unreachable.pre().blocked and unreachable.notices


def test_a_known_secret_is_redacted_in_what_a_hook_says(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"UserPromptSubmit": [{"type": "command", "command": "echo the key is sk-123456789"}]})
    bench.runner.redact = lambda text: text.replace("sk-123456789", "[redacted]")
    assert asyncio.run(bench.runner.user_prompt_submit("x")).context == ("the key is [redacted]",)


def test_a_header_may_name_a_credential_that_no_handler_has_in_its_environment() -> None:
    handler = Handler(url="http://x", allowed_variables=("MY_TOKEN",))
    assert _expanded("Bearer $MY_TOKEN $OTHER", handler, {"MY_TOKEN": "t", "OTHER": "o"}.get) == "Bearer t"
