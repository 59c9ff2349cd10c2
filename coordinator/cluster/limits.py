"""What one process learns of an account's limits, for the others; and what it may use of them.

A block is written once, when a server says it, and read when anything was written: the database tells of every commit. Of a
minute's requests and tokens a slice is leased at a time; within it a call asks nobody.
"""

from __future__ import annotations

import asyncio
import math

from coordinator.store import Store
from tasks import fleet
from worker_agent.api.limiter import Limiter
from worker_agent.config import Clock, RetrySettings

SLICES = 20  # of a minute: so many leases at most share it
MOST = 1.0  # seconds between looks for more, where a minute is used up


class SharedLimits:
    """Ties a `Limiter` to the account's row. Belongs to one event loop."""

    def __init__(self, store: Store, limiter: Limiter, account: str, settings: RetrySettings) -> None:
        self._store = store
        self._limiter = limiter
        self._account = account
        is_bound = settings.requests_per_minute or settings.tokens_per_minute
        limiter.share(self._tell, Minute(store, account, settings) if is_bound else None)
        self.look()

    def look(self) -> None:
        """Something was written somewhere."""
        self._limiter.block_for(self._store.read(lambda conn: fleet.blocked_for(conn, self._account)))

    def _tell(self, seconds: float) -> None:
        self._store.submit(lambda conn: fleet.block(conn, self._account, seconds))


class Minute:
    """A `Quota`: what is left of the slice that this process has of the minute."""

    def __init__(self, store: Store, account: str, settings: RetrySettings) -> None:
        self._store = store
        self._account = account
        self._of_requests, self._of_tokens = settings.requests_per_minute, settings.tokens_per_minute
        self._clock: Clock = store.clock
        self._requests, self._tokens = 0, 0
        self._ends = -math.inf
        self._leasing = asyncio.Lock()

    async def take(self) -> None:
        while not self._has():
            async with self._leasing:
                if self._has():
                    break
                await self._lease()
            if not self._has():
                await self._clock.sleep(min(MOST, max(0.0, self._ends - self._clock.monotonic()) + 0.01))
        self._requests -= 1

    def used(self, tokens: int) -> None:
        self._tokens -= tokens

    def _has(self) -> bool:
        return self._clock.monotonic() < self._ends and self._requests > 0 and (self._of_tokens is None or self._tokens > 0)

    async def _lease(self) -> None:
        over = self._clock.monotonic() >= self._ends
        if over:  # what was used beyond a slice counts in the next minute, too
            self._requests, self._tokens = 0, min(self._tokens, 0)
        wanted = 0 if self._requests > 0 else -(-(self._of_requests or SLICES) // SLICES)
        wanted_tokens = 0 if self._of_tokens is None else max(0, -(-self._of_tokens // SLICES) - self._tokens)
        got = await self._store.write(
            lambda conn: fleet.lease(
                conn,
                self._account,
                requests=wanted,
                tokens=wanted_tokens,
                of_requests=self._of_requests,
                of_tokens=self._of_tokens,
            )
        )
        self._requests, self._tokens = self._requests + got.requests, self._tokens + got.tokens
        self._ends = self._clock.monotonic() + got.seconds
