"""What a task changed: in its worktree, or on the branch that its machine pushed; shown, and taken over.

Raises `Refused` where there is nothing of it, or not any more.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.paths import Paths
from coordinator.runs.taking_over import (
    Change,
    Pushed,
    Refused,
    Taken,
    change_of,
    patch,
    patch_pushed,
    pushed_of,
    take_over,
    take_over_pushed,
)
from coordinator.views.terminal_text import one_line
from tasks.records import SessionRecord, TaskRecord


def patch_of(task: TaskRecord, session: SessionRecord, paths: Paths, *, stat: bool = False) -> tuple[bytes, tuple[str, ...]]:
    """What changed, as `git apply` takes it (or only which files, and how much); and what was left out, in words."""
    if (pushed := _pushed(task, session, paths)) is not None:
        return patch_pushed(pushed, stat=stat), ()
    return patch(_change(task), stat=stat)


def take_over_from(task: TaskRecord, session: SessionRecord, paths: Paths, *, sign: bool) -> Taken:
    """Merge it into what is checked out in the repository that the session works in."""
    if not _is_pushed(task, session):
        change = _change(task)
    if task.is_live:
        raise Refused(f"{task.id} is still {task.status}")
    if (pushed := _pushed(task, session, paths)) is not None:
        return take_over_pushed(pushed, sign=sign)
    return take_over(change, f"{one_line(task.description, 60)} ({task.id})", sign=sign)


def _is_pushed(task: TaskRecord, session: SessionRecord) -> bool:
    return bool(task.branch) and session.options.get("workspace") == "git"


def _pushed(task: TaskRecord, session: SessionRecord, paths: Paths) -> Pushed | None:
    """What the task pushed, where its session's machines share a repository."""
    if not task.branch or not _is_pushed(task, session):
        return None
    from coordinator.cluster import workspace
    from worker_agent.errors import ConfigError

    try:
        objects, commit = asyncio.run(workspace.fetched(session, task.branch, paths))
    except ConfigError as error:
        raise Refused(str(error)) from None
    return pushed_of(commit, objects, Path(session.cwd), task.branch)


def _change(task: TaskRecord) -> Change:
    if not task.worktree or not task.branch:
        raise Refused(f"{task.id} has no worktree: it worked in {task.cwd}, or its worktree was clean and was removed")
    if not Path(task.worktree).is_dir():
        raise Refused(f"the worktree {task.worktree} of {task.id} is gone; its branch may still be there: {task.branch}")
    return change_of(Path(task.worktree), Path(task.cwd or "."), task.branch)
