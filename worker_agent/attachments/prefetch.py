"""Work in the background whose result is taken when it is there, and never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

THREAD_GRACE = 2.0  # seconds a cancelled prefetch waits for its thread


class Prefetch(Generic[T]):
    """One thing at a time that runs in the background, and what it brought. Raising switches it off."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._task: asyncio.Task[T] | None = None
        self._is_off = False

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self._is_off

    def start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.create_task(work)

    def take(self) -> T | None:
        """What it brought, once; None while it runs."""
        task = self._task
        if task is None or not task.done():
            return None
        self._task = None
        if task.cancelled():
            return None
        if (error := task.exception()) is not None:
            self._is_off = True
            self._on_failure(error)
            return None
        return task.result()

    async def close(self) -> None:
        self._is_off = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self.take()


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """`function` in a thread. A cancellation waits for the thread, so that nothing goes on unseen."""
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait((work,), timeout=THREAD_GRACE)
        raise
