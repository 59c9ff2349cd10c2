"""What `query()` is given, and the buffer through which tools speak while something else is awaited."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from worker_agent.api.call import Caller, Guarding
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.config import Clock, Settings, SystemClock
from worker_agent.events import Event, ModelCalled
from worker_agent.loop.ports import AttachmentSource, Budget, ContextPort, Inbox, Journal, NoAttachments, Nothing, StopHooks
from worker_agent.messages import Message
from worker_agent.tools.base import AbortSignal, ToolContext
from worker_agent.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParams:
    """One run of the loop. `messages` is the history, its newest message the one to answer; `system` the blocks of
    the system prompt; `user_context` stands in front of the conversation at the moment of the call only; `deadline` is
    a `clock.monotonic()` time past which no retry is waited for."""

    messages: tuple[Message, ...]
    system: tuple[str, ...]
    registry: ToolRegistry
    tool_context: ToolContext
    client: ModelClient
    limiter: Limiter
    model: str
    settings: Settings
    journal: Journal
    context: ContextPort
    user_context: Message | None = None
    fallback_model: str | None = None
    inbox: Inbox = field(default_factory=Nothing)
    attachments: AttachmentSource = field(default_factory=NoAttachments)
    stop_hooks: StopHooks = field(default_factory=Nothing)
    budget: Budget = field(default_factory=Nothing)
    book: Callable[[ModelCalled], None] = field(default=lambda call: None)
    abort: AbortSignal = field(default_factory=AbortSignal)
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)
    conversation: str = ""
    max_turns: int | None = None
    token_budget: int | None = None
    effort: str | None = None
    output_schema: dict[str, Any] | None = None
    deadline: float | None = None
    top: bool = True

    def caller(self, *, stops: bool = True) -> Caller:
        """How this agent asks a model. `stops`: an interrupt ends the waiting."""
        guard: Guarding = self.abort.guard if stops else nullcontext
        return Caller(
            client=self.client, limiter=self.limiter, budget=self.budget, clock=self.clock, book=self.book, guard=guard
        )


class EventBuffer:
    """Events of tools that run beside the loop, until the loop yields them. One waiter at a time."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def wake(self, *_: Any) -> None:
        self._wake.set()

    def drain(self) -> list[Event]:
        self._wake.clear()
        events, self._events = self._events, []
        return events

    async def wait(self) -> None:
        await self._wake.wait()
