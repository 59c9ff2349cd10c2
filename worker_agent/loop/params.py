"""What `query()` is given, and the buffer through which tools speak while something else is awaited."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct, field

from worker_agent.api.call import Caller
from worker_agent.events import Event
from worker_agent.loop.agent import Agent
from worker_agent.loop.ports import ContextPort
from worker_agent.messages import Message
from worker_agent.tools.base import AbortSignal


class QueryParams(Struct, frozen=True, kw_only=True):
    """One run of the loop of an `agent`. `messages` is the history, its newest message the one to answer; `max_turns`
    counts model calls whose tools ran; `tokens_used` of the target `token_budget` were spent before this run."""

    agent: Agent
    context: ContextPort
    messages: tuple[Message, ...]
    abort: AbortSignal = field(default_factory=AbortSignal)
    max_turns: int | None = None
    token_budget: int | None = None
    tokens_used: int = 0
    output_schema: dict[str, Any] | None = None

    def caller(self, *, stops: bool = True) -> Caller:
        """How the agent asks a model. `stops`: an interrupt ends the waiting."""
        return self.agent.caller(self.abort.guard) if stops else self.agent.caller()


class EventBuffer:
    """Events of what runs beside the loop, in the order they happened, until the loop yields them. One waiter at a time.

    Tools write what they have to say at once. A model's stream, which has more of it than anything else, reads on only while
    there is `room`: so an observer that is slow slows the stream, and what waits for it does not grow with the answer."""

    ROOM = 1000  # events

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def wake(self, *_: Any) -> None:
        self._wake.set()

    def drain(self) -> list[Event]:
        self._wake.clear()
        self._room.set()
        events, self._events = self._events, []
        return events

    async def wait(self) -> None:
        await self._wake.wait()

    @property
    def is_full(self) -> bool:
        return len(self._events) >= self.ROOM

    async def room(self) -> None:
        """Return when the loop has taken what made the buffer full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()
