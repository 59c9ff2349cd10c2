"""One try of one model call: reserve → admit → fold → settle → book. The only place that streams a model.

Rules:

1. Whoever asks a model asks through a `Caller`: the loop for a turn, a compaction, a collapse, the line about a turn's
   tools. So nothing is outside of budget, limiter and ledger.
2. What was reserved is settled and what was used is booked when the `Call` is left, however it is left.
3. What works beside an agent's turns (`spare`) takes only what nobody else needs: it never waits for money.
4. The 80 % notice of a budget belongs to who can tell the agent: reading it takes it. `ask` never reads it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Protocol

from msgspec import Struct

from worker_agent import messages as m
from worker_agent.api.client import BlockClosed, Finished, ModelClient, ModelEvent, ModelRequest, Started
from worker_agent.api.limiter import Lead, Limiter
from worker_agent.api.retry import RetrySchedule
from worker_agent.config import Clock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.events import ModelCalled, Purpose
from worker_agent.messages import Block, Message, Usage
from worker_agent.structs import replace

Guarding = Callable[[], AbstractAsyncContextManager[None]]
"""What stands around every wait of a call, so that a wish to stop ends it."""


class Reservation(Protocol):
    """Budget held for one call."""

    @property
    def notice(self) -> str | None:
        """Something the agent must be told now (80 % used), once: who reads it tells it."""
        ...

    @property
    def last_call(self) -> bool:
        """The budget is used up: this is the one tool-free call to report with."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The output cap that still fits; None = as asked."""
        ...

    def settle(self, model: str, usage: Usage | None) -> None:
        """Book what was used (None: nothing came back) and give back the rest. A second call does nothing."""
        ...


class Budget(Protocol):
    async def reserve(self, request: ModelRequest, prompt_tokens: int) -> Reservation:
        """Hold what this call may cost at most. Raises `ModelError` of kind BUDGET when nothing is left at all."""
        ...

    def spare(self, request: ModelRequest, prompt_tokens: int) -> Reservation:
        """Hold it only if it fits at once beside all that others need. Raises `ModelError` of kind BUDGET."""
        ...


def _unbooked(call: ModelCalled) -> None:
    return None


class Caller(Struct, frozen=True, kw_only=True):
    """What one agent calls models with. `book` is told of every call that ended, once."""

    client: ModelClient
    limiter: Limiter
    budget: Budget
    clock: Clock
    book: Callable[[ModelCalled], None] = _unbooked
    guard: Guarding = nullcontext

    @asynccontextmanager
    async def call(
        self, request: ModelRequest, prompt_tokens: int, *, purpose: Purpose = Purpose.TURN, spare: bool = False
    ) -> AsyncIterator[Call]:
        """The call, its budget held. Raises `ModelError` of kind BUDGET."""
        async with self.guard():
            if spare:
                held = self.budget.spare(request, prompt_tokens)
            else:
                held = await self.budget.reserve(request, prompt_tokens)
        if held.max_tokens is not None:
            request = replace(request, max_tokens=min(request.max_tokens, held.max_tokens))
        call = Call(self, request, held, purpose)
        try:
            yield call
        finally:
            held.settle(request.model, call.usage if call.response_id else None)
            self.limiter.used(call.usage.total)
            self.book(call.called())

    async def ask(
        self,
        request: ModelRequest,
        prompt_tokens: int,
        *,
        purpose: Purpose,
        schedule: RetrySchedule | None = None,
        spare: bool = False,
    ) -> Message:
        """The whole answer to `request`, its calls not run. Tried again as `schedule` says, not at all without one, and at
        once where the endpoint refused a feature that it will not be sent again. Raises `ModelError`; of kind BUDGET also
        where the rest is for the agent's own report."""
        attempt, has_gone_plain = 0, False
        while True:
            attempt += 1
            try:
                return await self._one_answer(request, prompt_tokens, purpose, spare)
            except ModelError as error:
                if error.kind is ErrorKind.UNSUPPORTED and request.compact is None and not has_gone_plain:
                    has_gone_plain = True
                    continue
                self.limiter.observe(error)
                delay = schedule.delay(error, attempt) if schedule else None
                if delay is None:
                    raise
                await self.clock.sleep(delay)

    async def _one_answer(self, request: ModelRequest, prompt_tokens: int, purpose: Purpose, spare: bool) -> Message:
        blocks: list[Block] = []
        async with self.call(request, prompt_tokens, purpose=purpose, spare=spare) as call:
            if call.reservation.last_call:
                raise ModelError(ErrorKind.BUDGET, "what the budget leaves is for the agent's report")
            async for event in call.events():
                if isinstance(event, BlockClosed):
                    blocks.append(event.block)
        return m.assistant(blocks, usage=call.usage, model=request.model, response_id=call.response_id, at=self.clock.now())


class Call:
    """One try. `request` may be changed until `events` is iterated; the rest says what came so far."""

    def __init__(self, caller: Caller, request: ModelRequest, reservation: Reservation, purpose: Purpose) -> None:
        self.request = request
        self.reservation = reservation
        self.purpose = purpose
        self.response_id: str | None = None
        self.request_id: str | None = None
        self.usage = Usage()
        self.finished: Finished | None = None
        self._caller = caller
        self._began_at: float | None = None

    def say(self, message: Message) -> None:
        """It stands at the end of what is sent."""
        self.request = replace(self.request, messages=(*self.request.messages, message))

    def forbid_tools(self) -> None:
        self.request = replace(self.request, tools_allowed=False)

    async def events(self) -> AsyncGenerator[ModelEvent, None]:
        """The events of the stream, up to and including `Finished`. Raises `ModelError`."""
        async with self._admitted() as lead:
            stream = self._caller.client.stream(self.request)
            try:
                while self.finished is None:
                    async with self._caller.guard():
                        event = await anext(stream, None)
                    if event is None:
                        raise ModelError(ErrorKind.STREAM_BROKEN, "the stream ended before the answer was whole")
                    self._note(event, lead)
                    yield event
            finally:
                await stream.aclose()

    def called(self, error: ModelError | None = None) -> ModelCalled:
        """What observers and the ledger are told of this call."""
        duration = self._caller.clock.monotonic() - self._began_at if self._began_at is not None else 0.0
        kind = error.kind.value if error else None
        return ModelCalled(self.response_id, self.request.model, self.usage, duration, kind, self.purpose)

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[Lead | None]:
        """The limiter lets this call start, and of several turns on one cold prefix the first goes ahead."""
        limiter, request, lead = self._caller.limiter, self.request, None
        async with AsyncExitStack() as stack:
            async with self._caller.guard():
                if self.purpose is Purpose.TURN:
                    key = (request.model, request.system[:1], tuple(tool.name for tool in request.tools))
                    lead = await stack.enter_async_context(limiter.prefix(key))
                await stack.enter_async_context(limiter.turn(request.model))
            self._began_at = self._caller.clock.monotonic()
            yield lead

    def _note(self, event: ModelEvent, lead: Lead | None) -> None:
        match event:
            case Started():
                self.response_id, self.request_id, self.usage = event.response_id, event.request_id, event.usage
                if lead is not None:
                    lead.began()
            case Finished():
                self.finished, self.usage = event, event.usage
