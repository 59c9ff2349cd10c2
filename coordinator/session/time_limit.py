"""`--timeout`: the time a run may take, less the time in which everything waits for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from worker_agent.config import Clock


class TimeLimit:
    """Belongs to one event loop. `waits` says whether nothing goes on but waiting for a person; whoever changes that calls
    `look`. `seconds` None: no limit."""

    def __init__(self, clock: Clock, seconds: float | None, waits: Callable[[], bool]) -> None:
        self._clock = clock
        self._left = seconds
        self._waits = waits
        self._changed = asyncio.Event()

    def look(self) -> None:
        self._changed.set()

    async def run_out(self) -> None:
        """Return when the time has run out; never without a limit."""
        while self._left is None or self._left > 0:
            self._changed.clear()
            stands = self._left is None or self._waits()
            begun = self._clock.monotonic()
            changed = asyncio.create_task(self._changed.wait())
            over = asyncio.create_task(self._clock.sleep(self._left or 0.0)) if not stands else None
            try:
                await asyncio.wait([changed, over] if over else [changed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in filter(None, (changed, over)):
                    task.cancel()
            if over is not None and self._left is not None:
                self._left -= self._clock.monotonic() - begun
