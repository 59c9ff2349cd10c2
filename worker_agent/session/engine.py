"""`QueryEngine`: one agent's session, from the first prompt to the last result.

It owns the messages, the abort signal, the denials, usage and cost. `submit_message` runs one prompt through the loop
and ends with one `Result`; the conversation goes on with the next. The limits checked here are the session's own:
turns, money, and the schema of a structured result (at most 5 tries).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.api.client import ModelClient
from worker_agent.api.fallback import OverloadCounter
from worker_agent.api.limiter import Limiter
from worker_agent.causes import Cause
from worker_agent.config import Clock, Settings, SystemClock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.model_turn import Overloads
from worker_agent.loop.params import EventBuffer, QueryParams
from worker_agent.loop.ports import (
    AttachmentSource,
    Budget,
    ContextPort,
    Inbox,
    Journal,
    NoAttachments,
    Nothing,
    Step,
    StopHooks,
)  # fmt: skip
from worker_agent.loop.query import query
from worker_agent.loop.state import ContinueReason, Terminal, TerminalReason
from worker_agent.messages import Message
from worker_agent.session import schema
from worker_agent.session.commands import Command, parse_command, token_budget
from worker_agent.session.transcript import Open
from worker_agent.session.usage import UsageSum
from worker_agent.tools.base import AbortSignal, Interrupted, ToolContext, ToolOutcome
from worker_agent.tools.executor import StreamingToolExecutor
from worker_agent.tools.registry import ToolRegistry

MAX_SCHEMA_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParams:
    """What one agent is made of. `history` is what a resumed conversation begins with, `open` are calls of its last answer
    that are still to run; `deadline` is a
    `clock.monotonic()` time; `top` is False below the coordinator."""

    client: ModelClient
    limiter: Limiter
    registry: ToolRegistry
    tool_context: ToolContext
    system: tuple[str, ...]
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
    book: Callable[[e.ModelCalled], None] = field(default=lambda call: None)
    history: tuple[Message, ...] = ()
    open: Open = Open()
    max_turns: int | None = None
    max_budget_usd: float | None = None
    token_budget: int | None = None
    result_schema: Mapping[str, Any] | None = None
    schema_tries: int = MAX_SCHEMA_TRIES
    effort: str | None = None
    deadline: float | None = None
    top: bool = True
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)


class QueryEngine:
    """One per session. Not for concurrent use: one `submit_message` at a time; `interrupt` from anywhere in its loop."""

    def __init__(self, params: EngineParams) -> None:
        self.params = params
        self.messages: tuple[Message, ...] = params.history
        self._open = params.open
        self.usage = UsageSum(params.client.cost)
        self.turns = 0
        self.tool_turns = 0  # model calls whose tools ran: what `max_turns` counts
        self._pieces: list[str] = []  # of the text that is being written
        self.model = params.model
        self._abort = AbortSignal()
        self._overloads = Overloads(OverloadCounter(params.settings.retry.overloads_before_fallback))

    @property
    def partial_text(self) -> str:
        """What was written of an answer that is not whole yet."""
        return "".join(self._pieces)

    def interrupt(self, cause: Cause) -> None:
        """Stop what runs now; the running `submit_message` ends with its `Result`."""
        self._abort.set(cause)

    async def close(self) -> None:
        """End what still works in the background for this agent, and let its conversation go: nothing is submitted after
        this."""
        await self.params.context.close()
        await self.params.attachments.close()
        self.params.client.forget(self.params.tool_context.agent_id)
        self.messages = ()

    async def submit_message(self, prompt: str | Message | None) -> AsyncIterator[e.Event]:
        """Answer `prompt`; None goes on with the history and what waits in the inbox. Yields events, last one
        `Result`."""
        self._started = self.params.clock.monotonic()
        self._transitions: list[str] = []
        self._turns_before, self._tool_turns_before = self.turns, self.tool_turns
        if isinstance(prompt, str) and (command := parse_command(prompt)) is not None:
            yield await self._run_command(command)
            return
        try:
            async for event in self._answer(prompt):
                yield event
        finally:
            self._abort = AbortSignal()  # an interrupt is for the prompt that runs, or for the first one

    async def _answer(self, prompt: str | Message | None) -> AsyncIterator[e.Event]:
        async for event in self._go_on_with_open_calls():
            yield event
        for taken in await self._take_in(prompt):
            yield e.MessageAdded(taken)
        words = prompt.text if isinstance(prompt, Message) else prompt or ""
        budget = token_budget(words) or self.params.token_budget
        for attempt in range(1, self.params.schema_tries + 1):
            async for event in self._loop(budget):
                yield event
            problem = self._schema_problem()
            if problem is None or attempt == self.params.schema_tries:
                break
            await self._append(m.user(schema.feedback(problem), kind="meta", meta=True, data={"reason": "schema"}))
        yield self._result(problem)

    # ── one run of the loop ────────────────────────────────────────────────────────────────────────────────────────

    async def _loop(self, budget: int | None) -> AsyncIterator[e.Event]:
        async for event in query(self._query_params(budget), self._overloads):
            match event:
                case Terminal():
                    self._terminal, self.messages = event, event.messages
                    self.tool_turns += event.turn_count - 1
                    continue
                case e.ModelCalled():
                    self._count(event)
                case e.TransitionTaken() if event.reason != ContinueReason.NEXT_TURN:
                    self._transitions.append(event.reason)
                case e.TextDelta():
                    self._pieces.append(event.text)
                case e.Tombstone() | e.MessageAdded():
                    self._pieces = []
            yield event

    def _count(self, call: e.ModelCalled) -> None:
        self.usage.add(call)
        self.model = call.model
        if call.error is None:
            self.turns += 1
        limit = self.params.max_budget_usd
        if limit is not None and (self.usage.cost_usd or 0.0) >= limit:
            self._abort.set(Cause.BUDGET)

    def _query_params(self, budget: int | None) -> QueryParams:
        p = self.params
        spent_turns = self.tool_turns - self._tool_turns_before
        return QueryParams(
            messages=self.messages,
            system=p.system,
            registry=p.registry,
            tool_context=p.tool_context,
            client=p.client,
            limiter=p.limiter,
            model=p.model,
            settings=p.settings,
            journal=p.journal,
            context=p.context,
            user_context=p.user_context,
            fallback_model=p.fallback_model,
            inbox=p.inbox,
            attachments=p.attachments,
            stop_hooks=p.stop_hooks,
            budget=p.budget,
            book=p.book,
            abort=self._abort,
            clock=p.clock,
            rng=p.rng,
            conversation=p.tool_context.agent_id,
            max_turns=None if p.max_turns is None else max(0, p.max_turns - spent_turns),
            token_budget=budget,
            effort=p.effort,
            output_schema=dict(p.result_schema) if p.result_schema else None,
            deadline=p.deadline,
            top=p.top,
        )

    async def _go_on_with_open_calls(self) -> AsyncIterator[e.Event]:
        """What an earlier run of this agent left waiting for a person, before anything else is said. An interrupt ends it
        as it ends a turn."""
        open, self._open = self._open, Open()
        if not open.calls:
            return
        p, results_id, events = self.params, m.new_message_id(), EventBuffer()

        async def keep(outcome: ToolOutcome) -> None:
            if not outcome.read_only and not outcome.synthetic:
                await p.journal.step(Step(kind="result", message_id=results_id, blocks=(outcome.block,)))

        executor = StreamingToolExecutor(p.registry, p.tool_context, on_event=events.put, on_outcome=keep)
        try:
            for call in open.calls:
                executor.add_tool(call)
            outcomes = await self._outcomes_of(executor)
        finally:
            await executor.discard()
        for event in events.drain():
            yield event
        results = {**open.results, **{outcome.tool_use_id: outcome.block for outcome in outcomes}}
        said = [m.text_block(text) for outcome in outcomes for text in outcome.context]
        blocks = [*(results[call["id"]] for call in self.messages[-1].tool_uses), *said]
        message = m.user(blocks, kind="tool_results", meta=True, id=results_id, at=p.clock.now())
        await self._append(message)
        yield e.MessageAdded(message)

    async def _outcomes_of(self, executor: StreamingToolExecutor) -> list[ToolOutcome]:
        try:
            async with self._abort.guard():
                return await executor.results()
        except Interrupted:
            cause = self._abort.reason
            assert cause is not None
            return await executor.interrupt(cause.in_words)

    async def _take_in(self, prompt: str | Message | None) -> tuple[Message, ...]:
        """Take in the prompt and what waits in the inbox; the latter is given back, to be shown."""
        if prompt is not None:
            await self._append(m.user(prompt, at=self.params.clock.now()) if isinstance(prompt, str) else prompt)
        attachments = await self.params.inbox.take()
        if attachments:
            await self._append(*(a.message for a in attachments), consumed=[d for a in attachments for d in a.deliveries])
        return tuple(a.message for a in attachments)

    async def _append(self, *messages: Message, consumed: Sequence[str] = ()) -> None:
        await self.params.journal.append(messages, consumed)
        self.messages = (*self.messages, *messages)

    async def _run_command(self, command: Command) -> e.Result:
        match command.name:
            case "compact" if not self.messages:
                return self._plain_result("There was nothing to summarise.")
            case "compact":
                info = await self.params.client.model_info(self.model)
                compacted = await self.params.context.compact(self.messages, info, "manual", command.arguments)
                if compacted is None:
                    text = "There was nothing to summarise, or the summary failed."
                    return self._make_result(text=text, reason=TerminalReason.COMPLETED.value, is_error=True, error=text)
                await self.params.journal.append(compacted.added)
                self.messages = compacted.messages
                return self._plain_result("The conversation was summarised.")
            case "cost":
                cost = "unknown" if self.usage.cost_usd is None else f"{self.usage.cost_usd:.4f} USD"
                return self._plain_result(f"Cost so far: {cost}; tokens: {self.usage.total.total:,}.")
            case _:
                return self._plain_result("Commands: /compact [instructions], /cost, /help.")

    # ── the result ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _schema_problem(self) -> str | None:
        if self.params.result_schema is None or self._terminal.reason is not TerminalReason.COMPLETED:
            return None
        if self._terminal.error is not None:
            return None
        return schema.problem(last_text(self.messages), self.params.result_schema)

    def _result(self, schema_problem: str | None) -> e.Result:
        terminal = self._terminal
        text = last_text(self.messages)
        salvaged = not text.strip()
        if salvaged:
            text = _last_real_text(self.messages)
        reason: str = terminal.reason.value
        if self._abort.reason is Cause.BUDGET or (terminal.error and terminal.error.kind is ErrorKind.BUDGET):
            reason = Cause.BUDGET.value
        elif schema_problem is not None:
            reason = "schema"
        error = schema_problem or terminal.detail or (terminal.error.message if terminal.error else None)
        good = reason == TerminalReason.COMPLETED and terminal.error is None and not salvaged
        return self._make_result(
            text=text,
            reason=reason,
            is_error=not good,
            error=error or ("the last answer was empty" if salvaged else None),
            terminal_error=terminal.error,
            structured=schema.parse(text) if self.params.result_schema and good else None,
            salvaged=salvaged and bool(text),
        )

    def _plain_result(self, text: str) -> e.Result:
        return self._make_result(text=text, reason=TerminalReason.COMPLETED.value, is_error=False)

    def _make_result(self, *, terminal_error: ModelError | None = None, **fields: Any) -> e.Result:
        return e.Result(
            turns=self.turns - self._turns_before,
            duration=self.params.clock.monotonic() - self._started,
            duration_api=self.usage.api_seconds,
            usage=self.usage.total,
            transitions=tuple(self._transitions),
            usage_by_model=dict(self.usage.by_model),
            cost_usd=self.usage.cost_usd,
            denials=tuple(self.params.tool_context.denials),
            error_kind=terminal_error.kind.value if terminal_error else None,
            retryable=bool(terminal_error and terminal_error.retryable),
            **fields,
        )


def last_text(messages: Sequence[Message]) -> str:
    """The text of the last answer, joined without a seam where it was cut and went on."""
    parts: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            parts.append(message.text)
        elif message.data.get("reason") not in ("max_output_tokens_recovery", *_ENDINGS):
            break
    return "".join(reversed(parts))


_ENDINGS = (TerminalReason.ABORTED_STREAMING.value, TerminalReason.ABORTED_TOOLS.value)


def _last_real_text(messages: Sequence[Message]) -> str:
    return next((t for m_ in reversed(messages) if m_.role == "assistant" and (t := m_.text).strip()), "")


async def ask(params: EngineParams, prompt: str) -> e.Result:
    """One prompt, one result: the one-shot form."""
    async for event in QueryEngine(params).submit_message(prompt):
        if isinstance(event, e.Result):
            return event
    raise AssertionError("submit_message ends with a Result")
