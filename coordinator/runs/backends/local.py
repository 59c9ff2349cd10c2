"""Runs as asyncio tasks of this process.

Each is one asyncio task: it waits for a slot, runs, and always leaves, whatever ends it. A run is asked to stop
through its own `stop`; only one that does not answer within its bound is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext

from coordinator.runs.backends.base import Run
from coordinator.runs.slots import Slots
from worker_agent.causes import Cause

STOP_BOUND = 5.0  # seconds for a run to unwind before its task is cancelled

log = logging.getLogger(__name__)


class LocalBackend:
    """Belongs to one event loop. Without `slots` as many run as are asked for. `on_end` is called when a run has left,
    with its task id."""

    def __init__(self, slots: Slots | None, make_run: Callable[[str], Run], on_end: Callable[[str], None]) -> None:
        self._slots = slots
        self._make_run = make_run
        self._on_end = on_end
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}
        self._began: set[str] = set()
        self._closed = False

    async def spawn(self, task_id: str) -> None:
        if self._closed or task_id in self._runs:
            return
        run = self._make_run(task_id)
        task = asyncio.create_task(self._hold(task_id, run), name=f"task {task_id}")
        self._runs[task_id] = (run, task)
        task.add_done_callback(lambda done: self._left(task_id, done))

    def nudge(self, task_id: str) -> None:
        if task_id in self._runs:
            self._runs[task_id][0].nudge()

    async def stop(self, task_id: str, cause: Cause) -> tuple[str, ...]:
        if task_id not in self._runs:
            return ()
        run, task = self._runs[task_id]
        run.stop(cause)
        if task_id not in self._began:
            task.cancel()  # it waits for a slot: nothing is to be unwound
        done, _ = await asyncio.wait({task}, timeout=STOP_BOUND)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_BOUND)
        return await run.clean_up()

    def leave(self) -> None:
        for run, _ in self._runs.values():
            run.leave()

    def is_unwinding(self, task_id: str) -> bool:
        return task_id in self._runs and not self._runs[task_id][0].is_recorded

    def running(self) -> tuple[str, ...]:
        return tuple(self._runs)

    async def close(self, cause: Cause) -> None:
        self._closed = True
        await asyncio.gather(*(self.stop(task_id, cause) for task_id in self.running()))

    async def _hold(self, task_id: str, run: Run) -> None:
        async with self._slots.slot(task_id) if self._slots else nullcontext():
            if not self._closed:
                self._began.add(task_id)
                await run.run()

    def _left(self, task_id: str, done: asyncio.Task[None]) -> None:
        self._runs.pop(task_id, None)
        self._began.discard(task_id)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("the run of task %s broke: %r", task_id, error)
        self._on_end(task_id)
