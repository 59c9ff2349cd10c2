"""The process trees that one task began: recorded when they begin, ended and proven gone when the task ends.

The record lets another process end them when the owner is gone; the marker in their environment finds what the record
does not name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from coordinator.store import Store
from tasks import processes
from tasks.errors import DatabaseError
from worker_agent.process_tree import Survivor, end_tree, not_gone


def servers_of(session_id: str) -> str:
    """What the processes of a session's MCP servers are recorded and marked as: they end with the session, not with what
    the session's own agent began."""
    return f"{session_id}/mcp"


class Processes:
    """Of one task (or, with the session's id, of the coordinator itself)."""

    def __init__(self, store: Store, task_id: str, *, grace: float = 2.0) -> None:
        self._store = store
        self._task_id = task_id
        self._grace = grace
        self._own: list[tuple[int, float]] = []

    def began(self, pid: int, started_at: float) -> None:
        """A tree begins: kept so that it can be ended from anywhere."""
        self._own.append((pid, started_at))
        store = self._store
        store.submit(
            lambda conn: processes.add(
                conn,
                session_id=store.session_id,
                task_id=self._task_id,
                pid=pid,
                started_at=started_at,
                host=store.owner.host,
                marker=self._task_id,
            )
        )

    async def end_own(self) -> tuple[str, ...]:
        """As `end`, for what this object saw begin: nothing is asked or scanned for a task without processes."""
        return await self.end() if self._own else ()

    async def end(self) -> tuple[str, ...]:
        """End all of them; what still lives, in words. Once the session is another process's, its trees bear the same
        task's name: only those that this object saw begin are ended then. When the store has failed, it is not asked."""
        if not self._store.lost and self._store.failure is None:
            with suppress(DatabaseError):  # then what this object saw begin is all that is known
                return await self._end_recorded()
        marker = None if self._store.lost else self._task_id
        return tuple(map(str, await end_all(marker, self._own, self._grace)))

    async def end_recorded(self) -> tuple[str, ...]:
        """As `end`, where something is on record: what an owner that died left behind."""
        rows = self._store.read(lambda conn: processes.list_processes(conn, task_id=self._task_id))
        return await self.end() if rows else ()

    async def _end_recorded(self) -> tuple[str, ...]:
        await self._store.writer.flush()
        rows = self._store.read(lambda conn: processes.list_processes(conn, task_id=self._task_id))
        mine = [row for row in rows if row.host == self._store.owner.host]
        survivors = await end_all(self._task_id, [(row.pid, row.started_at) for row in mine], self._grace)
        left = {survivor.pid for survivor in survivors}
        gone = [row for row in mine if row.pid not in left]
        if gone:
            await self._store.write(lambda conn: [processes.remove(conn, r.pid, r.started_at, host=r.host) for r in gone])
        return tuple(map(str, survivors))


async def end_all(marker: str | None, roots: Iterable[tuple[int, float]], grace: float) -> list[Survivor]:
    """End the trees of these roots (pid, start time) and everything that carries the marker; what still lives. One look
    tells which roots are long gone: a task may have begun thousands."""
    roots = list(roots)
    left = not_gone(pid for pid, _ in roots)
    trees = [end_tree(pid, started, None, grace) for pid, started in roots if pid in left]
    marked = [end_tree(None, None, marker, grace)] if marker is not None else []
    found = await asyncio.gather(*trees, *marked)
    return list({survivor.pid: survivor for part in found for survivor in part}.values())
