"""End a task from any process.

1. The end is stored first, guarded: the first terminal state wins.
2. A living owner unwinds the run itself, attaches the partial text and says so by an event. It is waited for, within a
   bound.
3. If the owner is gone, or does not answer, the processes are ended from here.
4. Either way the process table has the last word: what still lives is named.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from sqlalchemy import Connection

from coordinator.foreign import UNWOUND
from coordinator.processes import end_all
from tasks import events, leases, processes, registry, sessions
from tasks.db import Database
from tasks.records import SessionRecord, TaskRecord
from tasks.states import TaskStatus
from tasks.watch import Watcher
from worker_agent.process_tree import Survivor, find_tree

ANSWER_BOUND = 4.0  # seconds, beside the grace, for a living owner to say that it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReport:
    """`changed` False: it had ended before, in `status`. `ended` says that nothing of it runs, by the process table;
    `survivors` name what does."""

    task_id: str
    status: TaskStatus
    changed: bool
    ended: bool
    survivors: tuple[str, ...] = ()
    undelivered: int = 0


def kill_task(db: Database, task_id: str, *, by: str = "user", grace: float = 2.0) -> KillReport:
    """End the task and prove it. `grace` is in seconds, between TERM and KILL. Raises `NotFound`, `DatabaseError`."""
    since = db.read(events.last_id)

    def kill(conn: Connection) -> tuple[TaskRecord, SessionRecord, bool, int, list[str]]:
        task = registry.get(conn, task_id)
        done = registry.kill(conn, task_id, by=by, notify=True, end_reason=f"killed by {by}")
        session = sessions.get(conn, task.session_id)
        children = [child.id for child in registry.live(conn, task.session_id) if child.parent_id == task_id]
        return task, session, done.changed, len(done.undelivered), children

    task, session, changed, undelivered, children = db.write(kill)
    if changed and task.status is TaskStatus.RUNNING and _owner_lives(session):
        _await_owner(db, task_id, since, ANSWER_BOUND + grace)
    survivors = _end_here(db, task, grace)
    for child in children:
        survivors += kill_task(db, child, by=by, grace=grace).survivors
    status = db.read(lambda conn: registry.get(conn, task_id)).status
    return KillReport(
        task_id=task_id,
        status=status,
        changed=changed,
        ended=not survivors,
        survivors=survivors,
        undelivered=undelivered,
    )


def _owner_lives(session: SessionRecord) -> bool:
    return not leases.is_gone(session.owner, session.lease_expires_at, time.time(), leases.this_host())


def _await_owner(db: Database, task_id: str, since: int, bound: float) -> None:
    """Until the owner says that the task is unwound, or the bound is over."""
    until = time.monotonic() + bound
    watcher = Watcher(db)
    try:
        while (left := until - time.monotonic()) > 0:
            happened = db.read(lambda conn: events.since(conn, since, task_id=task_id))
            if any(event.kind == UNWOUND for event in happened):
                return
            watcher.changed(left)
    finally:
        watcher.close()


def _end_here(db: Database, task: TaskRecord, grace: float) -> tuple[str, ...]:
    """End what the process table still shows of the task."""
    host = leases.this_host()
    rows = [row for row in db.read(lambda conn: processes.list_processes(conn, task_id=task.id)) if row.host == host]
    if not rows and not find_tree(None, None, task.id):
        return ()
    roots = [(row.pid, row.started_at) for row in rows]
    survivors: list[Survivor] = asyncio.run(end_all(task.id, roots, grace))
    left = {survivor.pid for survivor in survivors}
    gone = [row for row in rows if row.pid not in left]
    if gone:
        db.write(lambda conn: [processes.remove(conn, r.pid, r.started_at, host=r.host) for r in gone])
    return tuple(map(str, survivors))
