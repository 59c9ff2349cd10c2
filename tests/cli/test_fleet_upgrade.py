"""A fleet that runs gets a newer program: its nodes are drained, its database is upgraded, new nodes go on with what waits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from coordinator.cluster.engine import STALLED
from coordinator.views.exit_codes import ExitCode
from tasks.upgrade import HEAD_REVISION
from tests.cli.test_cluster import Cluster, cluster, until
from tests.integration.scripts import by_turn, coordinator, fleet, notified
from tests.support.fake_api import Gate, message, text, tool_use
from tests.support.postgres import server
from tests.support.skips import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]


def alter(made: Cluster, *statements: str) -> None:
    for statement in statements:
        server().execute(statement, made.url.rpartition("/")[2])


def test_a_running_fleet_is_drained_upgraded_and_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    worker = by_turn(
        message(text("half", gate), tool_use("Bash", {"command": "echo once >> lines"})),
        tool_use("Bash", {"command": "echo twice >> lines"}),
        "a report",
    )
    with cluster(tmp_path, fleet(coordinator("one", final="all done"), worker)) as made:
        old = made.node("old")
        run = made.run()
        gate.wait_reached(timeout=40)
        assert made.look("nodes", "drain", "old").code == 0
        until(lambda: [one["status"] for one in made.look("nodes", "list", "--json").json] == ["draining"])
        asked = made.beat_of("old")
        # A node hears of it with a beat: before that a next turn may begin.
        until(lambda: made.beat_of("old") > asked + 2 * STALLED)
        gate.open()
        assert old.wait(timeout=30) == 0
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=30)
        ((id, task),) = made.tasks().items()
        assert (made.work / "lines").read_text() == "once\n"

        alter(made, "DROP TABLE commit_marks", "UPDATE alembic_version SET version_num = '0007'")  # as the old program left it
        assert made.look("db", "upgrade").code == 0
        assert made.sql("SELECT version_num AS is FROM alembic_version") == [{"is": HEAD_REVISION}]
        made.node("new")
        resumed = made.start("home-run", "resume", task["session_id"], "-p", "--permission-mode", "bypassPermissions")
        out, err = resumed.communicate(timeout=60)
        assert (resumed.returncode, out) == (0, "all done\n"), err
        assert made.tasks()[id]["status"] == "completed"
        assert (made.work / "lines").read_text().split() == ["once", "twice"]
        (last,) = [request for request in made.api.requests if notified(request)][-1:]
        assert len(notified(last)) == 1

        alter(made, "UPDATE nodes SET version = '0.0.1'")
        refused = made.start("home-late", "node", "--name", "late")
        _, said = refused.communicate(timeout=30)
        assert refused.returncode == ExitCode.USAGE and said.count("\n") == 1
        assert "node new is version 0.0.1" in said and "drain the nodes of the other version first" in said
        alter(made, "UPDATE alembic_version SET version_num = '9999'")
        refused = made.start("home-late", "node", "--name", "late")
        _, said = refused.communicate(timeout=30)
        assert refused.returncode == ExitCode.USAGE and said.count("\n") == 1 and "made by a newer version" in said
