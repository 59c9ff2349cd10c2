"""A node: a process that takes workers of any session until it is told to end.

1. A worker runs here as in the session's own process: the same parts, on the same folder, with this machine's credentials. The
   session belongs to the process that drives it; what is written here carries its fence and the run's attempt, so that a
   session taken over, or a run begun elsewhere, ends the right of this one to write.
2. The heartbeat says what runs. A name that another process has taken, or that was removed, ends this one at once.
3. Draining: nothing new begins, what runs reaches the end of its turn (within `drain` seconds: then it is stopped where it
   stands), everything of it is stored, and it is offered to other nodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from coordinator.cluster.engine import BEAT, POLL, Engine
from coordinator.other_processes.foreign import ForeignChanges, Reactions
from tasks import leases, nodes, registry, sessions
from tasks.db import Database
from tasks.errors import DatabaseError, Fenced, NotFound, StoreError
from tasks.nodes import NewNode
from tasks.records import SessionRecord, TaskRecord
from worker_agent.causes import Cause
from worker_agent.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.session.parts import Parts

log = logging.getLogger(__name__)

Enter = Callable[[SessionRecord, AsyncExitStack], Awaitable["Parts"]]


class _Guest(Struct):
    """This node's part in a session; `runs` are the tasks of it that run here."""

    parts: Parts
    stack: AsyncExitStack
    foreign: ForeignChanges
    watching: asyncio.Task[None]
    fence: int
    runs: set[str] = field(default_factory=set)


