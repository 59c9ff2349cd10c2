"""Hooks of a whole session, as settings files give them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.integration.harness import Bench
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, message, tool_use
from worker_agent.errors import ConfigError


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def settings(event: str, command: str, matcher: str = "") -> str:
    return json.dumps({"hooks": {event: [{"matcher": matcher, "hooks": [{"type": "command", "command": command}]}]}})


def of_workers(api: FakeAPI) -> list:
    return [request for request in api.requests if "Agent" not in request.tool_names]


def test_a_task_completed_hook_sends_the_worker_back_to_work(bench: Bench) -> None:
    hook = "test -e tested || { echo run the tests first >&2; exit 2; }"
    worker = by_turn("I think it works", tool_use("Bash", {"command": "touch tested"}), "it works")
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        outcome = bench.run(api, settings=settings("TaskCompleted", hook))
    assert "run the tests first" in of_workers(api)[1].last_user_text
    assert [(t["status"]) for t in outcome.result["tasks"]] == ["completed"] and len(of_workers(api)) == 3


def test_a_task_created_hook_keeps_a_task_from_being(bench: Bench) -> None:
    with FakeAPI(fleet(by_turn(coordinator("one"), "so be it"))) as api:
        outcome = bench.run(api, settings=settings("TaskCreated", "echo not today >&2; exit 2"))
    (answer,) = api.requests[-1].tool_results.values()
    assert "not today" in answer and outcome.result["tasks"] == []


def test_a_stop_hook_of_the_coordinator_and_one_of_workers_are_told_apart(bench: Bench) -> None:
    hook = "test -e {0} && exit 0; touch {0}; echo once more {0} >&2; exit 2"
    both = json.loads(settings("Stop", hook.format("boss")))
    both["hooks"] |= json.loads(settings("SubagentStop", hook.format("worker")))["hooks"]
    with FakeAPI(fleet(by_turn("done", "really done"))) as api:
        outcome = bench.run(api, settings=json.dumps(both))
    assert outcome.result["result"] == "really done" and "once more boss" in api.requests[1].last_user_text


def test_session_start_and_subagent_start_add_what_the_model_should_know(bench: Bench) -> None:
    started = {"hookSpecificOutput": {"hookEventName": "SubagentStart", "additionalContext": "mind the gap"}}
    both = json.loads(settings("SessionStart", "echo the build is red"))
    both["hooks"] |= json.loads(settings("SubagentStart", f"echo '{json.dumps(started)}'"))["hooks"]
    with FakeAPI(fleet(coordinator("one"))) as api:
        bench.run(api, settings=json.dumps(both))
    assert "the build is red" in api.requests[0].last_user_text
    assert of_workers(api)[0].last_user_text == "one\n\nmind the gap"


def test_a_refused_prompt_leaves_nothing_running(bench: Bench) -> None:
    with FakeAPI("x") as api, pytest.raises(ConfigError, match="no such thing"):
        bench.run(api, settings=settings("UserPromptSubmit", "echo no such thing >&2; exit 2"))
    with FakeAPI("fine") as api:
        assert bench.run(api, "again", continue_last=True).exit_code is ExitCode.DONE


def test_a_pre_tool_use_hook_and_deny_rules_hold_for_workers(bench: Bench) -> None:
    worker = by_turn(
        message(tool_use("Bash", {"command": "touch a"}), tool_use("Write", {"file_path": "b", "content": "x"})),
        "report",
    )
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        outcome = bench.run(
            api,
            settings=settings("PreToolUse", "echo no shell here >&2; exit 2", "Bash"),
            disallowed_tools=("Edit(b)",),
        )
    refused = list(of_workers(api)[-1].tool_results.values())
    assert "no shell here" in refused[0] and "<tool_use_error>" in refused[1]
    assert list(bench.work.iterdir()) == []
    assert {denial["tool_name"] for denial in outcome.result["permission_denials"]} == {"Bash", "Write"}
