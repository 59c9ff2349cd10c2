"""`Agent`: what one agent is made of, as one frozen value that the loop, the context steps and the session share."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext

from msgspec import Struct, field

from worker_agent.api.call import Caller, Guarding
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.config import Clock, Settings, SystemClock
from worker_agent.events import ModelCalled
from worker_agent.loop.ports import AttachmentSource, Budget, Inbox, Journal, NoAttachments, Nothing, StopHooks, TurnHooks
from worker_agent.messages import Message
from worker_agent.tools.base import ToolContext
from worker_agent.tools.registry import ToolRegistry


class Agent(Struct, frozen=True, kw_only=True):
    """`system` are the blocks of the system prompt; `user_context` stands in front of the conversation at the moment of
    a call only; `deadline` is a `clock.monotonic()` time past which no retry is waited for; `top` is False below the
    coordinator."""

    client: ModelClient
    limiter: Limiter
    registry: ToolRegistry
    tool_context: ToolContext
    system: tuple[str, ...]
    model: str
    settings: Settings
    journal: Journal
    user_context: Message | None = None
    fallback_model: str | None = None
    inbox: Inbox = field(default_factory=Nothing)
    attachments: AttachmentSource = field(default_factory=NoAttachments)
    stop_hooks: StopHooks = field(default_factory=Nothing)
    turn_hooks: TurnHooks = field(default_factory=Nothing)
    budget: Budget = field(default_factory=Nothing)
    book: Callable[[ModelCalled], None] = field(default=lambda call: None)
    effort: str | None = None
    deadline: float | None = None
    top: bool = True
    awaits: Callable[[], bool] = field(default=lambda: False)  # whether something it began still runs that will report to it
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)

    @property
    def id(self) -> str:
        return self.tool_context.agent_id

    def caller(self, guard: Guarding = nullcontext) -> Caller:
        """How this agent asks a model; `guard` is what ends the waiting."""
        return Caller(
            client=self.client, limiter=self.limiter, budget=self.budget, clock=self.clock, book=self.book, guard=guard
        )
