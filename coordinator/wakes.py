"""What wakes whom within a session: made before everybody who rings or listens, and given to all of them.

Whoever rings knows nobody who hears it. So no object waits to be finished by another one, and nothing is forgotten where
two of them are put together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, ParamSpec

from msgspec import Struct, field

P = ParamSpec("P")


class Signal(Generic[P]):
    """Something that happens. Whoever listens is called at once, in the thread of the caller, in the order of coming."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def listen(self, listener: Callable[P, object]) -> None:
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)


class Wakes(Struct, frozen=True):
    """Of one session, in one event loop; `elsewhere` and `failed` ring in any thread.

    `ready`: something may have become ready for the session's own agent; whoever waits for it looks again, nobody polls.
    `news`: something may wait in that agent's inbox. `message`: something is stored for the agent of this task.
    `remark`: a hook in the background has something to say to an agent (None: to the one a person talks to).
    `others`: what other processes wrote may concern anybody here.
    `standstill`: it may have changed whether nothing goes on but waiting for a person. `elsewhere`: another process wrote.
    `failed`: nothing can be stored any more."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    news: Signal[[]] = field(default_factory=Signal)
    message: Signal[[str]] = field(default_factory=Signal)
    remark: Signal[[str | None, str]] = field(default_factory=Signal)
    others: Signal[[]] = field(default_factory=Signal)
    standstill: Signal[[]] = field(default_factory=Signal)
    elsewhere: Signal[[]] = field(default_factory=Signal)
    failed: Signal[[]] = field(default_factory=Signal)

    def ended(self, task_id: str) -> None:
        """A run stored its end, or left: its notification may wait."""
        self.news()
        self.ready.set()
