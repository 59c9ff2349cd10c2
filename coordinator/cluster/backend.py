"""`Backend` over nodes: a session's workers run wherever a node takes them, and go on when this process is gone.

What runs is known by the store alone. A stop is stored already, and the node that runs the task sees it as any other process's;
it says that nothing runs any more (`UNWOUND`). A node that is dead says nothing: its run is fenced, and that is said instead.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

from coordinator.cluster.engine import Engine
from coordinator.other_processes.foreign import UNWOUND
from coordinator.runs.backends.base import Backend
from coordinator.store import Store
from tasks import events, nodes, registry
from tasks.records import Ended, TaskRecord
from tasks.states import TaskStatus
from worker_agent.causes import Cause
from worker_agent.errors import ConfigError

STOP_BOUND = 8.0  # seconds for a node to say that nothing runs any more
LOOK = 0.05  # seconds between looks for that


class ClusterBackend:
    """Belongs to one event loop. `on_end` is called with a task's id when nothing of it runs any more."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        on_end: Callable[[str], None],
        begin: Callable[[TaskRecord], Awaitable[None]] | None = None,
        most: int = sys.maxsize,
    ) -> None:
        """`begin` prepares what a node needs to run a task, before it is offered; it raises `ConfigError`. At most `most` tasks
        are with the nodes at once: the others wait here."""
        self._most = most
        self._waiting: dict[str, None] = {}  # of `_offered`, those that were not offered yet, oldest first
        self._begin = begin
        self._store = store
        self._engine = engine
        self._on_end = on_end
        self._offered: dict[str, None] = {}  # ids, oldest first
        self._closed = False

    async def spawn(self, task_id: str) -> None:
        if self._closed or task_id in self._offered:
            return
        self._offered[task_id] = None
        task = self._store.read(lambda conn: registry.get(conn, task_id))
        if len(self._offered) - len(self._waiting) > self._most and task.status is TaskStatus.PENDING:
            self._waiting[task_id] = None
            why = f"waits: {self._most} workers run (--max-workers)"
            await self._store.write(lambda conn: registry.say_waiting(conn, task_id, why))
        else:
            await self._offer(task)

    async def _offer(self, task: TaskRecord) -> None:
        if not await self._is_begun(task):
            return
        tags = tuple(task.tags or ())
        wanted = "waits for a node" + (f" with {', '.join(sorted(tags))}" if tags else "")
        await self._store.write(lambda conn: registry.say_waiting(conn, task.id, wanted))
        await self._engine.offer(task.id, tags)

    async def _let_go(self, task_id: str) -> None:
        """It is over: who waited longest has its place."""
        self._offered.pop(task_id, None)
        self._waiting.pop(task_id, None)
        while self._waiting and not self._closed and len(self._offered) - len(self._waiting) < self._most:
            self._waiting.pop(longest := next(iter(self._waiting)))
            await self._offer(self._store.read(partial(registry.get, task_id=longest)))

    async def _is_begun(self, task: TaskRecord) -> bool:
        """False: it cannot be, and the task has failed with the reason."""
        try:
            if self._begin is not None:
                await self._begin(task)
            return True
        except ConfigError as error:
            end = Ended(
                status=TaskStatus.FAILED, result="", end_reason="error", error=str(error),
                error_class=type(error).__name__, retryable=True,
            )  # fmt: skip
            await self._store.write(lambda conn: registry.finish(conn, task.id, task.attempt, end, notify=task.background))
            await self._let_go(task.id)
            self._on_end(task.id)
            return False

    def nudge(self, task_id: str) -> None:
        """The node hears of it as of every commit."""

    async def stop(self, task_id: str, cause: Cause) -> tuple[str, ...]:
        if task_id not in self._offered:
            return ()
        task = self._store.read(lambda conn: registry.get(conn, task_id))
        if not task.is_terminal:
            return ()  # its runner goes on without this process
        try:
            said = await self._unwound(task_id) if task.status is TaskStatus.KILLED and task.attempt else ()
        finally:
            await self._let_go(task_id)
            self._on_end(task_id)
        return said

    async def _unwound(self, task_id: str) -> tuple[str, ...]:
        until = time.monotonic() + STOP_BOUND
        while time.monotonic() < until:
            happened = self._store.read(lambda conn: events.since(conn, 0, task_id=task_id))
            if (end := next((event for event in happened if event.kind == UNWOUND), None)) is not None:
                return tuple(end.data.get("survivors", ()))
            if self._store.read(lambda conn: nodes.running(conn, task_id)) is None:
                return ("whatever its node began: no living node says that it runs it; its run is fenced and writes nothing",)
            await asyncio.sleep(LOOK)
        return (f"whatever its node began: it did not answer within {STOP_BOUND:.0f} s",)

    def leave(self) -> None:
        """What runs runs elsewhere."""

    def is_unwinding(self, task_id: str) -> bool:
        return task_id in self._offered  # until its end was seen here, and a killed one's node said that it is unwound

    def running(self) -> tuple[str, ...]:
        return tuple(self._offered)

    async def close(self, cause: Cause) -> None:
        self._closed = True
        self._offered.clear()
        self._waiting.clear()


class OwnCommands:
    """The commands in the background that the session's own agent began. Those of a worker are its node's."""

    def __init__(self, inner: Backend, store: Store) -> None:
        self._inner = inner
        self._store = store

    async def spawn(self, task_id: str) -> None:
        task = self._store.read(lambda conn: registry.get(conn, task_id))
        if task.parent_id in (None, self._store.session_id):
            await self._inner.spawn(task_id)

    def nudge(self, task_id: str) -> None:
        self._inner.nudge(task_id)

    async def stop(self, task_id: str, cause: Cause) -> tuple[str, ...]:
        return await self._inner.stop(task_id, cause)

    def leave(self) -> None:
        self._inner.leave()

    def is_unwinding(self, task_id: str) -> bool:
        return self._inner.is_unwinding(task_id)

    def running(self) -> tuple[str, ...]:
        return self._inner.running()

    async def close(self, cause: Cause) -> None:
        await self._inner.close(cause)
