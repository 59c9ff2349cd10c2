"""`coordinator tasks kill`: the end of a task, proven by the process table."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_tasks
from coordinator.cli.run_flags import Duration
from coordinator.exit_codes import ExitCode
from tasks import registry
from tasks.records import TaskRecord
from tasks.watch import Watcher

BY = "user"


@click.command("kill", help="End tasks with all their processes. Exits with 0 only if the end is proven.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_tasks)
@click.option("-t", "--time", "grace", type=Duration(), default=2.0, show_default=True, help="Between TERM and KILL.")
@click.option("--wrap-up", is_flag=True, help="Ask the worker for a last report first.")
@click.option(
    "--grace", "report", type=Duration(), default=60.0, show_default=True, help="With --wrap-up: time for the report."
)
@common_options
@pass_cli
def kill(cli: Context, ids: Sequence[str], grace: float, wrap_up: bool, report: float) -> int:
    codes = [_kill(cli, task, grace, report if wrap_up else None) for task in find_tasks(cli, ids)]
    return max(codes)


def _kill(cli: Context, task: TaskRecord, grace: float, report: float | None) -> ExitCode:
    from coordinator.kill import kill_task

    if report is not None and task.is_live:
        _wrap_up(cli, task.id, report)
    done = kill_task(cli.database, task.id, by=BY, grace=grace)
    cli.console.line(f"{task.id} {'killed' if done.changed else f'had ended: {done.status}'}")
    if done.undelivered:
        cli.console.note(f"{task.id}: {done.undelivered} messages were not delivered")
    for survivor in done.survivors:
        cli.console.error(f"{task.id}: still alive: {survivor}")
    return ExitCode.DONE if done.ended else ExitCode.FAILED


def _wrap_up(cli: Context, task_id: str, report: float) -> None:
    """Ask for a last report, and wait for it as long as was granted."""
    until = time.monotonic() + report
    with Watcher(cli.database) as watcher:
        asked = cli.database.write(lambda conn: registry.request_stop(conn, task_id, by=BY, wrap_up=report))
        while asked and cli.database.read(lambda conn: registry.get(conn, task_id)).is_live:
            if (left := until - time.monotonic()) <= 0:
                return
            watcher.changed(left)