class Node:
    """`enter` takes part in a session (see `app.enter`). `serve` once."""

    def __init__(
        self, database: Database, engine: Engine, own: NewNode, enter: Enter, say: Callable[[str], None], drain: float = 300.0
    ) -> None:
        self._drain = drain
        self._database = database
        self._engine = engine
        self._own = own
        self._enter = enter
        self._say = say
        self._guests: dict[str, _Guest] = {}
        self._entering = asyncio.Lock()
        self._running: set[str] = set()
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._at_rest = asyncio.Event()  # nothing runs
        self._at_rest.set()
        self._is_lost = False
        self._breath = ThreadPoolExecutor(1, "heartbeat")  # the loop's own threads may all be at work for long
        self._breathing = asyncio.Lock()
        self._next_breath: asyncio.Task[bool] | None = None  # one that has not begun

    def end(self) -> None:
        """Drain, then return from `serve`; told again, without waiting for turns to end."""
        if self._ending.is_set():
            self._hurry.set()
        self._ending.set()

    async def serve(self, on_ready: Callable[[], None] = lambda: None) -> bool:
        """Until `end`, or until told so by the store. False: another process has the name. Raises `Owned` at once if a
        living one has it."""
        await asyncio.to_thread(self._database.write, lambda conn: nodes.join(conn, self._own))
        await self._engine.open()
        working = asyncio.create_task(self._engine.serve(self._run, slots=self._own.slots, tags=self._own.tags))
        beating = asyncio.create_task(self._beat())
        on_ready()
        try:
            ending = asyncio.create_task(self._ending.wait())
            await asyncio.wait({working, ending, beating}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            self._ending.set()
            working.cancel()
            await self._let_turns_end()
            await self._give_back()
            with suppress(asyncio.CancelledError):
                await working
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            for id in tuple(self._guests):
                await self._leave(id)
            await self._engine.close()
            if not self._is_lost:
                await asyncio.to_thread(self._database.write, lambda conn: nodes.leave(conn, self._own.name, self._own.holder))
        return not self._is_lost

    # ── the heartbeat ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _beat(self) -> None:
        while True:
            try:
                if await self._said_alive():
                    self._ending.set()
                await self._engine.beat()
                await self._engine.recover()
            except Fenced as error:
                self._say(str(error))
                self._is_lost = True
                self._ending.set()
                return
            except DatabaseError as error:
                log.warning("heartbeat of node %s failed: %s", self._own.name, error)
            except Exception as error:  # the engine's, while the server is away
                log.warning("node %s cannot look after others: %s", self._own.name, error)
            await asyncio.sleep(BEAT)

    async def _said_alive(self) -> bool:
        """Whether to drain. Who asks while another still waits for its turn has the same answer."""
        if self._next_breath is None:
            self._next_breath = asyncio.create_task(self._breathe(), name="heartbeat")
        return await asyncio.shield(self._next_breath)

    async def _breathe(self) -> bool:
        async with self._breathing:
            self._next_breath = None  # who asks from now on wants what runs from now on to be said
            return await asyncio.get_running_loop().run_in_executor(self._breath, self._say_alive)

    def _say_alive(self) -> bool:
        import psutil

        running, memory, load = tuple(self._running), psutil.Process().memory_info().rss, os.getloadavg()[0]
        return self._database.write(
            lambda conn: nodes.beat(conn, self._own.name, self._own.holder, running=running, load=load, memory=memory)
        )

    # ── one task ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, task_id: str) -> bool:
        """Run the task until it has ended, or is another's; False if it is to be offered again. One that runs here already was
        offered because this node was taken for dead: its offer stays open until that run is over, and a run that another node
        took over ends now."""
        while task_id in self._running:
            await self._end_if_stale(task_id)
            await asyncio.sleep(POLL)
        self._running.add(task_id)
        self._at_rest.clear()
        try:
            return await self._run_once(task_id)
        except DatabaseError:
            raise
        except (StoreError, ConfigError) as error:
            await asyncio.to_thread(self._refuse, task_id, error)
            return True
        finally:
            self._running.discard(task_id)
            with suppress(DatabaseError, Fenced):  # the next beat says it, or meets the same
                await self._said_alive()
            if not self._running:
                self._at_rest.set()

    async def _end_if_stale(self, task_id: str) -> None:
        with suppress(DatabaseError):
            task = await asyncio.to_thread(self._look, task_id)
            guest = self._guests.get(task.session_id) if task is not None else None
            if task is not None and guest is not None and task.attempt and task.owner != leases.this_owner():
                await guest.parts.backend.stop(task_id, Cause.LOST)

    async def _run_once(self, task_id: str) -> bool:
        task = await asyncio.to_thread(self._look, task_id)
        if task is None or task.is_terminal:
            return True
        if self._ending.is_set():
            return False
        await self._said_alive()  # before it begins: who stops it looks here
        guest = await self._guest_of(task.session_id)
        guest.runs.add(task_id)
        try:
            await self._end_left_behind(guest, task)
            await guest.parts.backend.spawn(task_id)
            while task_id in guest.parts.backend.running():
                guest.parts.wakes.ready.clear()
                if task_id in guest.parts.backend.running():
                    await guest.parts.wakes.ready.wait()
        finally:
            guest.runs.discard(task_id)
            if not guest.runs:
                await self._leave(task.session_id)
        after = await asyncio.to_thread(self._look, task_id)
        is_over = after is None or after.is_terminal
        return is_over or not (self._ending.is_set() or guest.parts.store.failure is not None)

    async def _end_left_behind(self, guest: _Guest, task: TaskRecord) -> None:
        """Commands in the background of an earlier run: they cannot be taken over, and say so."""
        for other in guest.parts.coordinator.live():
            if other.parent_id == task.id and not other.reports:
                await guest.parts.backend.spawn(other.id)

    def _look(self, task_id: str) -> TaskRecord | None:
        return self._database.read(lambda conn: registry.find(conn, task_id))

    def _refuse(self, task_id: str, error: Exception) -> None:
        """A session that this node cannot take part in (no such folder, no credentials): its task fails with the reason."""
        from tasks.records import Ended
        from tasks.states import TaskStatus

        task = self._look(task_id)
        if task is None or task.is_terminal or isinstance(error, (Fenced, NotFound)):
            log.warning("task %s: %s", task_id, error)
            return
        end = Ended(
            status=TaskStatus.FAILED,
            result="",
            end_reason="error",
            error=f"node {self._own.name} cannot run it: {error}",
            error_class=type(error).__name__,
            retryable=True,
        )
        self._database.write(lambda conn: registry.finish(conn, task_id, task.attempt, end))

    # ── sessions ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _guest_of(self, session_id: str) -> _Guest:
        async with self._entering:
            record = await asyncio.to_thread(self._database.read, lambda conn: sessions.get(conn, session_id))
            guest = self._guests.get(session_id)
            if guest is not None and (guest.fence != record.fence or guest.parts.store.failure is not None):
                await self._leave(session_id)  # what ran under another owner is fenced; what stores nothing runs nothing
                guest = None
            if guest is None:
                guest = self._guests[session_id] = await self._enter_as_guest(record)
            return guest

    async def _enter_as_guest(self, record: SessionRecord) -> _Guest:
        stack = AsyncExitStack()
        try:
            parts = await self._enter(record, stack)
        except BaseException:
            await stack.aclose()
            raise
        foreign = ForeignChanges(parts.store, parts.wakes.elsewhere, self._reactions(record.id, parts))
        foreign.notify()  # what happened before anybody listened
        watching = asyncio.create_task(foreign.watch(), name=f"foreign changes of {record.id}")
        return _Guest(parts, stack, foreign, watching, record.fence)

    def _reactions(self, session_id: str, parts: Parts) -> Reactions:
        """Of what others do only that concerns this node which ends or reaches what runs here."""

        async def adopt(task: TaskRecord) -> None:
            """Others' tasks come by the engine."""

        def lost() -> None:
            asyncio.get_running_loop().create_task(self._stop(session_id, Cause.LOST))

        return Reactions(
            running=lambda: set(parts.backend.running()),
            unwind=parts.coordinator.unwind,
            adopt=adopt,
            wrap_up=lambda task: None,
            nudge=parts.nudge,
            lost=lost,
        )

    async def _stop(self, session_id: str, cause: Cause) -> None:
        guest = self._guests.get(session_id)
        if guest is not None:
            await asyncio.gather(*(guest.parts.backend.stop(id, cause) for id in guest.parts.backend.running()))
            guest.parts.wakes.ready.set()

    async def _let_turns_end(self) -> None:
        if self._is_lost:
            return
        for guest in self._guests.values():
            guest.parts.backend.leave()
        rest, hurry = asyncio.create_task(self._at_rest.wait()), asyncio.create_task(self._hurry.wait())
        await asyncio.wait({rest, hurry}, timeout=self._drain, return_when=asyncio.FIRST_COMPLETED)
        rest.cancel()
        hurry.cancel()

    async def _give_back(self) -> None:
        cause = Cause.LOST if self._is_lost else Cause.TERMINATED
        await asyncio.gather(*(self._stop(id, cause) for id in tuple(self._guests)))

    async def _leave(self, session_id: str) -> None:
        guest = self._guests.pop(session_id, None)
        if guest is None:
            return
        await guest.foreign.settle()
        guest.watching.cancel()
        await asyncio.gather(guest.watching, return_exceptions=True)
        await guest.parts.leave()
        await guest.stack.aclose()
