"""How a run leaves when its terminal goes away, and when it is interrupted a third time."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Callable

import psutil
import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_run_api import start, until, with_api
from tests.integration.scripts import coordinator, fleet
from tests.support.fake_api import FakeAPI, Gate, message, text, tool_use

STUBBORN = """trap '' TERM HUP INT; setsid bash -c "trap '' TERM HUP INT; touch ready; while :; do sleep 0.2; done" & while :; do sleep 0.2; done"""


def on_terminal(program: Program, api: FakeAPI, *arguments: str, leads: bool) -> tuple[subprocess.Popen[bytes], int]:
    """The program on a terminal of its own, and the other end of that; without `leads` nothing sends it a SIGHUP."""
    ours, theirs = pty.openpty()

    def control() -> None:
        if leads:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        program.command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=program.cwd, start_new_session=True,
        env=program.environment(TERM="xterm", **with_api(program, api)), preexec_fn=control,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


def drain_until(terminal: int, reached: Callable[[], bool]) -> None:
    """A terminal that nobody reads would stop the program."""
    os.set_blocking(terminal, False)
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end, "it did not come that far"
        try:
            os.read(terminal, 65_536)
        except BlockingIOError:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "leads"),
    [
        (("run", "goal"), True),
        (("run", "goal"), False),
        (("chat", "goal"), True),
        pytest.param(("chat", "goal"), False, marks=pytest.mark.slow),
        pytest.param(("run", "-p", "goal"), True, marks=pytest.mark.slow),
        pytest.param(("run", "-p", "goal"), False, marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_terminal_is_closed_ends_as_by_a_hangup_and_goes_on_later(
    program: Program, arguments: tuple[str, ...], leads: bool
) -> None:
    gate = Gate()
    with FakeAPI(fleet(coordinator("one", final="all done"), message(text("begun", gate, " and reported")))) as api:
        process, terminal = on_terminal(program, api, *arguments, leads=leads)
        drain_until(terminal, gate.reached.is_set)
        os.close(terminal)
        code = process.wait(timeout=20)
        (task,) = program("ps", "--json").json
        gate.open()
        resumed = program("resume", task["session_id"], "-p", **with_api(program, api))
    assert (code, task["status"]) == (ExitCode.TERMINATED, "interrupted")
    assert (resumed.code, resumed.out) == (0, "all done\n"), resumed.err


def test_a_third_interrupt_kills_what_does_not_listen_before_it_leaves(program: Program) -> None:
    with FakeAPI(fleet(coordinator("one"), message(tool_use("Bash", {"command": STUBBORN})))) as api:
        process = start(program, api, "run", "goal", "--permission-mode", "bypassPermissions")
        until((program.cwd / "ready").exists)
        until(lambda: len(psutil.Process(process.pid).children(recursive=True)) >= 3)
        below = psutil.Process(process.pid).children(recursive=True)
        assert process.stderr is not None
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            while not process.stderr.readline().startswith("interrupted"):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=20)
    assert code == ExitCode.INTERRUPTED
    assert len(below) >= 2  # a `sleep` may have gone meanwhile
    assert [found.pid for found in psutil.wait_procs(below, timeout=0)[1] if found.status() != psutil.STATUS_ZOMBIE] == []
