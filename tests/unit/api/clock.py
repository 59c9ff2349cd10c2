"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class ManualClock:
    """`sleep` waits until `advance` has moved the time far enough; `now` starts at a fixed day."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._start = now
        self._time = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._start + self._time

    def monotonic(self) -> float:
        return self._time

    async def sleep(self, seconds: float) -> None:
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._time + max(0.0, seconds), next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Moves the time, waking each sleeper at its own moment and letting it run."""
        end = self._time + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, wake = heapq.heappop(self._sleepers)
            self._time = max(self._time, at)
            if not wake.done():
                wake.set_result(None)
            await settle()
        self._time = end
        await settle()


async def settle(rounds: int = 20) -> None:
    """Lets every task that can run do so."""
    for _ in range(rounds):
        await asyncio.sleep(0)
