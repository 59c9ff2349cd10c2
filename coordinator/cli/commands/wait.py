"""`coordinator tasks wait`: until tasks, or sessions, have ended, by being told of commits, not by asking all the time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_any, shown_sessions
from coordinator.cli.outcomes import ENDED, session_code, task_code, worst
from coordinator.cli.run_flags import Duration
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import Shown, shown_tasks
from tasks import registry, sessions
from tasks.connection import Connection
from tasks.records import SessionRecord, TaskRecord
from tasks.watch import Watcher

OVER = (*ENDED, "ended", "interrupted")
LOOK = 1.0  # seconds until a look without a change: owners die without a commit


@click.command(
    "wait",
    help="Wait until all tasks, or sessions, have ended. Exits with the worst of their codes, 124 when the time ran out.",
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_tasks)
@click.option("--any", "first", is_flag=True, help="Until one of them has ended.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="At most so long: 90s, 10m.")
@click.option("--json", "as_json", is_flag=True, help="The tasks as a list of objects, when the waiting is over.")
@common_options
@pass_cli
def wait(cli: Context, ids: Sequence[str], first: bool, timeout: float | None, as_json: bool) -> int:
    wanted = find_any(cli, ids)
    until = None if timeout is None else time.monotonic() + timeout
    with Watcher(cli.database) as watcher:
        while True:
            rows = [_look(cli, one) for one in wanted]
            over = [code for row, code in rows if row["status"] in OVER]
            if len(over) == len(rows) or (first and over):
                _tell(cli, [row for row, _ in rows], as_json)
                return worst(over)
            left = LOOK if until is None else min(LOOK, until - time.monotonic())
            if left <= 0:
                _tell(cli, [row for row, _ in rows], as_json)
                return ExitCode.WAIT_TIMEOUT
            watcher.changed(left)


def _look(cli: Context, one: TaskRecord | SessionRecord) -> tuple[Shown, ExitCode]:
    """How it stands now, and the exit code that this is. Of a session that nobody drives and that has not ended the
    status is `interrupted`, as it is of a task."""
    if isinstance(one, SessionRecord):
        (row,) = shown_sessions(cli, [cli.database.read(lambda conn: sessions.get(conn, one.id))])
        status = row["status"] if row["status"] == "ended" else "running" if row["driven"] else "interrupted"
        return row | {"status": status}, session_code(row)

    def read(conn: Connection) -> tuple[Shown, ExitCode]:
        task = registry.get(conn, one.id)
        (row,) = shown_tasks(conn, [task], cli.now())
        return row, task_code(row, task.error_class)

    return cli.database.read(read)


def _tell(cli: Context, rows: Sequence[Shown], as_json: bool) -> None:
    if as_json:
        cli.console.json(list(rows))
        return
    for row in rows:
        cli.console.line(f"{row['id']} {row['status']}")
        if row["status"] == "interrupted":
            session = row.get("session_id", row["id"])
            cli.console.note(f"{row['id']}: its owner is gone; `coordinator resume {session}` goes on with it")
