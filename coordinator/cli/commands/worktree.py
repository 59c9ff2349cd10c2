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
    base = _git(_repository(task), "merge-base", "HEAD", _head(tree)).strip()
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
    cli.console.text(literal(_merge(main, _wanted(task, tree))))


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


def _head(tree: Path) -> str:
    return _git(tree, "rev-parse", "--verify", "HEAD^{commit}").strip()


def _wanted(task: TaskRecord, tree: Path) -> str:
    """What is to be merged: the task's branch, or where the worktree stands when the worker left the branch behind."""
    assert task.branch is not None
    head = _head(tree)
    if _run(tree, "merge-base", "--is-ancestor", head, task.branch).returncode == 0:
        return task.branch
    if _run(tree, "merge-base", "--is-ancestor", task.branch, head).returncode == 0:
        return head
    raise Failure(
        f"the worktree stands at {head[:12]}, which its branch {task.branch} does not contain, nor the other way round;"
        f" nothing was applied. Merge what you want by hand: git merge {task.branch}, git merge {head[:12]}"
    )


def _merge(main: Path, wanted: str) -> str:
    """Three-way, whole or not at all. Raises `Failure` that names the files in conflict."""
    done = _run(main, "merge", "--no-edit", wanted)
    if done.returncode == 0:
        return done.stdout
    conflicts = _run(main, "diff", "--name-only", "--diff-filter=U", "-z").stdout.split("\0")[:-1]
    _run(main, "merge", "--abort")
    if conflicts:
        names = ", ".join(one_line(name) for name in conflicts[:20]) + (" …" if len(conflicts) > 20 else "")
        raise Failure(f"conflict in {names}; nothing was applied. To merge by hand: git merge {wanted}")
    raise Failure(f"nothing was applied. git merge: {_words(done)}")


def _git(directory: Path, *arguments: str) -> str:
    """Its stdout. Raises `Failure` with git's own words."""
    done = _run(directory, *arguments)
    if done.returncode:
        raise Failure(f"git {arguments[0]}: {_words(done)}")
    return done.stdout


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(directory), *arguments], capture_output=True, text=True, errors="surrogateescape",
        stdin=subprocess.DEVNULL, env=tool_environment(),
    )  # fmt: skip


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """What git complains of, on one line, without its hints."""
    said = (done.stderr or done.stdout).strip().splitlines()
    return one_line(" ".join(line.strip() for line in said if not line.startswith("hint:")) or "failed", 400)
