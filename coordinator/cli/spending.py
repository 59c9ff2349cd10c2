"""What a session has used, for those who show it: summed in a thread, as the sum grows with the session's calls and the event
loop has agents to serve; and only after something happened that may have cost something.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from coordinator.cli.tree import Spent
from coordinator.observed import Observed, TaskChanged
from tasks.errors import StoreError
from worker_agent.events import MessageAdded, Result

COSTS = (MessageAdded, TaskChanged, Result)  # a worker on another machine is seen by its task alone
APART = 2.0  # seconds between two sums at least; `TIMES` as long as one takes, where that is more
TIMES = 50


class Spending:
    """Belongs to one event loop. `read` sums, in any thread; it may raise `StoreError`."""

    def __init__(self, read: Callable[[], Spent]) -> None:
        self.known: Spent | None = None
        self._read = read
        self._is_old = True
        self._next = float("-inf")  # on the monotonic clock
        self._reading: asyncio.Task[None] | None = None

    def on(self, observed: Observed) -> None:
        self._is_old = self._is_old or isinstance(observed.event, COSTS)

    def look(self) -> Spent | None:
        """What is known now; it is summed anew beside, where that is due. None before the first sum."""
        if self._is_old and self._reading is None and time.monotonic() >= self._next:
            self._is_old = False
            self._reading = asyncio.create_task(self._sum(), name="what is spent")
        return self.known

    async def _sum(self) -> None:
        begun = time.monotonic()
        try:
            self.known = await asyncio.to_thread(self._read)
        except StoreError:  # the session says so
            self._is_old = True
        now = time.monotonic()
        self._next = now + max(APART, TIMES * (now - begun))
        self._reading = None

    async def settle(self) -> None:
        """The session is over: what it has used in all is known from here on, unless the store is away."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._is_old:
            await self._sum()
        self._is_old = False
