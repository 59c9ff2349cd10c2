"""Calls that wait for a person: seen, approved and denied from another process, once, through crashes and in a queue."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_run_api import start, until, with_api
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, message, tool_use

WAIT = ("--wait-approvals", "--sandbox", "off")


def touch(name: str, **more: Any) -> Any:
    return message(tool_use("Bash", {"command": f"touch {name}", **more}))


@contextmanager
def running(program: Program, api: FakeAPI, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = start(program, api, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def waiting(program: Program, count: int = 1) -> list[dict[str, Any]]:
    """The inbox, once so many calls wait."""
    rows: list[dict[str, Any]] = []

    def there() -> bool:
        rows[:] = program.here("inbox", "--json").json
        return len(rows) >= count

    until(there)
    return rows


def test_a_call_waits_is_seen_everywhere_and_runs_once_when_it_is_approved(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one", final="all done"), by_turn(touch("made"), "I made it"))) as api:
        with running(program, api, "run", "goal", *WAIT) as process:
            (call,) = waiting(program)
            (task,) = program.here("ps", "--json").json
            listed = program.here("ps").out
            shown = program.here("inbox").out
            assert not (program.cwd / "made").exists()
            done = program.here("approve", call["id"])
            out, err = process.communicate(timeout=30)
            again = program.here("approve", call["id"])
            denied = program.here("deny", call["id"], "-m", "too late")
            unknown = program.here("approve", "qnowhere0")
    assert set(call) >= {"id", "session_id", "task_id", "agent", "tool", "input", "suggested_rule", "asked_at"}
    assert (call["tool"], call["input"], call["agent"]) == ("Bash", {"command": "touch made"}, "worker")
    assert (call["task_id"], call["session_id"]) == (task["id"], task["session_id"])
    assert task["status"] == "running" and task["needs_approval"] == call["id"]
    assert "▲ waiting" in listed and call["id"] in listed
    assert "touch made" in shown and call["id"] in shown
    assert (done.code, done.out) == (0, f"{call['id']} approved\n"), done.err
    assert (process.returncode, out) == (0, "all done\n"), err
    assert (program.cwd / "made").exists()
    assert f"coordinator approve {call['id']}" in err
    assert again.code == denied.code == ExitCode.FAILED and "was approved already" in again.err
    assert unknown.code == ExitCode.NOT_FOUND


def test_a_denial_reaches_the_model_with_its_reason(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one"), by_turn(touch("made"), "then not"))) as api:
        with running(program, api, "run", "goal", *WAIT, "--output-format", "json") as process:
            (call,) = waiting(program)
            assert program.here("deny", call["id"], "-m", "not on my machine").code == 0
            out, err = process.communicate(timeout=30)
        told = [request.user_text for request in api.requests if "not on my machine" in request.user_text]
    assert process.returncode == 0, err
    assert told and not (program.cwd / "made").exists()
    (denial,) = json.loads(out)["permission_denials"]
    assert "not on my machine" in denial["reason"]


def test_without_the_flag_nobody_waits_and_a_limit_ends_waiting(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one"), by_turn(touch("made"), "then not"))) as api:
        denied = program("run", "goal", "--sandbox", "off", **with_api(program, api))
        late = program("run", "goal", *WAIT, "--approval-timeout", "1s", **with_api(program, api))
        told = [request.user_text for request in api.requests if "nobody answered within 1 second" in request.user_text]
    assert denied.code == ExitCode.NEEDS_PERSON
    assert late.code == 0 and told, late.err
    assert not (program.cwd / "made").exists()


def test_a_rule_given_with_the_answer_holds_for_what_waits_and_what_comes(program: Program) -> None:
    worker = by_turn(touch("first"), touch("third"), "done")
    script = fleet(coordinator("one", "two"), {"one": worker, "two": by_turn(touch("second"), "done")})
    with FakeAPI(script) as api:
        with running(program, api, "run", "goal", *WAIT) as process:
            calls = waiting(program, 2)
            first = next(call for call in calls if call["input"]["command"] == "touch first")
            other = program.here("approve", first["id"], "--match", "Bash(rm:*)")
            broken = program.here("approve", first["id"], "--match", "Bash(")
            assert program.here("approve", first["id"], "--match", "Bash(touch:*)").code == 0
            _, err = process.communicate(timeout=30)
    assert (other.code, broken.code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert process.returncode == 0, err
    assert {path.name for path in program.cwd.iterdir()} >= {"first", "second", "third"}
    assert program.here("inbox", "--json").json == []


def test_a_rule_alone_approves_what_it_covers_now(program: Program) -> None:
    script = fleet(coordinator("one", "two"), {"one": by_turn(touch("a1"), "done"), "two": by_turn(touch("b1"), "done")})
    with FakeAPI(script) as api:
        with running(program, api, "run", "goal", *WAIT) as process:
            calls = waiting(program, 2)
            assert program.here("approve", "--match", "Bash(touch a1)").code == 0
            until(lambda: (program.cwd / "a1").exists())
            (left,) = program.here("inbox", "--json").json
            assert program.here("deny", left["task_id"]).code == 0
            process.communicate(timeout=30)
    assert left["id"] in {call["id"] for call in calls} and not (program.cwd / "b1").exists()


@pytest.mark.parametrize("answered_meanwhile", [False, True])
def test_after_a_crash_the_same_question_stands_and_nothing_ran_unapproved(program: Program, answered_meanwhile: bool) -> None:
    with FakeAPI(fleet(coordinator("one", final="all done"), by_turn(touch("made"), "I made it"))) as api:
        process = start(program, api, "run", "goal", *WAIT)
        (call,) = waiting(program)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if answered_meanwhile:
            approved = program.here("approve", call["id"])
            assert approved.code == 0 and f"coordinator resume {call['session_id']}" in approved.err
        assert not (program.cwd / "made").exists()
        with running(program, api, "resume", call["session_id"], "-p", *WAIT) as resumed:
            if not answered_meanwhile:
                until(lambda: program.here("sessions", "show", call["session_id"], "--json").json["driven"])
                (again,) = waiting(program)
                assert again["id"] == call["id"]
                assert program.here("approve", call["id"]).code == 0
            out, err = resumed.communicate(timeout=30)
    assert (resumed.returncode, out) == (0, "all done\n"), err
    assert (program.cwd / "made").exists()


def test_who_waits_gives_the_slot_up(program: Program) -> None:
    script = fleet(coordinator("one", "two"), {"one": by_turn(touch("made"), "done"), "two": "report"})
    with FakeAPI(script) as api:
        with running(program, api, "run", "goal", *WAIT, "--max-workers", "1") as process:
            (call,) = waiting(program)
            until(lambda: [row["status"] for row in program.here("ps", "--json", "--all").json].count("completed") == 1)
            assert program.here("approve", call["id"]).code == 0
            _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


def test_a_killed_task_waits_no_longer(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one"), by_turn(touch("made"), "done"))) as api:
        with running(program, api, "run", "goal", *WAIT) as process:
            (call,) = waiting(program)
            assert program("kill", call["task_id"]).code == 0
            late = program.here("approve", call["id"])
            process.communicate(timeout=30)
    assert late.code == ExitCode.FAILED and "does not wait any more" in late.err
    assert program.here("inbox", "--json").json == [] and not (program.cwd / "made").exists()


def test_an_edit_is_shown_as_a_diff(program: Program) -> None:
    (Path(program.cwd) / "a.txt").write_text("old line\n")
    edit = tool_use("Edit", {"file_path": "a.txt", "old_string": "old line", "new_string": "new line"})
    worker = by_turn(message(tool_use("Read", {"file_path": "a.txt"})), message(edit), "done")
    with FakeAPI(fleet(coordinator("one"), worker)) as api, running(program, api, "run", "goal", *WAIT) as process:
        (call,) = waiting(program)
        shown = program.here("inbox").out
        assert program.here("approve", call["id"], "--always").code == 0
        process.communicate(timeout=30)
    assert "-old line" in shown and "+new line" in shown
    assert (Path(program.cwd) / "a.txt").read_text() == "new line\n"
