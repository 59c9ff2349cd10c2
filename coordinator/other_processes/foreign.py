"""What other processes do to this session, seen and followed: kills, messages, new tasks, a takeover.

The writer's thread says that something was committed elsewhere; one look at the store then tells all of it. Looks are
joined: a hundred commits in a burst cost one or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from coordinator.store import Store
from coordinator.wakes import Signal
from tasks import events, leases, registry
from tasks.connection import Connection
from tasks.errors import Fenced
from tasks.records import TaskRecord

UNWOUND = "task_unwound"  # the event with which an owner says that nothing of a killed task runs any more


class Reactions(Struct, kw_only=True):
    """What is done about it. `running` names the tasks that this process runs."""

    running: Callable[[], set[str]]
    unwind: Callable[[TaskRecord], Awaitable[tuple[str, ...]]]
    adopt: Callable[[TaskRecord], Awaitable[None]]
    wrap_up: Callable[[TaskRecord], None]
    nudge: Callable[[], None]
    lost: Callable[[], None]


class ForeignChanges:
    """Listens from its making on; `notify` may be called from any thread."""

    def __init__(self, store: Store, elsewhere: Signal[[]], reactions: Reactions) -> None:
        self._store = store
        self._reactions = reactions
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._unwinding: set[asyncio.Task[None]] = set()
        self._handled: set[str] = set()
        elsewhere.listen(self.notify)

    def notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            return  # the loop has closed: nobody is left to react

    async def watch(self) -> None:
        """React until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._look()
            except Fenced:
                self._reactions.lost()
                return

    async def settle(self) -> None:
        """Until it is said of everything that is being ended that it has: others wait to hear it."""
        await asyncio.gather(*self._unwinding, return_exceptions=True)

    async def _look(self) -> None:
        mine = self._reactions.running()
        tasks = self._store.read(lambda conn: self._read(conn, mine))
        for task in tasks:
            if task.id in mine and task.is_terminal and task.id not in self._handled:
                self._handled.add(task.id)
                work = asyncio.create_task(self._unwind(task))
                self._unwinding.add(work)
                work.add_done_callback(self._unwinding.discard)
            elif task.id in mine and task.stop_requested_at is not None:
                self._reactions.wrap_up(task)
            elif task.id not in mine and task.is_live:
                await self._reactions.adopt(task)
        self._reactions.nudge()

    def _read(self, conn: Connection, mine: set[str]) -> list[TaskRecord]:
        leases.check(conn, self._store.session_id, self._store.fence)
        live = {task.id: task for task in registry.live(conn, self._store.session_id)}
        ended = [registry.get(conn, task_id) for task_id in mine - live.keys()]
        return [*live.values(), *ended]

    async def _unwind(self, task: TaskRecord) -> None:
        survivors = await self._reactions.unwind(task)
        store = self._store
        await store.write(lambda conn: events.add(conn, store.session_id, task.id, UNWOUND, {"survivors": list(survivors)}))
        self._reactions.nudge()
