"""`coordinator tasks diff|apply`: what a worker changed in its worktree, and taking it over with git.

Git's output of a diff is data: on a terminal control sequences are taken out, in a pipe the bytes pass as they are, so that
`| git apply` works.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from coordinator.cli.completing import complete_tasks
from coordinator.cli.context import Context, common_options, pass_cli
from coordinator.cli.failures import Failure
from coordinator.cli.lookup import find_tasks
from coordinator.cli.terminal_text import literal, one_line
from tasks.records import TaskRecord
from worker_agent.config import tool_environment


@click.command("diff", help="Show what a task changed in its worktree, committed or not.")
@click.argument("task_id", metavar="ID", shell_complete=complete_tasks)
@click.option("--stat", is_flag=True, help="Only which files, and how much.")
@common_options
@pass_cli
def diff(cli: Context, task_id: str, stat: bool) -> None:
    task = _with_worktree(cli, task_id)
    assert task.worktree is not None
    tree = Path(task.worktree)
    base = _base(task)
    _git(tree, "add", "--intent-to-add", "--all")  # so that new files are seen; nothing is staged
    changes = _git(tree, "diff", "--no-ext-diff", *(["--stat"] if stat else []), base, "--")
    cli.console.text(literal(changes) if cli.console.is_terminal else changes)


@click.command("apply", help="Merge a task's branch into the branch that is checked out in its repository.")
@click.argument("task_id", metavar="ID", shell_complete=complete_tasks)
@common_options
@pass_cli
def apply(cli: Context, task_id: str) -> None:
    task = _with_worktree(cli, task_id)
    assert task.worktree is not None and task.branch is not None
    tree, main = Path(task.worktree), _repository(task)
    if task.is_live:
        raise Failure(f"{task.id} is still {task.status}")
    if _git(tree, "status", "--porcelain"):
        _git(tree, "add", "--all")
        _git(tree, "commit", "--no-verify", "-m", f"{one_line(task.description, 60)} ({task.id})")
    if _git(main, "status", "--porcelain", "--untracked-files=no"):
        raise Failure(f"{main} has changes that are not committed; commit or stash them first")
    cli.console.text(literal(_git(main, "merge", "--no-edit", task.branch, undo=("merge", "--abort"))))


def _with_worktree(cli: Context, ref: str) -> TaskRecord:
    (task,) = find_tasks(cli, [ref])
    if not task.worktree or not task.branch:
        raise Failure(f"{task.id} has no worktree: it worked in {task.cwd}, or its worktree was clean and was removed")
    if not Path(task.worktree).is_dir():
        raise Failure(f"the worktree {task.worktree} of {task.id} is gone; its branch may still be there: {task.branch}")
    return task


def _repository(task: TaskRecord) -> Path:
    """The main tree, where the task's session works."""
    return Path(_git(Path(task.cwd or "."), "rev-parse", "--show-toplevel").strip())


def _base(task: TaskRecord) -> str:
    """The commit that the worktree and the main tree have in common."""
    assert task.branch is not None
    return _git(_repository(task), "merge-base", "HEAD", task.branch).strip()


def _git(directory: Path, *arguments: str, undo: tuple[str, ...] = ()) -> str:
    """Its stdout. Raises `Failure` with git's own first line."""
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], capture_output=True, text=True, errors="surrogateescape",
        stdin=subprocess.DEVNULL, env=tool_environment(),
    )  # fmt: skip
    if done.returncode:
        if undo:
            subprocess.run(["git", "-C", str(directory), *undo], capture_output=True, env=tool_environment())
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failure(f"git {arguments[0]}: {one_line(said[-1] if said else 'failed')}")
    return done.stdout
