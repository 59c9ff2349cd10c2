"""Slots: how many workers run at once. First in, first out; a slot is a reservation that gives itself back.

A waiter that is cancelled leaves the queue; if the slot had just been handed to it, the next one gets it. Who waits for a
person lends its slot meanwhile, and is the first to have one again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """Belongs to one event loop. `used` is the number of slots held now, `waiting` of those in the queue; `on_change` is
    called when the first is taken and when the last is free again."""

    def __init__(self, limit: int, on_change: Callable[[], object] = lambda: None) -> None:
        if limit < 1:
            raise ValueError("at least one worker must be able to run")
        self.limit = limit
        self._on_change = on_change
        self.used = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._holders: set[str] = set()
        self._lent: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(self, holder: str) -> AsyncIterator[None]:
        """Hold one slot for the length of the block."""
        await self._take(self._queue.append)
        self._holders.add(holder)
        try:
            yield
        finally:
            self._free(holder)

    @asynccontextmanager
    async def lent(self, holder: str | None) -> AsyncIterator[None]:
        """Do without the slot for the length of the block; it may be lent several times at once. One who holds none
        lends none, and one who leaves the block by an exception does not ask for it again."""
        if holder not in self._holders and not self._lent[holder or ""]:
            yield
            return
        assert holder is not None
        self._lent[holder] += 1
        self._free(holder)
        try:
            yield
        finally:
            self._lent[holder] -= 1
        if not self._lent[holder] and holder not in self._holders:
            await self._take(self._queue.appendleft)
            self._holders.add(holder)

    def _free(self, holder: str) -> None:
        if holder in self._holders:
            self._holders.remove(holder)
            self._give_back()

    async def _take(self, stand_in: Callable[[asyncio.Future[None]], None]) -> None:
        if self.used < self.limit and not self._queue:
            self.used += 1
            self._tell(1)
            return
        turn = asyncio.get_running_loop().create_future()
        stand_in(turn)
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
        self._tell(0)

    def _tell(self, edge: int) -> None:
        if self.used == edge:
            self._on_change()
