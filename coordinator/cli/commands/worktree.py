"""`coordinator tasks diff|apply`: what a worker changed in its worktree, and taking it over with git.

Git's output of a diff is data: on a terminal control sequences are taken out, in a pipe the bytes pass as they are, so that
`| git apply` works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_tasks
from coordinator.runs.taking_over import (
    Change,
    Pushed,
    Refused,
    change_of,
    patch,
    patch_pushed,
    pushed_of,
    take_over,
    take_over_pushed,
)
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
    task = _with_work(cli, task_id)
    missing: tuple[str, ...] = ()
    with _in_words():
        if (pushed := _pushed(cli, task)) is not None:
            changes = patch_pushed(pushed, stat=stat)
        else:
            changes, missing = patch(_change(task), stat=stat)
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
    task = _with_work(cli, task_id)
    if task.is_live:
        raise Failure(f"{task.id} is still {task.status}")
    with _in_words():
        if (pushed := _pushed(cli, task)) is not None:
            taken = take_over_pushed(pushed, sign=not no_sign)
        else:
            taken = take_over(_change(task), f"{one_line(task.description, 60)} ({task.id})", sign=not no_sign)
    cli.console.text(literal(taken.said))
    if taken.left_out:
        cli.console.note(f"not run, since it is the repository's: {one_line(', '.join(taken.left_out), MAX_LINE)}")


def _with_work(cli: Context, ref: str) -> TaskRecord:
    """A task that worked in a worktree that is there, or on a branch of the session's remote."""
    (task,) = find_tasks(cli, [ref])
    if task.branch and _session(cli, task).options.get("workspace") == "git":
        return task
    if not task.worktree or not task.branch:
        raise Failure(f"{task.id} has no worktree: it worked in {task.cwd}, or its worktree was clean and was removed")
    if not Path(task.worktree).is_dir():
        raise Failure(f"the worktree {task.worktree} of {task.id} is gone; its branch may still be there: {task.branch}")
    return task


def _session(cli: Context, task: TaskRecord) -> SessionRecord:
    return cli.database.read(lambda conn: sessions.get(conn, task.session_id))


def _pushed(cli: Context, task: TaskRecord) -> Pushed | None:
    """What the task pushed, where its session's machines share a repository."""
    session = _session(cli, task)
    if not task.branch or session.options.get("workspace") != "git":
        return None
    import asyncio

    from coordinator.cluster import workspace
    from worker_agent.errors import ConfigError

    try:
        objects, commit = asyncio.run(workspace.fetched(session, task.branch, cli.paths))
    except ConfigError as error:
        raise Refused(str(error)) from None
    return pushed_of(commit, objects, Path(session.cwd), task.branch)


def _change(task: TaskRecord) -> Change:
    assert task.worktree is not None and task.branch is not None
    return change_of(Path(task.worktree), Path(task.cwd or "."), task.branch)


@contextmanager
def _in_words() -> Iterator[None]:
    """What could not be done, as this command's failure, on one line without control characters."""
    try:
        yield
    except Refused as refused:
        raise Failure(one_line(str(refused), MAX_LINE)) from None
