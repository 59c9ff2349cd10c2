"""Ends asked for from outside, and those of what the program stands on: many kills at once, sessions by their id, early
signals, closed streams, a database that goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.seed import seeded
from tests.cli.test_run_api import start, until, with_api
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, Gate, message, text, tool_use


@pytest.mark.parametrize("by_ids", [True, False])
def test_killing_many_at_once_lets_none_of_the_waiting_begin(program: Program, by_ids: bool) -> None:
    gate = Gate()
    many = [f"part {n}" for n in range(12)]
    with FakeAPI(fleet(coordinator(*many), message(text("begun", gate, "never")))) as api:
        process = start(program, api, "run", "goal", "--max-workers", "2", "--output-format", "json")
        gate.wait_reached(timeout=20)
        until(lambda: sum("Agent" not in request.tool_names for request in api.requests) == 2)
        ids = program.here("ps", "-q").out.split()
        killed = program("kill", *(ids if by_ids else ["--all"]))
        gate.open()
        process.communicate(timeout=30)
        begun = [request for request in api.requests if "Agent" not in request.tool_names]
    assert killed.code == 0, killed.err
    assert len(ids) == 12
    assert sorted(killed.out.splitlines()) == sorted(f"{id} killed" for id in ids)
    assert len(begun) == 2


def test_a_session_in_the_background_is_waited_for_shown_and_removed_by_the_id_it_printed(program: Program) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one", final="the answer"), message(text("be", gate, "gun")))) as api:
        session_id = program("run", "goal", "--bg", **with_api(program, api)).out.strip()
        gate.wait_reached(timeout=20)
        early = program("wait", session_id, "--timeout", "0.1s")
        gate.open()
        waited = program("wait", session_id)
        shown = program.here("tasks", "show", session_id, "--json").json
        assert program.here("sessions", "show", session_id, "--json").json == shown
        logged = program.here("logs", session_id)
        ended = program("kill", session_id)
        removed = program("sessions", "rm", session_id, "--yes")
    assert (early.code, early.out) == (ExitCode.WAIT_TIMEOUT, f"{session_id} running\n")
    assert (waited.code, waited.out) == (0, f"{session_id} ended\n")
    assert (shown["result"], shown["status"], len(shown["tasks"])) == ("the answer", "ended", 1)
    assert logged.out.endswith("the answer\n")
    assert (ended.code, ended.out) == (0, f"{session_id} had ended\n")
    assert (removed.code, removed.out) == (0, f"{session_id}\n"), removed.err


def test_killing_a_session_ends_its_process_its_tasks_and_what_they_run(program: Program) -> None:
    worker = message(tool_use("Bash", {"command": "touch ready; sleep 300"}))
    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        process = start(program, api, "run", "goal", "--permission-mode", "bypassPermissions")
        until((program.cwd / "ready").exists)
        session_id = program.here("sessions", "list", "-q").out.strip()
        killed = program("kill", session_id)
        process.communicate(timeout=20)
    assert (killed.code, killed.out) == (0, f"{session_id} killed\n"), killed.err
    assert process.returncode == ExitCode.TERMINATED
    shown = program.here("sessions", "show", session_id, "--json").json
    assert (shown["status"], shown["end_reason"], shown["driven"]) == ("ended", "killed by user", False)
    assert shown["state"] == "failed"
    assert [task["status"] for task in shown["tasks"]] == ["killed"]
    assert program("wait", session_id).code == ExitCode.FAILED


def test_retrying_in_a_session_that_has_ended_names_it_and_makes_nothing(program: Program) -> None:
    with seeded(program) as seed:
        task = seed.task()
        seed.finish(task, "failed", error="it broke", error_class="server")
        seed.end()
        ran = program("tasks", "retry", task.id)
        assert (ran.code, ran.out) == (ExitCode.FAILED, "")
        assert f"coordinator resume {seed.session_id}" in ran.err
        assert program.here("ps", "-aq").out.split() == [task.id]


def test_following_a_shell_in_the_background_prints_what_it_writes(program: Program) -> None:
    shell = tool_use(
        "Bash", {"command": "echo one; until test -e go; do sleep 0.05; done; printf two", "run_in_background": True}
    )
    with FakeAPI(by_turn(message("starting", shell), message("waiting"), message("done"))) as api:
        process = start(program, api, "run", "goal", "--no-coordinator", "--permission-mode", "bypassPermissions")
        until(lambda: bool(program.here("ps", "-q").out))
        id = program.here("ps", "-q").out.strip()
        following = program.start("logs", "-f", id)
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        (program.cwd / "go").touch()
        assert following.stdout.read() == "two\n"
        assert following.wait(timeout=20) == 0
        process.communicate(timeout=20)
    assert program.here("logs", id, "--tail", "1").out == "two\n"
    assert [line["text"] for line in program.here("logs", id, "--json").lines] == ["one", "two"]


@pytest.mark.parametrize("output", [(), ("--output-format", "json")])
def test_a_database_that_is_deleted_while_in_use_is_said(program: Program, output: tuple[str, ...]) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one"), message(text("begun", gate, " and done")))) as api:
        process = start(program, api, "run", "goal", *output)
        gate.wait_reached(timeout=20)
        for file in (program.home / "data").glob("coordinator.db*"):
            file.unlink()
        gate.open()
        _, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.FAILED
    last = err.splitlines()[-1]
    assert last.startswith("coordinator: the database ") and "was deleted" in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        pytest.param(signal.SIGTERM, ExitCode.TERMINATED, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, ExitCode.TERMINATED, marks=pytest.mark.slow),
    ],
)
def test_a_signal_at_any_early_moment_is_no_traceback(program: Program, number: signal.Signals, code: ExitCode) -> None:
    """From the moment at which Python has begun with our code: its own start cannot be caught."""
    for delay in (0.0, 0.05, 0.1, 0.2, 0.4):
        with FakeAPI(message(text("begun", Gate(), "never"))) as api:  # so that the run has not ended before a late signal
            process = start(program, api, "run", "goal")
            until(lambda pid=process.pid: b"coordinator" in Path(f"/proc/{pid}/maps").read_bytes() or begun(pid))
            time.sleep(delay)
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
        assert process.returncode == code, (delay, err)
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGINT, ExitCode.INTERRUPTED, "interrupted"), (signal.SIGHUP, ExitCode.TERMINATED, "terminated")],
)
def test_a_signal_while_modules_are_imported_gives_the_one_result_object(
    program: Program, number: signal.Signals, code: ExitCode, reason: str
) -> None:
    """Nothing is raised into an import: half an import leaves its lock taken, and other threads wait for ever."""
    hold = program.cwd / "hold"
    os.mkfifo(hold)
    (program.cwd / "sitecustomize.py").write_text(HELD_IMPORT.format(hold=str(hold)))
    process = program.start("run", "goal", "--offline", "--output-format", "stream-json", PYTHONPATH=str(program.cwd))
    with hold.open("w"):  # opens once the import is under way
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, "")
    (line,) = out.splitlines()
    assert json.loads(line)["terminal_reason"] == reason


# Whoever imports what drives a run stands in a read, in the middle of that import, until the signal comes.
HELD_IMPORT = """
import importlib.abc, sys

