"""Hooks in the shape that tools know."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from worker_agent.errors import TurnOver
from worker_agent.hooks import HookConfig, HookRunner, HookSession
from worker_agent.tools.base import Allow, Ask, Deny, Passthrough, PostToolUse, PreToolUse, ToolResult
from worker_agent.tools.tool_hooks import HookedTools


def hooked(cwd: Path, event: str, body: str) -> HookedTools:
    code = f"import json, sys\ndata = json.load(sys.stdin)\n{body}"
    config = HookConfig.parse({event: [{"hooks": [{"type": "command", "command": sys.executable, "args": ["-c", code]}]}]})
    session = HookSession(session_id="s", cwd=cwd, project_dir=cwd, environment={"PATH": os.environ["PATH"]})
    return HookedTools(HookRunner(config, session))


def pre(cwd: Path, output: dict[str, Any], **input: Any) -> PreToolUse:
    said = json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **output}})
    return asyncio.run(hooked(cwd, "PreToolUse", f"print({said!r})").pre_tool_use("Read", input, "t"))


def test_decisions_become_the_tools_own_values(tmp_path: Path) -> None:
    assert pre(tmp_path, {"permissionDecision": "deny", "permissionDecisionReason": "r"}).decision == Deny("r")
    assert pre(tmp_path, {"permissionDecision": "ask", "permissionDecisionReason": "r"}).decision == Ask("r")
    assert pre(tmp_path, {"permissionDecision": "allow", "permissionDecisionReason": "r"}).decision == Allow(reason="r")
    assert pre(tmp_path, {"updatedInput": {"file_path": "b"}}) == PreToolUse(Passthrough(), {"file_path": "b"}, ())


def test_without_hooks_nothing_is_decided(tmp_path: Path) -> None:
    runner = HookRunner(HookConfig(), HookSession(session_id="s", cwd=tmp_path, project_dir=tmp_path))
    assert asyncio.run(HookedTools(runner).pre_tool_use("Read", {}, "t")) == PreToolUse()
    assert asyncio.run(HookedTools(runner).post_tool_use("Read", {}, "t", ToolResult("x"), 0.1)) == PostToolUse()


def test_hooks_see_absolute_paths(tmp_path: Path) -> None:
    body = "sys.stderr.write(data['tool_input']['file_path']); sys.exit(2)"
    said = asyncio.run(hooked(tmp_path, "PreToolUse", body).pre_tool_use("Read", {"file_path": "a/b"}, "t"))
    assert said.decision == Deny(f"{tmp_path}/a/b")


def test_continue_false_ends_the_turn(tmp_path: Path) -> None:
    with pytest.raises(TurnOver, match="enough"):
        asyncio.run(
            hooked(tmp_path, "PreToolUse", 'print(\'{"continue": false, "stopReason": "enough"}\')').pre_tool_use(
                "Read", {}, "t"
            )
        )


def test_a_failed_call_is_another_event_and_feedback_goes_to_the_model(tmp_path: Path) -> None:
    body = "sys.stderr.write(data['error'] + str(data['duration_ms'])); sys.exit(2)"
    tools = hooked(tmp_path, "PostToolUseFailure", body)
    assert asyncio.run(tools.post_tool_use("Bash", {}, "t", ToolResult("boom", is_error=True), 0.25)).feedback == ("boom250",)
    assert asyncio.run(tools.post_tool_use("Bash", {}, "t", ToolResult("fine"), 0.25)).feedback == ()
