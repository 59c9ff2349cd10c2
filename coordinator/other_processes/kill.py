"""End tasks from any process.

1. The ends are stored first, all in one transaction and guarded: the first terminal state wins, and none of the tasks
   that wait for a slot begins while others are ended.
2. Living owners unwind the runs themselves, attach the partial texts and say so by an event. They are waited for, side
   by side, within a bound.
3. If an owner is gone, or does not answer, the processes are ended from here.
4. Either way the process table has the last word: what still lives is named. Of another machine's only its owner can say;
   if that does not, the end is stored and fenced but not proven, and that is said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from coordinator.other_processes.foreign import UNWOUND
from coordinator.runs.processes import end_all, servers_of
from tasks import events, leases, nodes, processes, registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import ProcessRecord, SessionRecord, SessionStatus, TaskRecord
from tasks.states import TaskStatus
from tasks.watch import Watcher
from worker_agent.process_tree import Survivor, find_tree

ANSWER_BOUND = 4.0  # seconds, beside the grace, for a living owner to say that it is done

LOOK = 0.2  # seconds until a look without a change: a process may die without a commit


class KillReport(Struct, frozen=True, kw_only=True):
    """`changed` False: it had ended before, in `status`. `ended` says that nothing of it runs, by the process table;
    `survivors` name what does."""

    task_id: str
    status: TaskStatus
    changed: bool
    ended: bool
    survivors: tuple[str, ...] = ()
    undelivered: int = 0


def kill_task(db: Database, task_id: str, *, by: str = "user", grace: float = 2.0) -> KillReport:
    """As `kill_tasks`, for one."""
    return kill_tasks(db, [task_id], by=by, grace=grace)[0]


def kill_tasks(db: Database, ids: Sequence[str], *, by: str = "user", grace: float = 2.0) -> list[KillReport]:
    """End the tasks and what they began, and prove it; a report for each of `ids`, in their order. `grace` is in
    seconds, between TERM and KILL. Raises `NotFound`, `DatabaseError`."""
    wanted = list(dict.fromkeys(ids))
    since, marked = db.write(lambda conn: (events.last_id(conn), _mark(conn, wanted, by)))
    waiting = {one.task.id for one in marked if one.is_unwound_elsewhere}
    answers = _await_owners(db, waiting, since, ANSWER_BOUND + grace)
    survivors = _end_here(db, [one.task.id for one in marked if one.may_have_begun], grace)
    for one in marked:
        survivors.setdefault(one.task.id, []).extend(_of_another_machine(one, answers))
    for one in marked:
        survivors[one.root] = list(dict.fromkeys(survivors[one.root] + survivors[one.task.id]))
    states = db.read(lambda conn: {id: registry.get(conn, id).status for id in wanted})
    asked = {one.task.id: one for one in marked if one.root == one.task.id}
    return [
        KillReport(
            task_id=id,
            status=states[id],
            changed=asked[id].changed,
            ended=not survivors[id],
            survivors=tuple(survivors[id]),
            undelivered=asked[id].undelivered,
        )
        for id in wanted
    ]


class _Marked(Struct, frozen=True):
    """A task as it stood before, and what storing its end did. `root` is the one of the asked for that took it along."""

    task: TaskRecord
    root: str
    changed: bool
    undelivered: int
    owner_lives: bool

    @property
    def may_have_begun(self) -> bool:
        """Whether it can have processes: one that waited for a slot has none."""
        return self.task.attempt > 0

    @property
    def is_unwound_elsewhere(self) -> bool:
        return self.changed and (self.owner_lives or self.is_elsewhere) and self.task.status is TaskStatus.RUNNING

    @property
    def is_elsewhere(self) -> bool:
        """Whether it ran on another machine, whose process table cannot be looked at from here."""
        return self.task.owner is not None and self.task.owner.host != leases.this_host()


def _of_another_machine(one: _Marked, answers: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """What may still run of a task there, in words: only its owner can say."""
    if not one.is_elsewhere or not one.is_unwound_elsewhere:
        return ()
    host = one.task.owner.host if one.task.owner else "its machine"
    unproven = f"whatever it began on {host}: nobody there answered; its run is fenced and writes nothing"
    return answers.get(one.task.id, (unproven,))


def _mark(conn: Connection, ids: Sequence[str], by: str) -> list[_Marked]:
    """Store the ends of the tasks and of all that they began."""
    marked: dict[str, _Marked] = {}
    lives: dict[str, bool] = {}
    queue = [(id, id) for id in ids]
    while queue:
        id, root = queue.pop(0)
        if id in marked:
            continue
        task = registry.get(conn, id)
        if task.session_id not in lives:
            lives[task.session_id] = _owner_lives(conn, task.session_id)
        done = registry.kill(conn, id, by=by, notify=True, end_reason=f"killed by {by}")
        on_node = nodes.running(conn, id) is not None  # which goes on, and unwinds it, without the session's owner
        marked[id] = _Marked(task, root, done.changed, len(done.undelivered), lives[task.session_id] or on_node)
        queue += [(child.id, root) for child in registry.live(conn, task.session_id) if child.parent_id == id]
    return list(marked.values())


class SessionReport(Struct, frozen=True):
    """`changed` False: it had ended before. `survivors` could not be ended, in words."""

    session_id: str
    changed: bool
    survivors: tuple[str, ...] = ()


def kill_session(db: Database, session_id: str, *, by: str = "user", grace: float = 2.0) -> SessionReport:
    """End a session for good: the process that drives it saves its state and leaves, then the session and its tasks are
    ended in one transaction, and what still runs of them. Raises `NotFound`, and `Owned` where the process that drives
    it is on another host or does not leave."""
    session = db.read(lambda conn: sessions.get(conn, session_id))
    if session.status is SessionStatus.ENDED:
        return SessionReport(session_id, False)
    if db.read(lambda conn: _owner_lives(conn, session_id)):
        _send_away(db, session, ANSWER_BOUND + 2 * grace)
    live = db.read(lambda conn: registry.live(conn, session_id))

    def end(conn: Connection) -> None:
        fence = leases.acquire(conn, session_id, leases.this_owner(), time.time())
        sessions.end(conn, session_id, fence, reason=f"killed by {by}")

    db.write(end)
    survivors = _end_here(db, [session_id, servers_of(session_id), *(task.id for task in live if task.attempt)], grace)
    return SessionReport(session_id, True, tuple(dict.fromkeys(word for words in survivors.values() for word in words)))


def _send_away(db: Database, session: SessionRecord, bound: float) -> None:
    """Ask the process that drives the session to leave, and wait until it has."""
    owner = session.owner
    if owner is None or owner.host != leases.this_host():
        return
    with suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGTERM)
    until = time.monotonic() + bound
    with Watcher(db) as watcher:
        while time.monotonic() < until and db.read(lambda conn: _owner_lives(conn, session.id)):
            watcher.changed(LOOK)


def _owner_lives(conn: Connection, session_id: str) -> bool:
    return not sessions.owner_gone(sessions.get(conn, session_id), conn.time_of(time.time()))


def _await_owners(db: Database, waiting: set[str], since: int, bound: float) -> dict[str, Sequence[str]]:
    """Until their owners say that the tasks are unwound, or the bound is over; what each that answered says survived."""
    answers: dict[str, Sequence[str]] = {}
    if not waiting:
        return answers
    until = time.monotonic() + bound
    with Watcher(db) as watcher:
        while (left := until - time.monotonic()) > 0:
            while happened := db.read(partial(events.since, id=since)):
                since = happened[-1].id
                for event in happened:
                    if event.kind == UNWOUND and event.task_id in waiting:
                        answers[event.task_id] = event.data.get("survivors", ())
            if waiting <= answers.keys():
                break
            watcher.changed(left)
    return answers


def _end_here(db: Database, ids: Sequence[str], grace: float) -> dict[str, list[str]]:
    """End what the process table still shows of the tasks, side by side; what survived of each, in words."""
    host = leases.this_host()
    rows = {id: _rows(db, id, host) for id in ids}
    there = [id for id in ids if rows[id] or find_tree(None, None, id)]
    survivors = asyncio.run(_end_all([(id, [(row.pid, row.started_at) for row in rows[id]]) for id in there], grace))
    left = {survivor.pid for found in survivors.values() for survivor in found}
    gone = [row for id in there for row in rows[id] if row.pid not in left]
    if gone:
        db.write(lambda conn: [processes.remove(conn, r.pid, r.started_at, host=r.host) for r in gone])
    return {id: [str(survivor) for survivor in survivors.get(id, ())] for id in ids}


def _rows(db: Database, task_id: str, host: str) -> list[ProcessRecord]:
    return [row for row in db.read(lambda conn: processes.list_processes(conn, task_id=task_id)) if row.host == host]


async def _end_all(trees: Sequence[tuple[str, list[tuple[int, float]]]], grace: float) -> dict[str, list[Survivor]]:
    found = await asyncio.gather(*(end_all(id, roots, grace) for id, roots in trees))
    return {id: survivors for (id, _), survivors in zip(trees, found, strict=True)}
