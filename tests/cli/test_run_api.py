"""`coordinator run` against a strict fake of the Messages API: signals, limits, denials, consent, hostile text."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.seed import HOSTILE
from tests.integration.scripts import coordinator, fleet, spawn
from tests.support.fake_api import FakeAPI, Gate, http_error, message, text, tool_use


def with_api(program: Program, api: FakeAPI) -> dict[str, str]:
    """Summaries of tool rounds are off: their calls would run into the workers' scripts."""
    return {
        "ANTHROPIC_BASE_URL": api.base_url,
        "ANTHROPIC_API_KEY": "sk-test-0123456789abcdef",
        "COORDINATOR_LOOP_TOOL_USE_SUMMARIES": "0",
    }


def start(program: Program, api: FakeAPI, *arguments: str) -> subprocess.Popen[str]:
    return program.start(*arguments, **with_api(program, api))


def until(condition: Callable[[], bool]) -> None:
    """Asks now and again: who asks without a pause takes the time from the process that it waits for."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_real_run_prints_the_coordinators_last_answer(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one", "two", final=f"done {HOSTILE}"), "a report")) as api:
        ran = program("run", "goal", **with_api(program, api))
    assert ran.code == 0, ran.err
    assert ran.out == "done red [bold]markup[/bold]  end\n"
    assert ran.err.count("completed") == 2


def test_a_failed_call_is_one_line_and_an_exit_code(program: Program) -> None:
    with FakeAPI(http_error(401), allow_violations=True) as api:
        ran = program("run", "goal", **with_api(program, api))
    assert ran.code == ExitCode.NOT_AUTHENTICATED, ran.err
    assert ran.out == "" and "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("coordinator: the API refused the credentials: ") and "ANTHROPIC_API_KEY" in last
    assert "completed" not in ran.err


def test_the_turn_limit_is_exit_code_6_and_says_so_in_json(program: Program) -> None:
    with FakeAPI(fleet(lambda request: message("again", spawn("one", name=f"w{request.turns}")), "report")) as api:
        ran = program.here("run", "goal", "--max-turns", "2", "--output-format", "json", **with_api(program, api))
    assert ran.code == ExitCode.LIMIT
    assert (ran.json["subtype"], ran.json["is_error"], ran.json["terminal_reason"]) == ("error_max_turns", True, "max_turns")


@pytest.mark.parametrize("output", [(), ("--output-format", "json")])
def test_the_time_limit_ends_a_run_with_the_ids_that_still_ran(program: Program, output: tuple[str, ...]) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one"), message(text("begun", gate, "never")))) as api:
        ran = program("run", "goal", "--timeout", "5s", *output, **with_api(program, api))
        gate.open()
    (task,) = program.here("ps", "-q", "--session", program.here("sessions", "list", "-q").out.strip()).out.split()
    assert ran.code == ExitCode.LIVE_WORKERS, ran.err
    last = ran.err.splitlines()[-1]
    assert last == f"coordinator: the time limit of the run is reached; tasks that still ran: {task}"


def test_interrupting_once_lets_workers_end_twice_stops_them(program: Program) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one"), message(text("begun", gate, " never")))) as api:
        process = start(program, api, "run", "goal", "--output-format", "json")
        gate.wait_reached(timeout=20)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("interrupted")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        gate.open()
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    assert err.splitlines()[-1].endswith(f"`coordinator resume {json.loads(out)['session_id']}` goes on")
    assert [task["status"] for task in json.loads(out)["tasks"]] == ["killed"]


def test_a_third_interrupt_leaves_at_once(program: Program) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one"), message(text("begun", gate, " never")))) as api:
        process = start(program, api, "run", "goal")
        gate.wait_reached(timeout=20)
        assert process.stderr is not None
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            while not process.stderr.readline().startswith("interrupted"):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == ExitCode.INTERRUPTED
        gate.open()


def test_a_terminated_run_is_resumed_and_finishes(program: Program) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one", final="all done"), message(text("begun", gate, " and reported")))) as api:
        process = start(program, api, "run", "goal")
        gate.wait_reached(timeout=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == ExitCode.TERMINATED
        (task,) = program.here("ps", "--json").json
        assert task["status"] == "interrupted"
        gate.open()
        resumed = program("resume", task["session_id"], **with_api(program, api))
    assert (resumed.code, resumed.out) == (0, "all done\n"), resumed.err
    assert program.here("tasks", "show", task["id"], "--json").json["attempt"] == 2


def test_a_worker_is_killed_from_another_terminal_and_the_run_goes_on(program: Program) -> None:
    gate = Gate()
    workers = {"one": message(text("begun", gate, " never")), "two": "report"}
    with FakeAPI(fleet(coordinator("one", "two", final="all done"), workers)) as api:
        process = start(program, api, "run", "goal")
        gate.wait_reached(timeout=20)
        task = next(row["id"] for row in program.here("ps", "--json").json if row["description"] == "do one")
        killed = program("kill", task)
        assert (killed.code, killed.out) == (0, f"{task} killed\n"), killed.err
        out, err = process.communicate(timeout=20)
        gate.open()
    assert (process.returncode, out) == (0, "all done\n"), err
    assert program.here("tasks", "show", task, "--json").json["result"] == "begun"


def test_a_message_from_another_terminal_reaches_the_worker(program: Program) -> None:
    gate = Gate()

    def worker(request):
        if request.turns == 0:
            return message(text("first", gate), tool_use("Glob", {"pattern": "*"}))
        return message(f"heard: {'look here' in request.user_text}")

    with FakeAPI(fleet(coordinator(spawn("one", name="scout"), final="all done"), worker)) as api:
        process = start(program, api, "run", "goal")
        gate.wait_reached(timeout=20)
        assert program("send", "scout", "look here").out == "queued\n"
        gate.open()
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert program.here("tasks", "show", "scout", "--json").json["result"] == "heard: True"


def test_what_needs_consent_is_denied_and_listed_where_nobody_can_be_asked(program: Program, tmp_path: Path) -> None:
    target = program.cwd / "new.txt"

    def worker(request):
        if request.turns == 0:
            return message(tool_use("Write", {"file_path": str(target), "content": "x"}))
        return message("reported")

    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        denied = program.here("run", "goal", "--output-format", "json", **with_api(program, api))
        plain = program.here("run", "goal", **with_api(program, api))
        assert not target.exists()
        allowed = program.here("run", "goal", "--permission-mode", "acceptEdits", **with_api(program, api))
    assert [denial["tool_name"] for denial in denied.json["permission_denials"]] == ["Write"]
    assert "denied: Write" in plain.err
    assert allowed.code == 0 and target.read_text() == "x"


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_on_a_terminal_the_person_is_asked(answer: str, written: bool, program: Program) -> None:
    target = program.cwd / "new.txt"

    def worker(request):
        if request.turns == 0:
            return message(tool_use("Write", {"file_path": str(target), "content": "x"}))
        return message("reported")

    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            program.command("run", "goal"), stdin=slave, stdout=slave, stderr=slave, cwd=program.cwd,
            env=program.environment(TERM="xterm", **with_api(program, api)),
        )  # fmt: skip
        os.close(slave)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(master, 4096)
        os.write(master, answer.encode())
        until(lambda: _drain(master) is None and process.poll() is not None)
        os.close(master)
    assert process.returncode == 0
    assert target.exists() is written


def test_lines_about_what_tools_did_stay_on_the_terminal(program: Program) -> None:
    (program.cwd / "a.txt").write_text("x")

    def single(request):
        if request.tool_names:
            return tool_use("Read", {"file_path": "a.txt", "limit": request.turns + 1}) if request.turns < 3 else text("done")
        return text(f"Read it, {len([r for r in api.requests if not r.tool_names])}")

    with FakeAPI(single) as api:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            program.command("run", "--no-coordinator", "goal"), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
            cwd=program.cwd,
            env=program.environment(TERM="xterm", **with_api(program, api) | {"COORDINATOR_LOOP_TOOL_USE_SUMMARIES": "1"}),
        )  # fmt: skip
        os.close(slave)
        seen = _all_of(master)
        os.close(master)
        assert process.wait(timeout=20) == 0
    assert [seen.count(b"Read it, %d\r\n" % number) for number in (1, 2, 3)] == [1, 1, 1], seen


def _all_of(descriptor: int) -> bytes:
    """What is written until the last writer has gone."""
    seen = b""
    with suppress(OSError):
        while part := os.read(descriptor, 65_536):
            seen += part
    return seen


def _drain(descriptor: int) -> None:
    """Read what is there, so that the writer is not held up."""
    while select.select([descriptor], [], [], 0.02)[0]:
        try:
            if not os.read(descriptor, 65_536):
                return
        except OSError:
            return


def test_a_schema_bound_answer_is_in_the_result(program: Program) -> None:
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'

    def boss(request):
        return message('{"n": 3}' if "JSON" in request.user_text else "working")

    with FakeAPI(fleet(boss)) as api:
        ran = program.here("run", "goal", "--json-schema", schema, "--output-format", "json", **with_api(program, api))
    assert (ran.code, ran.json["structured_output"]) == (0, {"n": 3}), ran.err


def test_a_schema_that_no_answer_fits_is_asked_for_five_times_and_is_exit_code_8(program: Program) -> None:
    schema = '{"type":"object","required":["n"]}'
    with FakeAPI(fleet(lambda request: message("working"))) as api:
        ran = program.here("run", "goal", "--json-schema", schema, "--output-format", "json", **with_api(program, api))
    assert (ran.code, ran.json["subtype"]) == (ExitCode.UNVERIFIED, "error_max_structured_output_retries")
    assert ran.json["terminal_reason"] == "schema" and ran.json["result"] == "working"
    assert len(api.requests) == 1 + 5 and "never fitted the schema" in ran.err


def test_what_is_no_schema_is_refused_before_a_session_begins(program: Program) -> None:
    with FakeAPI("never asked") as api:
        ran = program.here("run", "goal", "--json-schema", '{"type":12}', **with_api(program, api))
    assert ran.code == ExitCode.USAGE and not api.requests
    assert program.here("sessions", "list", "--json").json == []


def test_a_verification_that_fails_is_exit_code_8(program: Program) -> None:
    with FakeAPI(fleet(lambda request: message("done"))) as api:
        ran = program.here("run", "goal", "--verify", "exit 3", "--permission-mode", "acceptEdits", **with_api(program, api))
    assert ran.code == ExitCode.UNVERIFIED, ran.err
