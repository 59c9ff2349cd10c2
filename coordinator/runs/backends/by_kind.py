"""One door to all tasks of a session: each kind of task has a backend of its own behind it.

Whoever spawns, nudges or stops names a task and need not know what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from coordinator.runs.backends.base import Backend
from tasks.ids import TaskType
from worker_agent.causes import Cause


class ByKind:
    """A `Backend` of backends. `kind_of` answers what a task is, by its row."""

    def __init__(self, backends: Mapping[TaskType, Backend], kind_of: Callable[[str], TaskType]) -> None:
        self._backends = backends
        self._kind_of = kind_of

    async def spawn(self, task_id: str) -> None:
        await self._backends[self._kind_of(task_id)].spawn(task_id)

    def nudge(self, task_id: str) -> None:
        for backend in self._backends.values():
            backend.nudge(task_id)

    async def stop(self, task_id: str, cause: Cause) -> tuple[str, ...]:
        survivors = await asyncio.gather(*(backend.stop(task_id, cause) for backend in self._backends.values()))
        return tuple(word for words in survivors for word in words)

    def leave(self) -> None:
        for backend in self._backends.values():
            backend.leave()

    def is_unwinding(self, task_id: str) -> bool:
        return any(backend.is_unwinding(task_id) for backend in self._backends.values())

    def running(self) -> tuple[str, ...]:
        return tuple(task_id for backend in self._backends.values() for task_id in backend.running())

    async def close(self, cause: Cause) -> None:
        for backend in self._backends.values():  # in their order: an agent's run ends what it began by itself
            await backend.close(cause)
