"""Views, exit codes, paths, prompts, contexts: values other parts rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.agents.definitions import prompt_text
from coordinator.paths import Paths
from coordinator.session.results import Closing
from coordinator.views import values as views
from coordinator.views.ends import exit_code, subtype
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import session_state
from worker_agent.causes import Cause
from worker_agent.config import Settings
from worker_agent.context.injected import news, system_context
from worker_agent.events import Result
from worker_agent.messages import Usage

DOCUMENTED = (
    "id agent_id session_id parent_id type status description name agent model created_at started_at ended_at "
    "duration_ms tool_uses input_tokens output_tokens total_tokens cost_usd last_activity idle_ms "
    "attempt end_reason error needs_approval"
)


def a_task(tmp_path: Path):
    from tasks import registry, sessions
    from tasks.db import Database
    from tasks.records import NewTask

    db = Database.open(tmp_path / "c.db", clock=lambda: 1000.0)

    def job(conn):
        session = sessions.create(conn, goal="g", cwd="/", model="m", options={})
        return session, registry.create(conn, NewTask(session_id=session.id, description="d", prompt="p"))

    session, task = db.write(job)
    db.close()
    return session, task


def test_a_task_has_exactly_the_documented_fields(tmp_path: Path) -> None:
    _, task = a_task(tmp_path)
    value = views.task_json(task, "interrupted", 2000.0)
    assert list(value) == DOCUMENTED.split()
    assert (value["status"], value["created_at"], value["duration_ms"], value["idle_ms"]) == (
        "interrupted",
        "1970-01-01T00:16:40.000Z",
        None,
        None,
    )
    more = set(views.task_detail_json(task, "pending", 2000.0)) - set(value)
    assert more == {"prompt", "result", "worktree", "branch", "activities", "output_file"}


def test_a_session_is_shown_with_times_in_utc(tmp_path: Path) -> None:
    session, _ = a_task(tmp_path)
    assert views.session_json(session)["created_at"] == "1970-01-01T00:16:40.000Z"


@pytest.mark.parametrize(
    ("status", "end_reason", "driven", "live_tasks", "asks", "rests", "state"),
    [
        ("open", None, True, 2, False, True, "working"),
        ("open", None, True, 0, False, False, "working"),
        ("open", None, True, 2, True, False, "waiting for you"),
        ("open", None, True, 0, False, True, "waiting for you"),
        ("open", None, False, 0, False, False, "waiting for you"),
        ("open", None, False, 1, False, True, "stuck"),
        ("ended", "completed", False, 0, False, True, "done"),
        ("ended", "unverified", False, 0, False, True, "failed"),
    ],
)
def test_a_session_has_a_state_for_lists(
    status: str, end_reason: str | None, driven: bool, live_tasks: int, asks: bool, rests: bool, state: str
) -> None:
    session = {"status": status, "end_reason": end_reason, "driven": driven, "live_tasks": live_tasks}
    assert session_state(session, asks, rests) == state


@pytest.mark.parametrize(
    ("reason", "is_error", "kind", "code", "type"),
    [
        ("completed", False, None, ExitCode.DONE, "success"),
        ("completed", True, "overloaded", ExitCode.FAILED, "error_during_execution"),
        ("completed", True, "authentication", ExitCode.NOT_AUTHENTICATED, "error_during_execution"),
        ("max_turns", True, None, ExitCode.LIMIT, "error_max_turns"),
        ("budget", True, "budget", ExitCode.BUDGET, "error_max_budget_usd"),
        ("timeout", True, None, ExitCode.LIMIT, "error_during_execution"),
        ("live_workers", True, None, ExitCode.LIVE_WORKERS, "error_during_execution"),
        ("unverified", True, None, ExitCode.UNVERIFIED, "error_during_execution"),
        ("aborted_tools", True, None, ExitCode.INTERRUPTED, "error_during_execution"),
        ("terminated", True, None, ExitCode.TERMINATED, "error_during_execution"),
        ("schema", True, None, ExitCode.UNVERIFIED, "error_max_structured_output_retries"),
    ],
)
def test_every_ending_has_its_code(reason: str, is_error: bool, kind: str | None, code: ExitCode, type: str) -> None:
    assert (exit_code(reason, is_error=is_error, error_kind=kind), subtype(reason, is_error=is_error)) == (code, type)


def closing(**changes) -> Closing:
    base = {
        "session_id": "s1",
        "result": None,
        "ending": None,
        "live": (),
        "over_budget": (),
        "unverified": None,
        "duration": 1.0,
    }
    return Closing(**(base | {"turns": 1, "in_turn": False} | changes))


def result(**changes) -> Result:
    base = {"text": "so far", "reason": "completed", "is_error": True, "turns": 1, "duration": 1.0, "duration_api": 1.0}
    return Result(**(base | {"usage": Usage(), "cost_usd": 0.0} | changes))


def test_a_time_limit_is_told_apart_by_what_was_under_way() -> None:
    assert closing(ending=Cause.TIMEOUT, live=("a1",)).reason == "live_workers"
    assert closing(ending=Cause.TIMEOUT, live=("a1",), in_turn=True).reason == "timeout"
    assert closing(ending=Cause.TIMEOUT).reason == "timeout"
    assert closing(
        ending=Cause.TIMEOUT, live=("a1", "a2"), result=result(reason="aborted_streaming", error="timeout")
    ).errors == [
        "the time limit of the run is reached",
        "tasks that still ran: a1, a2",
    ]


def test_a_failure_says_once_what_failed_and_what_to_do() -> None:
    invalid = result(error="invalid key", error_kind="authentication")
    assert closing(result=invalid).errors == [
        "the API refused the credentials: invalid key. To go on: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) to "
        "one that is valid, then `coordinator resume s1`"
    ]
    assert closing(result=result(error="Busy.", error_kind="overloaded")).errors == [
        "the model is overloaded: Busy. To go on: try again later, then `coordinator resume s1`"
    ]
    assert closing(result=result(error="the limit of 3 turns is reached", reason="max_turns")).errors == [
        "the limit of 3 turns is reached"
    ]
    assert closing(result=result(is_error=False)).errors == []


def test_a_run_whose_tasks_the_budget_ended_failed_by_the_budget_unless_it_failed_otherwise() -> None:
    good, bad = result(is_error=False), result(error="no", error_kind="authentication")
    spent = closing(result=good, over_budget=("a1",))
    assert (spent.reason, spent.is_error) == ("budget", True) and "a1" in spent.errors[0]
    assert closing(result=bad, over_budget=("a1",)).reason == "completed"
    assert closing(result=good, ending=Cause.TIMEOUT, over_budget=("a1",)).reason == "timeout"


def test_everything_lies_under_the_home_that_settings_name(tmp_path: Path) -> None:
    paths = Paths.of(Settings(home=tmp_path / "h"))
    paths.prepare("s1")
    assert paths.database == tmp_path / "h" / "coordinator.db"
    assert all(p.is_dir() for p in (paths.spill("s1"), paths.scratch("s1"), paths.transcripts("s1")))
    assert (paths.scratch("s1").stat().st_mode & 0o777) == 0o700


def test_the_prompts_teach_what_the_specification_asks_for() -> None:
    boss, worker = prompt_text("coordinator"), prompt_text("worker")
    for part in (
        "Research",
        "Synthesis",
        "Implementation",
        "Verification",
        "based on your findings",
        "end your turn",
        "one answer",
    ):
        assert part in boss
    assert "never" in boss and "consent" in boss and "file:line" in worker and "Start no agents" in worker


def test_news_says_what_of_the_first_context_does_not_hold_any_more(tmp_path: Path) -> None:
    system = asyncio.run(system_context(tmp_path, 0.0, trusted=True))
    assert news(system, tmp_path, 3600.0) is None
    text = news(system, Path("/elsewhere"), 86_400.0)
    assert text is not None and "Date: 1970-01-02; Working directory: /elsewhere" in text
