"""Tools that run while the model still talks.

Theory. Every call is in one state of `MOVES`; a move that is not in the table is a bug and raises. Calls start strictly
in the order asked: the first queued call starts if `admits` says so, else nothing behind it starts either. So a call
that is not safe beside others waits for all before it and holds back all after it.

1. One `asyncio.Task` a call, made when it starts. Nothing else is left pending, whatever happens.
2. Every call has exactly one outcome, in the order asked: its own, or a synthetic one that says it was interrupted and
   whether its effects are unknown. A failing call cancels nobody.
3. A call gives its place free as soon as it is done; only then is its outcome made durable (`on_outcome`), so that
   storing holds back nobody. It counts as completed when that is done.
4. On interrupt everything that runs is cancelled *and awaited*. What does not heed a cancellation within
   `kill_grace` + `PATIENCE` seconds is abandoned: its place is free, what it still says is thrown away.
5. What fails outside of a call (an intent or outcome that cannot be stored: this process lost the agent) ends the
   turn: `results` raises it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum

from worker_agent.events import ToolFinished, ToolProgress, ToolStarted
from worker_agent.messages import Block
from worker_agent.tools.base import Input, RecordIntent, Tool, ToolContext, ToolOutcome
from worker_agent.tools.lifecycle import agrees, error_block, run_call
from worker_agent.tools.registry import ToolRegistry

ToolEvent = ToolStarted | ToolProgress | ToolFinished
OnEvent = Callable[[ToolEvent], None]
OnOutcome = Callable[[ToolOutcome], Awaitable[None]]

PATIENCE = 1.5  # seconds beyond `kill_grace`: a shell needs the grace itself, and then some to be proven gone


class CallState(StrEnum):
    QUEUED = "queued"
    EXECUTING = "executing"
    COMPLETED = "completed"
    YIELDED = "yielded"
    DISCARDED = "discarded"


MOVES: dict[CallState, frozenset[CallState]] = {
    CallState.QUEUED: frozenset({CallState.EXECUTING, CallState.COMPLETED, CallState.DISCARDED}),
    CallState.EXECUTING: frozenset({CallState.COMPLETED, CallState.DISCARDED}),
    CallState.COMPLETED: frozenset({CallState.YIELDED, CallState.DISCARDED}),
    CallState.YIELDED: frozenset(),
    CallState.DISCARDED: frozenset(),
}


class IllegalMove(Exception):
    """A call was to make a move that `MOVES` does not have."""


def admits(candidate_safe: bool, running_safe: Sequence[bool], limit: int) -> bool:
    """Whether a call may start now: alone always, beside others only if all are safe and a place is free."""
    if not running_safe:
        return True
    return candidate_safe and all(running_safe) and len(running_safe) < limit


class _Call:
    __slots__ = (
        "announced", "block", "entered", "invalid", "outcome", "parked", "read_only", "safe", "state", "task", "tool", "typed",
    )  # fmt: skip

    def __init__(self, block: Block, tool: Tool | None, invalid: str | None, typed: Block | None = None) -> None:
        runs = tool is not None and invalid is None
        self.block = block  # what is shown and stored
        self.typed = typed or block  # what runs
        input: Input = self.typed.get("input") or {}
        self.tool = tool
        self.invalid = invalid
        self.safe = agrees(tool.is_concurrency_safe, input) if runs and tool else True
        self.read_only = agrees(tool.is_read_only, input) if runs and tool else True
        self.state = CallState.QUEUED
        self.task: asyncio.Task[None] | None = None
        self.outcome: ToolOutcome | None = None
        self.announced = False  # observers know that it started
        self.entered = False  # the tool itself began
        self.parked: asyncio.Future[None] | None = None  # waits to run alone after all

    def move(self, to: CallState) -> None:
        if to not in MOVES[self.state]:
            raise IllegalMove(f"{self.state} → {to}")
        self.state = to

    def begin(self, task: asyncio.Task[None]) -> None:
        self.move(CallState.EXECUTING)
        self.task = task

    def announce(self) -> None:
        self.announced = True

    def note_read_only(self, read_only: bool) -> None:
        """What the input that came out of the gates is."""
        self.read_only = read_only

    def enter(self) -> None:
        self.entered = True

    def park(self) -> asyncio.Future[None]:
        """It may not run beside others after all; done when it is alone."""
        self.safe = False
        self.parked = asyncio.get_running_loop().create_future()
        return self.parked

    def unpark(self) -> None:
        self.parked = None

    def end(self, outcome: ToolOutcome) -> ToolOutcome:
        """The first outcome stays."""
        self.outcome = self.outcome or outcome
        return self.outcome

    @property
    def id(self) -> str:
        return str(self.block["id"])

    @property
    def name(self) -> str:
        return str(self.block.get("name"))


class StreamingToolExecutor:
    """Runs the calls of one answer; see the head of the file."""

    def __init__(
        self,
        registry: ToolRegistry,
        context: ToolContext,
        *,
        max_concurrency: int = 10,
        record_intent: RecordIntent | None = None,
        on_event: OnEvent = lambda event: None,
        on_outcome: OnOutcome | None = None,
        patience: float = PATIENCE,
        holds: bool = False,
    ) -> None:
        """With `holds` nothing starts before `release`: then what stands together and is safe runs together, all else alone."""
        self._holds = holds
        self._registry = registry
        self._context = context
        self._limit = max(max_concurrency, 1)
        self._record_intent = record_intent
        self._on_event = on_event
        self._on_outcome = on_outcome
        self._patience = context.settings.kill_grace + patience
        self._calls: list[_Call] = []
        self._queued: deque[_Call] = deque()
        self._executing: list[_Call] = []  # those that hold a place
        self._closed = False  # nothing starts any more
        self._discarded = False
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: BaseException | None = None
        self._side_effects = False

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_tool(self, block: Block, invalid: str | None = None, typed: Block | None = None) -> None:
        """Queue the `tool_use` in `block`; it may start at once. `invalid` says why its JSON could not be read; `typed` is
        the same call as the model wrote it, where `block` had to leave out a secret."""
        call = _Call(block, self._registry.get(str(block.get("name"))), invalid, typed)
        self._calls.append(call)
        if self._closed:
            self._end_synthetic(call, "stopped")
            return
        self._queued.append(call)
        self._pump()

    def release(self) -> None:
        """The answer is whole: what was held back starts."""
        self._holds = False
        self._pump()

    @property
    def side_effects_started(self) -> bool:
        """Whether a call that is not read-only passed its gates and began, or was about to."""
        return self._side_effects

    @property
    def is_done(self) -> bool:
        """Whether every call has its outcome: `results` gives them without waiting."""
        return self._failure is None and all(call.state is CallState.COMPLETED for call in self._calls)

    @property
    def states(self) -> dict[str, CallState]:
        return {call.id: call.state for call in self._calls}

    # ── answering ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def outcomes(self) -> AsyncIterator[ToolOutcome]:
        """Each outcome as soon as it and all before it are there. After `discard`: none."""
        index = 0
        while index < len(self._calls) and not self._discarded:
            call = self._calls[index]
            while call.state in (CallState.QUEUED, CallState.EXECUTING) and self._failure is None:
                await self._changed()
            if self._failure is not None:
                raise self._failure
            if self._discarded:
                return
            yield self._yielded(call)
            index += 1

    async def results(self) -> list[ToolOutcome]:
        """The outcomes of all calls added, in the order asked, when all are there."""
        return [outcome async for outcome in self.outcomes()]

    async def interrupt(self, words: str) -> list[ToolOutcome]:
        """End all calls: cancel what runs, wait for it, and give every call's outcome, in the order asked. `words` say
        what happened to them, as `Cause.in_words` does: they complete "This call was …"."""
        self._closed = True
        await self._cancel_all()
        for call in self._calls:
            self._end_synthetic(call, words)
        self._wake()
        if self._failure is not None:
            raise self._failure
        return [] if self._discarded else [self._yielded(call) for call in self._calls]

    async def discard(self) -> None:
        """Cancel what runs, wait for it, and give nothing more: no event, no outcome."""
        self._closed = self._discarded = True
        self._on_event = lambda event: None
        self._on_outcome = self._record_intent = None  # whose they are is let go, too
        await self._cancel_all()
        for call in self._calls:
            if CallState.DISCARDED in MOVES[call.state]:
                call.move(CallState.DISCARDED)
        self._wake()

    def _yielded(self, call: _Call) -> ToolOutcome:
        assert call.outcome is not None
        if call.state is CallState.COMPLETED:
            call.move(CallState.YIELDED)
        return call.outcome

    # ── running ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Let start what may start, in order."""
        if self._closed or self._holds:
            return
        running = [call.safe for call in self._executing if call.parked is None]
        if alone := next((call.parked for call in self._executing if call.parked is not None), None):
            if not running and not alone.done():
                alone.set_result(None)
            return  # it runs alone, and before everything behind it
        while self._queued and admits(self._queued[0].safe, running, self._limit):
            call = self._queued.popleft()
            running.append(call.safe)
            self._executing.append(call)
            call.begin(asyncio.get_running_loop().create_task(self._run(call)))

    async def _run(self, call: _Call) -> None:
        try:
            outcome = await self._outcome(call)
            if call.outcome is None:  # else it was abandoned, and answered for, meanwhile
                call.end(outcome)
                await self._complete(call, outcome)
        except Exception as error:  # nothing of the call itself: what stores or observes it failed
            self._fail(error)

    async def _outcome(self, call: _Call) -> ToolOutcome:
        context = self._context.for_call(call.id, lambda text: self._progress(call, text))
        activity = self._context.redact(_activity(call))
        self._on_event(ToolStarted(call.id, call.name, call.block.get("input") or {}, activity))
        call.announce()

        async def before_call(input: Input, read_only: bool) -> None:
            await self._before_call(call, input, read_only)

        try:
            return await run_call(call.tool, call.typed, context, call.invalid, before_call=before_call)
        except asyncio.CancelledError:
            if self._closed:
                raise
            return _synthetic(call, "cancelled from inside")

    async def _before_call(self, call: _Call, input: Input, read_only: bool) -> None:
        """The gates are passed: run alone if the input that came out of them wants that, and record the intent."""
        call.note_read_only(read_only)
        if call.safe and call.tool is not None and not agrees(call.tool.is_concurrency_safe, input):
            await self._wait_alone(call)
        if not read_only:
            self._side_effects = True
            if self._record_intent is not None:
                await self._record_intent(call.id)
        call.enter()

    async def _wait_alone(self, call: _Call) -> None:
        alone = call.park()
        self._pump()
        try:
            await alone
        finally:
            call.unpark()

    async def _complete(self, call: _Call, outcome: ToolOutcome) -> None:
        self._executing.remove(call)
        self._on_event(ToolFinished(call.id, call.name, outcome.is_error, outcome.duration))
        self._pump()
        if self._on_outcome is not None:
            await self._on_outcome(outcome)
        if call.state is CallState.EXECUTING:
            call.move(CallState.COMPLETED)
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._closed = True
        self._failure = self._failure or error
        self._wake()

    def _progress(self, call: _Call, text: str) -> None:
        if call.outcome is None and call.state is CallState.EXECUTING:
            self._on_event(ToolProgress(call.id, self._context.redact(text)))

    # ── ending ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _cancel_all(self) -> None:
        """Cancel what runs and wait for it; what already has its outcome is only waited for. Bounded."""
        tasks: dict[asyncio.Task[None], _Call] = {c.task: c for c in self._calls if c.task and not c.task.done()}
        for task, call in tasks.items():
            if call.outcome is None:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._patience)
        for task in tasks:
            if not task.done():
                task.cancel()
                task.add_done_callback(_forget)

    def _end_synthetic(self, call: _Call, words: str) -> None:
        """Give a call that has no outcome one that says why."""
        if call.state not in (CallState.QUEUED, CallState.EXECUTING):
            return
        untold = call.announced and call.outcome is None
        outcome = call.end(_synthetic(call, words))
        call.move(CallState.COMPLETED)
        if untold:
            self._on_event(ToolFinished(call.id, call.name, True, outcome.duration))

    # ── waiting ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _synthetic(call: _Call, words: str) -> ToolOutcome:
    if not call.entered:
        text = f"This call was {words} before it ran. It had no effect."
    elif call.read_only:
        text = f"This call was {words}. It has no result."
    else:
        text = f"This call was {words} while it ran. Its effects are unknown: check what it did before you repeat it."
    return ToolOutcome(
        tool_use_id=call.id,
        name=call.name,
        block=error_block(call.id, text),
        is_error=True,
        duration=0.0,
        read_only=call.read_only,
        synthetic=True,
    )


def _activity(call: _Call) -> str:
    """The tool's own words, or its name where an unchecked input makes it stumble."""
    if call.tool is None or call.invalid is not None:
        return call.name
    try:
        return call.tool.activity(call.block.get("input") or {})
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return call.name


def _forget(task: asyncio.Task[None]) -> None:
    """Take note of how an abandoned call ended, so that nobody is warned of it."""
    if not task.cancelled():
        task.exception()
