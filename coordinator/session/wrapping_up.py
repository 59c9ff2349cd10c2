"""Tasks that another process wants to end with a last report: each is told so once, and ended when its time is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine

from coordinator.session.parts import Parts
from tasks.records import TaskRecord

BY_USER = "user"

Put = Callable[[str, str, str], Awaitable[None]]
"""Agent, text, sender: store a message."""


class WrappingUp:
    """`spawn` has work done beside everything else, as long as the session lasts."""

    def __init__(self, parts: Parts, put: Put, spawn: Callable[[Coroutine[None, None, None]], None]) -> None:
        self._parts, self._put, self._spawn = parts, put, spawn
        self._told: set[str] = set()

    def begin(self, task: TaskRecord) -> None:
        if task.id not in self._told:
            self._told.add(task.id)
            self._spawn(self._end_after(task))

    async def _end_after(self, task: TaskRecord) -> None:
        if task.stop_wrap_up:
            text = (
                f"You are to be stopped in {task.stop_wrap_up:.0f} seconds. Report now, without further tool calls, "
                "what you have."
            )
            await self._put(task.agent_id, text, "system")
            self._parts.backend.nudge(task.id)
            await self._parts.store.clock.sleep(task.stop_wrap_up)
        await self._parts.coordinator.stop(task.id, by=task.stop_requested_by or BY_USER)
