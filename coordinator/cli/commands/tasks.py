"""`coordinator tasks list|show`: the screen and `--json` show the same set, from the same objects."""

from __future__ import annotations

from collections.abc import Sequence

import click

from coordinator.cli import render
from coordinator.cli.completing import complete_sessions, complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.lookup import find_any, find_session
from coordinator.views.shown import Shown, listed_tasks, shown_tasks
from tasks.records import TaskRecord
from tasks.states import TaskStatus

STATUSES = (*(str(status) for status in TaskStatus), "interrupted")


@click.command("list", help="List the tasks of sessions that run or were interrupted within a day, what runs first.")
@click.option("-a", "--all", "everything", is_flag=True, help="Those of ended sessions and of older interrupted ones, too.")
@click.option("--session", metavar="ID", shell_complete=complete_sessions, help="Only this session's.")
@click.option("--status", type=click.Choice(STATUSES), multiple=True, help="Only those in this state; repeatable.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("-q", "--quiet", is_flag=True, help="Only ids, one a line.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
@common_options
@pass_cli
def list_tasks(
    cli: Context, everything: bool, session: str | None, status: Sequence[str], limit: int | None, quiet: bool, as_json: bool
) -> None:
    within = find_session(cli, session).id if session else None
    rows = cli.database.read(
        lambda conn: listed_tasks(conn, cli.now(), session_id=within, everything=everything, statuses=status, limit=limit)
    )
    if as_json:
        cli.console.json(rows)
    elif quiet:
        cli.console.text("".join(f"{row['id']}\n" for row in rows))
    elif rows:
        cli.console.grid(render.task_grid(rows))
    elif everything or within or not _any_ended(cli, status):
        cli.console.note("no tasks")
    else:
        cli.console.note("no tasks of sessions that run; `coordinator ps --all` lists those of ended ones, too")


def _any_ended(cli: Context, status: Sequence[str]) -> bool:
    """Whether `--all` would show something: who looks after a run has ended is told where its tasks are."""
    return bool(cli.database.read(lambda conn: listed_tasks(conn, cli.now(), everything=True, statuses=status, limit=1)))


@click.command("show", help="Show tasks with prompt, result, worktree and last activities; or sessions.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_tasks)
@click.option("--json", "as_json", is_flag=True, help="One object, or a list for several ids.")
@common_options
@pass_cli
def show(cli: Context, ids: Sequence[str], as_json: bool) -> None:
    from coordinator.cli.commands import sessions

    found = find_any(cli, ids)
    if as_json:
        rows = [_detail(cli, one) if isinstance(one, TaskRecord) else sessions.detail(cli, one) for one in found]
        cli.console.json(rows[0] if len(rows) == 1 else rows)
        return
    for i, one in enumerate(found):
        if i:
            cli.console.line()
        if isinstance(one, TaskRecord):
            for line in render.task_detail(_detail(cli, one)):
                cli.console.styled(line)
        else:
            sessions.show_session(cli, one)


def _detail(cli: Context, task: TaskRecord) -> Shown:
    (row,) = cli.database.read(lambda conn: shown_tasks(conn, [task], cli.now(), detail=True))
    return row
