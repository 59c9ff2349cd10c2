"""A run that was taken up again stores what it does, whatever other commands come and go meanwhile."""

from __future__ import annotations

import os
import sys

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_run_api import start, with_api
from tests.integration.scripts import by_turn, coordinator, fleet
from tests.support.fake_api import FakeAPI, Gate, message, text, tool_use


def database_files(pid: int) -> list[str]:
    """What the process holds open of the database, as the kernel names it."""
    names = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            names.append(os.readlink(entry.path))
        except FileNotFoundError:
            continue  # it was closed while we looked
    return [os.path.basename(name) for name in names if "coordinator.db" in name]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("other", [("tasks", "list"), ("db", "sql", "SELECT 1"), ("doctor",), ("db", "backup")])
def test_a_resumed_run_keeps_its_files_while_other_commands_come_and_go(program: Program, other: tuple[str, ...]) -> None:
    first, second = Gate(), Gate()
    worker = by_turn(
        message(text("begun", first), tool_use("Bash", {"command": "echo once >> lines"})),
        message("between", tool_use("Bash", {"command": "echo twice >> lines"})),
        message(text("nearly", second, " done")),
    )
    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        killed = start(program, api, "run", "goal", "--permission-mode", "bypassPermissions")
        first.wait_reached(timeout=20)
        (task,) = program("ps", "--json").json
        killed.kill()
        killed.communicate()
        first.open()
        resumed = start(program, api, "resume", task["session_id"], "-p")
        second.wait_reached(timeout=20)
        for _ in range(2):
            assert program(*other, **with_api(program, api)).code in (ExitCode.DONE, ExitCode.FAILED)
        held = database_files(resumed.pid)
        second.open()
        out, err = resumed.communicate(timeout=20)
    assert {"coordinator.db", "coordinator.db-wal", "coordinator.db-shm"} <= set(held), held
    assert not any("deleted" in name for name in held)
    assert (resumed.returncode, out) == (0, "all done\n"), err
    shown = program("tasks", "show", task["id"], "--json").json
    assert (shown["status"], shown["attempt"], shown["result"]) == ("completed", 2, "nearly done")
    (session,) = program("sessions", "list", "--json").json
    assert session["status"] == "ended"
    waiting = program("db", "sql", "SELECT count(*) AS n FROM deliveries WHERE status = 'waiting'", "--json").json
    assert waiting == [{"n": 0}]
    assert (program.cwd / "lines").read_text().split() == ["once", "twice"]
