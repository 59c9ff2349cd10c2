"""Slots: how many workers run at once. First in, first out; a slot is a reservation that gives itself back.

A waiter that is cancelled leaves the queue; if the slot had just been handed to it, the next one gets it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Belongs to one event loop. `used` is the number of slots held now, `waiting` of those in the queue."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("at least one worker must be able to run")
        self.limit = limit
        self.used = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one slot for the length of the block."""
        await self._take()
        try:
            yield
        finally:
            self._give_back()

    async def _take(self) -> None:
        if self.used < self.limit and not self._queue:
            self.used += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back()
            else:
                self._queue.remove(turn)
            raise

    def _give_back(self) -> None:
        # Handing over keeps `used` as it is, so that nobody can slip in before the one whose turn it is.
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.used -= 1
