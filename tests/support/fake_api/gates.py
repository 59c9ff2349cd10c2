"""Stopping a stream at a known place, without sleeping.

A `Gate` put into a reply holds the server there. The test waits for `gate.reached`, does what it came for, and calls
`gate.open()`. A gate opens once and stays open; any thread may open it, any number of requests may wait at it.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass


class Gate:
    """`arrivals` counts the requests that came to the gate, open or not; `reached` is set by the first."""

    def __init__(self, name: str = "gate") -> None:
        self.name = name
        self.reached = threading.Event()
        self.arrivals = 0
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._opened = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def opened(self) -> bool:
        return self._opened

    def open(self) -> None:
        """Let everything pass, now and later."""
        with self._lock:
            self._opened = True
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def wait_reached(self, count: int = 1, timeout: float = 10.0) -> None:
        """Block until `count` requests have arrived; AssertionError after `timeout` seconds."""
        with self._more:
            if not self._more.wait_for(lambda: self.arrivals >= count, timeout):
                raise AssertionError(f"{self.name}: {self.arrivals} of {count} requests arrived in {timeout} s")

    async def until_reached(self, count: int = 1, timeout: float = 10.0) -> None:
        """`wait_reached` for a test that runs an event loop of its own."""
        await asyncio.to_thread(self.wait_reached, count, timeout)

    async def pass_through(self) -> None:
        """The server's side: report the arrival, wait until open."""
        event = asyncio.Event()
        with self._more:
            self.arrivals += 1
            self.reached.set()
            self._more.notify_all()
            if self._opened:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


@dataclass(frozen=True, slots=True)
class Delay:
    """Real time passes here: for the few tests that are about time."""

    seconds: float

    async def pass_through(self) -> None:
        await asyncio.sleep(self.seconds)


def delay(seconds: float) -> Delay:
    return Delay(seconds)


Pause = Gate | Delay
