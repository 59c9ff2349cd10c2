"""`coordinator tasks diff|apply`: what a worker changed in its worktree, and taking it over with git.

Git's output of a diff is data: on a terminal control sequences are taken out, in a pipe the bytes pass as they are, so that
`| git apply` works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_tasks
from coordinator.runs.changes import patch_of, take_over_from
from coordinator.runs.taking_over import Refused
from coordinator.views.terminal_text import literal, one_line
from tasks import sessions
from tasks.records import SessionRecord, TaskRecord

MAX_LINE = 2_000  # characters of what could not be done


@click.command("diff", help="Show what a task changed in its worktree, committed or not.")
@click.argument("task_id", metavar="ID", shell_complete=complete_tasks)
@click.option("--stat", is_flag=True, help="Only which files, and how much.")
@common_options
@pass_cli
def diff(cli: Context, task_id: str, stat: bool) -> None:
    task, session = _found(cli, task_id)
    with _in_words():
        changes, missing = patch_of(task, session, cli.paths, stat=stat)
    if missing:
        cli.console.note(f"shown as it stands in the worktree, without {one_line(', '.join(missing), MAX_LINE)}")
    if cli.console.is_terminal:
        cli.console.text(literal(changes.decode("utf-8", "replace")))
    else:
        cli.console.data(changes)


@click.command("apply", help="Merge a task's branch into the branch that is checked out in its repository.")
@click.argument("task_id", metavar="ID", shell_complete=complete_tasks)
@click.option("--no-sign", is_flag=True, help="Do not sign, even if git's settings ask for it.")
@common_options
@pass_cli
def apply(cli: Context, task_id: str, no_sign: bool) -> None:
    task, session = _found(cli, task_id)
    with _in_words():
        taken = take_over_from(task, session, cli.paths, sign=not no_sign)
    cli.console.text(literal(taken.said))
    if taken.left_out:
        cli.console.note(f"not run, since it is the repository's: {one_line(', '.join(taken.left_out), MAX_LINE)}")


def _found(cli: Context, ref: str) -> tuple[TaskRecord, SessionRecord]:
    (task,) = find_tasks(cli, [ref])
    return task, cli.database.read(lambda conn: sessions.get(conn, task.session_id))


@contextmanager
def _in_words() -> Iterator[None]:
    """What could not be done, as this command's failure, on one line without control characters."""
    try:
        yield
    except Refused as refused:
        raise Failure(one_line(str(refused), MAX_LINE)) from None
