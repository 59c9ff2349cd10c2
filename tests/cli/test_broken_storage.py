"""What a run does when nothing more can be stored: it ends by itself, says so in one line, and can be gone on with."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.integration.scripts import coordinator, fleet
from tests.support.fake_api import FakeAPI, message, tool_use

LARGEST_FILE = 600  # blocks of 512 or 1,024 bytes, as the shell counts: the database's log grows to several times that
TURNS = 20


def talkative(request: Any) -> Any:
    """A worker whose tools answer much, until it has had enough turns."""
    if request.turns >= TURNS:
        return message("a report")
    return message("more", tool_use("Bash", {"command": f"echo {request.turns}; head -c 25000 /dev/zero | tr '\\0' x"}))


def confined(program: Program, api: FakeAPI, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run where no file can grow beyond a bound."""
    limit = f'ulimit -f {LARGEST_FILE}; exec "$@"'
    return subprocess.run(
        ["sh", "-c", limit, "sh", *program.command(*arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        cwd=program.cwd, env=program.environment(**with_api(program, api)), timeout=50,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_run_that_cannot_store_ends_in_one_line_and_goes_on_later(program: Program, output: str) -> None:
    arguments = ("--permission-mode", "bypassPermissions", "--output-format", output)
    with FakeAPI(fleet(coordinator("one", "two"), talkative)) as api:
        ran = confined(program, api, "run", "goal", *arguments)
        (session,) = program("sessions", "list", "--json").json
        after = program("tasks", "list", "--all", "--json").json
        resumed = program("resume", session["id"], "--output-format", "json", **with_api(program, api))
    assert ran.returncode == ExitCode.FAILED, ran.stderr
    assert "Traceback" not in ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("coordinator: the database ") and f"`coordinator resume {session['id']}`" in last
    if output == "json":
        said = json.loads(ran.stdout)
        assert (said["terminal_reason"], said["is_error"], said["session_id"]) == ("store", True, session["id"])
        assert "coordinator.db" in said["errors"][0]
    assert session["status"] == "open"
    assert [task["status"] for task in after] == ["interrupted", "interrupted"]
    assert resumed.code == 0, resumed.err
    assert [task["status"] for task in resumed.json["tasks"]] == ["completed", "completed"], [
        task["error"] for task in resumed.json["tasks"]
    ]
