"""The one limiter of the process: what one call learns of a limit, all calls heed.

Rules of this file:

1. Before the time a server named nobody sends. After it the waiting calls do not rush: they start one by one, each a
   little later than the one before, in the order they came.
2. An overload or rate limit halves how many calls may run at once, at most once for the calls that were already under
   way; every call that ends well lets it climb back, until there is no cap again. Without trouble there is none.
3. An entry of the prompt cache can be read only once the first answer on it has begun. So of several calls on one cold
   prefix the first goes ahead and the others wait for it, but never long.
4. One event loop, no threads. A cancelled wait leaves nothing behind.
5. Where other processes use the same account, they are told of a block and tell of theirs (`share`, `block_for`), and what a
   minute has is given out to all of them (`Quota`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol

from msgspec import Struct, field

from worker_agent.config import Clock
from worker_agent.errors import ErrorKind, ModelError

SPACING = 0.2  # seconds between two starts after a block, on average
RAMP = 10.0  # seconds after a block during which starts are spaced
PAUSE = 1.0  # seconds of block after a rate limit that names no time, doubling while they go on
LONGEST_PAUSE = 32.0
LONGEST_BLOCK = 3600.0  # a server that asks for more is not waited for: each call fails by itself
LONGEST_HEADER_BLOCK = 60.0
PREFIX_WAIT = 5.0
PREFIX_WARM = 300.0  # seconds the provider keeps a cache entry after its last use
PREFIXES = 1_000

_RATE_HEADERS = tuple(
    (f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset")
    for what in ("requests", "tokens", "input-tokens", "output-tokens")
)


class Quota(Protocol):
    """What an account allows in a minute, of which this process has a part."""

    async def take(self) -> None:
        """Returns when one more request may start."""
        ...

    def used(self, tokens: int) -> None: ...


_SLOWING = frozenset({ErrorKind.RATE_LIMIT, ErrorKind.OVERLOADED})


class Limiter:
    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._rng = rng or random.Random()
        self._blocked_until = -math.inf
        self._next_start = -math.inf
        self._strikes = 0
        self._limit = math.inf
        self._goal = math.inf  # the limit at which the cap is lifted
        self._cut_at = -math.inf
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._prefixes: dict[Hashable, _Prefix] = {}
        self._on_block: Callable[[float], object] = lambda seconds: None
        self._quota: Quota | None = None
        self.output_caps: dict[str, int] = {}  # of models that refused a higher one

    @property
    def blocked_for(self) -> float:
        """Seconds until anybody may send."""
        return max(0.0, self._blocked_until - self._clock.monotonic())

    @property
    def running(self) -> int:
        """Calls that hold a turn now."""
        return self._running

    @property
    def limit(self) -> float:
        """How many calls may run at once; infinite without trouble."""
        return self._limit

    # --- starting

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[None]:
        """Waits until a call may start, and counts it while it runs. A body that raises nothing is one that went well.

        `model` names whom the call is for; the limits of an account are shared by all."""
        await self._start()
        try:
            yield
            self.went_well()
        finally:
            self._leave()

    async def _start(self) -> None:
        if self._quota is not None:
            await self._quota.take()
        while True:
            await self.wait()
            await self._take_place()
            if not self.blocked_for:
                return
            self._leave()  # a block came while this call stood in the queue

    async def wait(self) -> None:
        """Returns when this call may start, as far as time is concerned."""
        while True:
            now = self._clock.monotonic()
            start = self._reserve(now)
            if start <= now:
                return
            await self._clock.sleep(start - now)
            if self._clock.monotonic() >= self._blocked_until:
                return

    def _reserve(self, now: float) -> float:
        """The start of the next call: now, or after a block its place in the row."""
        ramp_ends = self._blocked_until + RAMP
        if now >= ramp_ends:
            return now
        start = max(now, self._blocked_until, self._next_start)
        if start <= self._blocked_until:
            start = self._blocked_until + SPACING * self._rng.random()
        # Denser and denser, so that the ramp ends for however many wait.
        left = max(0.0, (ramp_ends - start) / RAMP)
        self._next_start = start + SPACING * left * (0.5 + self._rng.random())
        return start

    async def _take_place(self) -> None:
        if not self._queue and self._running < self._limit:
            self._running += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # it was given just now: to the next one
            else:
                self._queue.remove(place)
            raise

    def _leave(self) -> None:
        self._running -= 1
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._running < self._limit:
            place = self._queue.popleft()
            if not place.done():
                self._running += 1
                place.set_result(None)

    # --- learning

    def observe(self, error: ModelError) -> None:
        """What a failed call says of the limits. Errors that say nothing of them are ignored."""
        if error.kind not in _SLOWING:
            return
        now = self._clock.monotonic()
        if error.retry_after is not None and error.retry_after > LONGEST_BLOCK:
            return
        self._cut(now)
        if error.retry_after:
            self._block(now + error.retry_after)
        elif error.kind is ErrorKind.RATE_LIMIT:
            self._block(now + min(LONGEST_PAUSE, PAUSE * 2.0 ** min(self._strikes, 10)))
            self._strikes += 1

    def used(self, tokens: int) -> None:
        """A call used so many tokens."""
        if self._quota is not None:
            self._quota.used(tokens)

    def share(self, on_block: Callable[[float], object], quota: Quota | None) -> None:
        """Others use the account, too: `on_block` is called with the seconds for which a server wants nobody to send."""
        self._on_block, self._quota = on_block, quota

    def block_for(self, seconds: float) -> None:
        """Another process learned that nobody may send for so long."""
        if seconds > 0:
            self._blocked_until = max(self._blocked_until, self._clock.monotonic() + min(seconds, LONGEST_BLOCK))

    def went_well(self) -> None:
        """A call got its whole answer."""
        self._strikes = 0
        if self._limit < math.inf:
            self._limit += 1.0 / max(1.0, self._limit / 4)
            if self._limit >= self._goal:
                self._limit = self._goal = math.inf
            self._admit()

    def headers(self, headers: Mapping[str, str]) -> None:
        """Reads `anthropic-ratelimit-…`: where nothing remains, nobody sends before the reset."""
        for remaining, reset in _RATE_HEADERS:
            if headers.get(remaining, "").strip() == "0":
                self._block_until_reset(headers.get(reset, ""))

    def _block_until_reset(self, reset: str) -> None:
        try:
            left = datetime.fromisoformat(reset).timestamp() - self._clock.now()
        except ValueError:
            return
        if left > 0:
            self._block(self._clock.monotonic() + min(left, LONGEST_HEADER_BLOCK))

    def _block(self, until: float) -> None:
        if until > self._blocked_until:
            self._blocked_until = until
            self._on_block(until - self._clock.monotonic())

    def _cut(self, now: float) -> None:
        """Halves what may run at once; the errors of calls that started together count as one."""
        if now - self._cut_at < PAUSE:
            return
        self._cut_at = now
        before = min(self._limit, max(self._running, 1))
        self._goal = max(self._goal if self._goal < math.inf else 0, 2.0 * before)
        self._limit = max(1.0, before / 2)

    # --- prefixes of the prompt cache

    @asynccontextmanager
    async def prefix(self, key: Hashable) -> AsyncIterator[Lead]:
        """Around one call on the cacheable prefix `key`; `lead.began()` when its answer begins."""
        prefix = self._prefix(key)
        await self._wait_for_lead(prefix)
        lead = Lead(self, prefix)
        try:
            yield lead
        finally:
            lead._end()

    def _prefix(self, key: Hashable) -> _Prefix:
        if len(self._prefixes) >= PREFIXES and key not in self._prefixes:
            now = self._clock.monotonic()
            self._prefixes = {k: p for k, p in self._prefixes.items() if p.leads or p.warm_until > now}
        return self._prefixes.setdefault(key, _Prefix())

    async def _wait_for_lead(self, prefix: _Prefix) -> None:
        """Returns at once on a warm prefix or as its first caller; else when the leader's answer begins, when it
        gave up (then one of the waiting leads), or after `PREFIX_WAIT`."""
        give_up = self._clock.monotonic() + PREFIX_WAIT
        while prefix.leads and self._clock.monotonic() < give_up and not prefix.is_warm(self._clock.monotonic()):
            changed = asyncio.ensure_future(prefix.changed.wait())
            timer = asyncio.ensure_future(self._clock.sleep(give_up - self._clock.monotonic()))
            try:
                await asyncio.wait({changed, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
                timer.cancel()
        prefix.begin()


class _Prefix(Struct):
    """`leads` are the calls under way on it; `changed` is replaced when one of them began or gave up."""

    leads: int = 0
    warm_until: float = -math.inf
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def is_warm(self, now: float) -> bool:
        return now < self.warm_until

    def begin(self) -> None:
        """A call is under way."""
        self.leads += 1

    def warm(self, until: float) -> None:
        """Its cache entry can be read."""
        self.warm_until = until
        self._wake()

    def end(self) -> None:
        """A call is over."""
        self.leads -= 1
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Lead:
    """One call on a prefix."""

    def __init__(self, limiter: Limiter, prefix: _Prefix) -> None:
        self._limiter = limiter
        self._prefix = prefix

    def began(self) -> None:
        """The answer began: the cache entry can be read from now on."""
        self._prefix.warm(self._limiter._clock.monotonic() + PREFIX_WARM)

    def _end(self) -> None:
        self._prefix.end()
