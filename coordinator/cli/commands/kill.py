"""`coordinator tasks kill`: the end of tasks, or of a session, proven by the process table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_any
from coordinator.cli.run_flags import Duration
from coordinator.views.exit_codes import ExitCode
from tasks import registry
from tasks.connection import Connection
from tasks.records import TaskRecord
from tasks.registry import TaskFilter
from tasks.states import LIVE
from tasks.watch import Watcher
from worker_agent.words import counted

BY = "user"


@click.command("kill", help="End tasks, or a session, with all their processes. Exits with 0 only if the end is proven.")
@click.argument("ids", nargs=-1, metavar="ID...", shell_complete=complete_tasks)
@click.option("-a", "--all", "everything", is_flag=True, help="All tasks that have not ended, of every session.")
@click.option("-t", "--time", "grace", type=Duration(), default=2.0, show_default=True, help="Between TERM and KILL.")
@click.option("--wrap-up", is_flag=True, help="Ask the worker for a last report first.")
@click.option(
    "--grace", "report", type=Duration(), default=60.0, show_default=True, help="With --wrap-up: time for the report."
)
@common_options
@pass_cli
def kill(cli: Context, ids: Sequence[str], everything: bool, grace: float, wrap_up: bool, report: float) -> int:
    if everything == bool(ids):
        raise Failure("kill needs the ids of tasks or sessions, or --all", ExitCode.USAGE)
    found = cli.database.read(_all_live) if everything else find_any(cli, ids)
    tasks = [one for one in found if isinstance(one, TaskRecord)]
    if wrap_up:
        _wrap_up(cli, [task.id for task in tasks if task.is_live], report)
    codes = [*_kill_tasks(cli, tasks, grace), *(_kill_session(cli, one.id, grace) for one in found if one not in tasks)]
    return max(codes, default=ExitCode.DONE)


def _all_live(conn: Connection) -> list[TaskRecord]:
    return registry.list_tasks(conn, TaskFilter(statuses=sorted(LIVE), texts=False))


def _kill_tasks(cli: Context, tasks: Sequence[TaskRecord], grace: float) -> Iterator[ExitCode]:
    from coordinator.other_processes.kill import kill_tasks

    for done in kill_tasks(cli.database, [task.id for task in tasks], by=BY, grace=grace) if tasks else ():
        cli.console.line(f"{done.task_id} {'killed' if done.changed else f'had ended: {done.status}'}")
        if done.undelivered:
            cli.console.note(f"{done.task_id}: not delivered: {counted(done.undelivered, 'message')}")
        yield _proven(cli, done.task_id, done.survivors)


def _kill_session(cli: Context, session_id: str, grace: float) -> ExitCode:
    from coordinator.other_processes.kill import kill_session

    done = kill_session(cli.database, session_id, by=BY, grace=grace)
    cli.console.line(f"{session_id} {'killed' if done.changed else 'had ended'}")
    return _proven(cli, session_id, done.survivors)


def _proven(cli: Context, id: str, survivors: Sequence[str]) -> ExitCode:
    for survivor in survivors:
        cli.console.error(f"{id}: still alive: {survivor}")
    return ExitCode.FAILED if survivors else ExitCode.DONE


def _wrap_up(cli: Context, ids: Sequence[str], report: float) -> None:
    """Ask for last reports, and wait for them as long as was granted."""
    until = time.monotonic() + report

    def ask(conn: Connection) -> list[str]:
        return [id for id in ids if registry.request_stop(conn, id, by=BY, wrap_up=report)]

    with Watcher(cli.database) as watcher:
        asked = cli.database.write(ask)
        while any(cli.database.read(lambda conn: [registry.get(conn, id).is_live for id in asked])):
            if (left := until - time.monotonic()) <= 0:
                return
            watcher.changed(left)
