"""`coordinator tasks wait`: until tasks have ended, by being told of commits, not by asking all the time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from sqlalchemy import Connection

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import Shown, find_tasks, shown_tasks
from coordinator.cli.outcomes import ENDED, task_code, worst
from coordinator.cli.run_flags import Duration
from coordinator.exit_codes import ExitCode
from tasks import registry
from tasks.watch import Watcher

LOOK = 1.0  # seconds until a look without a change: owners die without a commit


@click.command("wait", help="Wait until all tasks have ended. Exits with the worst of their codes, 124 when the time ran out.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_tasks)
@click.option("--any", "first", is_flag=True, help="Until one of them has ended.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="At most so long: 90s, 10m.")
@click.option("--json", "as_json", is_flag=True, help="The tasks as a list of objects, when the waiting is over.")
@common_options
@pass_cli
def wait(cli: Context, ids: Sequence[str], first: bool, timeout: float | None, as_json: bool) -> int:
    wanted = [task.id for task in find_tasks(cli, ids)]
    until = None if timeout is None else time.monotonic() + timeout
    with Watcher(cli.database) as watcher:
        while True:
            rows = cli.database.read(lambda conn: _look(conn, wanted, cli.now()))
            over = [row for row in rows if row["status"] in (*ENDED, "interrupted")]
            if len(over) == len(rows) or (first and over):
                break
            left = LOOK if until is None else min(LOOK, until - time.monotonic())
            if left <= 0:
                _tell(cli, rows, as_json)
                return ExitCode.WAIT_TIMEOUT
            watcher.changed(left)
    _tell(cli, rows, as_json)
    classes = cli.database.read(lambda conn: {id: registry.get(conn, id).error_class for id in wanted})
    return worst(task_code(row, classes[row["id"]]) for row in over)


def _look(conn: Connection, wanted: Sequence[str], now: float) -> list[Shown]:
    return shown_tasks(conn, [registry.get(conn, id) for id in wanted], now)


def _tell(cli: Context, rows: Sequence[Shown], as_json: bool) -> None:
    if as_json:
        cli.console.json(list(rows))
        return
    for row in rows:
        cli.console.line(f"{row['id']} {row['status']}")
        if row["status"] == "interrupted":
            cli.console.note(f"{row['id']}: its owner is gone; `coordinator resume {row['session_id']}` goes on with it")