class Hold(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "coordinator.cli.drive":
            open({hold!r}).read()

sys.meta_path.insert(0, Hold())
"""


def begun(pid: int) -> bool:
    """Whether the process handles the signals itself by now, as the kernel says."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return all(caught >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def test_a_second_hangup_does_not_change_the_code(program: Program) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one"), message(text("begun", gate, "never")))) as api:
        process = start(program, api, "run", "goal")
        gate.wait_reached(timeout=20)
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.002)
        gate.open()
        process.communicate()
    assert process.returncode == ExitCode.TERMINATED


def test_a_pipe_in_which_nothing_comes_does_not_hold_a_session_up(program: Program) -> None:
    with FakeAPI(by_turn(message("first"), message("second"))) as api:
        assert program("run", "goal", "-p", **with_api(program, api)).code == 0
        session_id = program.here("sessions", "list", "-q").out.strip()
        read, write = os.pipe()
        quiet = subprocess.run(
            program.command("run", "-p", "-r", session_id), stdin=read, capture_output=True, text=True, cwd=program.cwd,
            env=program.environment(**with_api(program, api)), timeout=30,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        piped = program("run", "-p", "-r", session_id, stdin="go on", **with_api(program, api))
    assert quiet.returncode == 0 and "standard input" in quiet.stderr
    assert (piped.code, piped.out) == (0, "second\n")


def test_a_closed_stderr_loses_neither_the_answer_nor_the_database(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one", final="the answer"), "a report")) as api:
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", *program.command("run", "goal")], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, cwd=program.cwd, env=program.environment(**with_api(program, api)), timeout=30,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "the answer\n")
    assert program("doctor").err == "" or "damaged" not in program("doctor").err


def test_the_scratchpad_is_written_unasked_without_a_person(program: Program) -> None:
    def place(request) -> str:
        return next(word for word in request.system_text.split() if "/scratch/" in word)

    def worker(request):
        note, more = f"{place(request)}/note.txt", f"{place(request)}/more.txt"
        if request.turns == 0:
            return message(tool_use("Write", {"file_path": note, "content": "found it"}))
        if request.turns == 1:
            return message(tool_use("Bash", {"command": f"cat {note} > {more}"}))
        if request.turns == 2:
            return message(tool_use("Write", {"file_path": str(program.cwd / "no.txt"), "content": "not asked for"}))
        return message("done")

    with FakeAPI(fleet(coordinator("one"), worker)) as api:
        ran = program("run", "goal", "--output-format", "json", **with_api(program, api))
        planned = program("run", "goal", "--plan-only", "--output-format", "json", **with_api(program, api))
    session_id = ran.json["session_id"]
    scratch = program.home / "data" / "scratch"
    assert (scratch / session_id / "more.txt").read_text() == "found it"
    assert [denied["tool_name"] for denied in ran.json["permission_denials"]] == ["Write"]
    assert len(planned.json["permission_denials"]) == 3
    assert list((scratch / planned.json["session_id"]).iterdir()) == []
