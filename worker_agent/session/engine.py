"""`QueryEngine`: one agent's session, from the first prompt to the last result.

It owns the messages, the abort signal, the denials, usage and cost. `submit_message` runs one prompt through the loop
and ends with one `Result`; the conversation goes on with the next. The limits checked here are the session's own:
turns, money, and the schema of a structured result (at most 5 tries).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeGuard

from msgspec import Struct

from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.api.fallback import OverloadCounter
from worker_agent.causes import Cause
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.agent import Agent
from worker_agent.loop.model_turn import Overloads
from worker_agent.loop.params import EventBuffer, QueryParams
from worker_agent.loop.ports import ContextPort, Step
from worker_agent.loop.query import query
from worker_agent.loop.reasons import ContinueReason, PromptReason, TerminalReason
from worker_agent.loop.state import Terminal
from worker_agent.messages import Message
from worker_agent.session import planning, schema
from worker_agent.session.commands import Command, parse_command, token_budget
from worker_agent.session.shown import enriched
from worker_agent.session.transcript import Open
from worker_agent.session.usage import UsageSum
from worker_agent.structs import replace
from worker_agent.tools.base import AbortSignal, Interrupted, ToolOutcome
from worker_agent.tools.executor import StreamingToolExecutor

MAX_SCHEMA_TRIES = 5


class Limits(Struct, frozen=True, kw_only=True):
    """What one prompt is bound by. `max_turns` counts model calls whose tools ran; `max_budget_usd` the whole session."""

    max_turns: int | None = None
    max_budget_usd: float | None = None
    token_budget: int | None = None
    result_schema: Mapping[str, Any] | None = None
    schema_tries: int = MAX_SCHEMA_TRIES


class QueryEngine:
    """One per session. Not for concurrent use: one `submit_message` at a time; `interrupt` from anywhere in its loop.
    `history` is what a resumed conversation begins with, `open` are calls of its last answer that are still to run."""

    def __init__(self, agent: Agent, context: ContextPort, history: tuple[Message, ...] = (), open: Open = Open()) -> None:
        self.agent = agent
        self.context = context
        self.messages = history
        self._open = open
        self.usage = UsageSum(agent.client.cost)
        self.turns = 0
        self.tool_turns = 0  # model calls whose tools ran: what `max_turns` counts
        self.model = self._first_model = agent.model
        self._pieces: list[str] = []  # of the text that is being written
        self._abort = AbortSignal()
        self._aimed_at: int | None = None  # output tokens to be spent on the prompt, and how many were
        self._tokens_used = 0
        self._overloads = Overloads(OverloadCounter(agent.settings.retry.overloads_before_fallback))
        self._begin(Limits())

    def _begin(self, limits: Limits) -> None:
        """What belongs to one prompt alone."""
        self._limits = limits
        self._started = self.agent.clock.monotonic()
        self._transitions: list[str] = []
        self._turns_before, self._tool_turns_before = self.turns, self.tool_turns
        self._terminal: Terminal | None = None

    @property
    def partial_text(self) -> str:
        """What was written of an answer that is not whole yet."""
        return "".join(self._pieces)

    def use_model(self, model: str | None) -> None:
        """From the next prompt on; None is the model it began with."""
        self.agent = replace(self.agent, model=model or self._first_model)
        self.model = self.agent.model

    def interrupt(self, cause: Cause) -> None:
        """Stop what runs now; the running `submit_message` ends with its `Result`."""
        self._abort.set(cause)

    async def close(self) -> None:
        """End what still works in the background for this agent, and let its conversation go: nothing is submitted after
        this."""
        await self.context.close()
        await self.agent.attachments.close()
        self.agent.client.forget(self.agent.tool_context.agent_id)
        self.messages = ()

    async def append(self, *messages: Message, consumed: Sequence[str] = ()) -> None:
        """Store messages, and go on with them: an agent at rest is told something. Durable on return."""
        await self.agent.journal.append(messages, consumed)
        self.messages = (*self.messages, *messages)

    async def submit_message(self, prompt: str | Message | None, limits: Limits = Limits()) -> AsyncGenerator[e.Event, None]:
        """Answer `prompt` within `limits`; None goes on with the history and what waits in the inbox. Yields events, last
        one `Result`."""
        self._begin(limits)
        if isinstance(prompt, str) and (command := parse_command(prompt)) is not None:
            yield await self._run_command(command)
            return
        try:
            async with aclosing(self._answer(prompt)) as events:
                async for event in events:
                    yield event
        finally:
            self._abort = AbortSignal()  # an interrupt is for the prompt that runs, or for the first one

    async def _answer(self, prompt: str | Message | None) -> AsyncGenerator[e.Event, None]:
        async for event in self._go_on_with_open_calls():
            yield event
        taken = await self._take_in(prompt)
        for message in taken:
            yield e.MessageAdded(message)
        self._aim([prompt, *taken])
        for attempt in range(1, self._limits.schema_tries + 1):
            async with aclosing(self._loop()) as events:
                async for event in events:
                    yield event
            problem = self._schema_problem(self._ended())
            if problem is None or attempt == self._limits.schema_tries:
                break
            await self.append(m.user(schema.feedback(problem), kind="meta", meta=True, data={"reason": "schema"}))
        if self._aimed_at is not None and not self.agent.awaits():
            self._aimed_at = None
        yield self._result(self._ended(), problem)

    # ── one run of the loop ────────────────────────────────────────────────────────────────────────────────────────

    async def _loop(self) -> AsyncGenerator[e.Event, None]:
        async with aclosing(query(self._query_params(), self._overloads)) as events:
            async for event in events:
                if isinstance(event, Terminal):
                    self._terminal, self.messages = event, event.messages
                    self.tool_turns += event.turn_count - 1
                else:
                    self._note(event)
                    yield enriched(event, self.agent.registry.facts, self.agent.tool_context.cwd)

    def _note(self, event: e.Event) -> None:
        match event:
            case e.ModelCalled():
                self._count(event)
            case e.TransitionTaken() if event.reason != ContinueReason.NEXT_TURN:
                self._transitions.append(event.reason)
            case e.TextDelta():
                self._pieces.append(event.text)
            case e.Tombstone() | e.MessageAdded():
                self._pieces = []

    def _ended(self) -> Terminal:
        """How the last run of the loop ended."""
        assert self._terminal is not None
        return self._terminal

    def _count(self, call: e.ModelCalled) -> None:
        self.usage.add(call)
        self.model = call.model
        if call.error is None:
            self.turns += 1
            self._tokens_used += call.usage.output
        limit = self._limits.max_budget_usd
        if limit is not None and (self.usage.cost_usd or 0.0) >= limit:
            self._abort.set(Cause.BUDGET)

    def _query_params(self) -> QueryParams:
        limits, spent_turns = self._limits, self.tool_turns - self._tool_turns_before
        return QueryParams(
            agent=self.agent,
            context=self.context,
            messages=self.messages,
            abort=self._abort,
            max_turns=None if limits.max_turns is None else max(0, limits.max_turns - spent_turns),
            token_budget=self._aimed_at,
            tokens_used=self._tokens_used,
            output_schema=dict(limits.result_schema) if limits.result_schema else None,
        )

    async def _go_on_with_open_calls(self) -> AsyncIterator[e.Event]:
        """What an earlier run of this agent left waiting for a person, before anything else is said. An interrupt ends it
        as it ends a turn."""
        open, self._open = self._open, Open()
        if not open.calls:
            return
        agent, results_id, events = self.agent, m.new_message_id(), EventBuffer()

        async def keep(outcome: ToolOutcome) -> None:
            if not outcome.read_only and not outcome.synthetic:
                await agent.journal.step(Step(kind="result", message_id=results_id, blocks=(outcome.block,)))

        executor = StreamingToolExecutor(agent.registry, agent.tool_context, on_event=events.put, on_outcome=keep)
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
        message = m.user(blocks, kind="tool_results", meta=True, id=results_id, at=agent.clock.now())
        await self.append(message)
        yield e.MessageAdded(message)

    async def _outcomes_of(self, executor: StreamingToolExecutor) -> list[ToolOutcome]:
        try:
            async with self._abort.guard():
                return await executor.results()
        except Interrupted:
            cause = self._abort.reason
            assert cause is not None
            return await executor.interrupt(cause.in_words)

    def _aim(self, taken: Sequence[str | Message | None]) -> None:
        """The output tokens to be spent on what a person said: as the newest of it names them, else as it is set. Where nobody
        said anything, an agent that was woken goes on towards the target that it had when it began to wait."""
        said = [item if isinstance(item, str) else item.text for item in taken if _is_said(item)]
        if said:
            named = [target for words in said if (target := token_budget(words)) is not None]
            self._aimed_at, self._tokens_used = named[-1] if named else self._limits.token_budget, 0

    async def _take_in(self, prompt: str | Message | None) -> tuple[Message, ...]:
        """Take in the prompt and what waits in the inbox; what is not the prompt is given back, to be shown."""
        now = self.agent.clock.now()
        told = planning.news(self.messages, self.agent.tool_context.permissions.mode, now)
        asked = [] if prompt is None else [m.user(prompt, at=now) if isinstance(prompt, str) else prompt]
        if told or asked:
            await self.append(*told, *asked)
        attachments = await self.agent.inbox.take()
        if attachments:
            await self.append(*(a.message for a in attachments), consumed=[d for a in attachments for d in a.deliveries])
        return (*told, *(a.message for a in attachments))

    async def _run_command(self, command: Command) -> e.Result:
        match command.name:
            case "compact" if not self.messages:
                return self._plain_result("There was nothing to summarise.")
            case "compact":
                info = await self.agent.client.model_info(self.model)
                compacted = await self.context.compact(self.messages, info, "manual", command.arguments)
                if compacted is None:
                    text = "There was nothing to summarise, or the summary failed."
                    return self._make_result(text=text, reason=TerminalReason.COMPLETED.value, is_error=True, error=text)
                await self.agent.journal.append(compacted.added)
                self.messages = compacted.messages
                return self._plain_result("The conversation was summarised.")
            case "cost":
                cost = "unknown" if self.usage.cost_usd is None else f"{self.usage.cost_usd:.4f} USD"
                return self._plain_result(f"Cost so far: {cost}; tokens: {self.usage.total.total:,}.")
            case _:
                return self._plain_result("Commands: /compact [instructions], /cost, /help.")

    # ── the result ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _schema_problem(self, terminal: Terminal) -> str | None:
        if self._limits.result_schema is None or terminal.reason is not TerminalReason.COMPLETED or terminal.error is not None:
            return None
        return schema.problem(last_text(self.messages), self._limits.result_schema)

    def _result(self, terminal: Terminal, schema_problem: str | None) -> e.Result:
        text = last_text(self.messages)
        salvaged = not text.strip()
        if salvaged:
            text = _last_real_text(self.messages)
        reason: str = terminal.reason.value
        if self._abort.reason is Cause.BUDGET or (terminal.error and terminal.error.kind is ErrorKind.BUDGET):
            reason = Cause.BUDGET.value
        elif schema_problem is not None:
            reason = PromptReason.SCHEMA.value
        error = schema_problem or terminal.detail or (terminal.error.message if terminal.error else None)
        good = reason == TerminalReason.COMPLETED and terminal.error is None and not salvaged
        return self._make_result(
            text=text,
            reason=reason,
            is_error=not good,
            error=error or ("the last answer was empty" if salvaged else None),
            terminal_error=terminal.error,
            structured=schema.parse(text) if self._limits.result_schema and good else None,
            salvaged=salvaged and bool(text),
        )

    def _plain_result(self, text: str) -> e.Result:
        return self._make_result(text=text, reason=TerminalReason.COMPLETED.value, is_error=False)

    def _make_result(self, *, terminal_error: ModelError | None = None, **fields: Any) -> e.Result:
        return e.Result(
            turns=self.turns - self._turns_before,
            duration=self.agent.clock.monotonic() - self._started,
            duration_api=self.usage.api_seconds,
            usage=self.usage.total,
            transitions=tuple(self._transitions),
            cost_usd=self.usage.cost_usd,
            denials=tuple(self.agent.tool_context.denials),
            stop_reason=next((one.stop_reason for one in reversed(self.messages) if one.kind == "answer"), None),
            error_kind=terminal_error.kind.value if terminal_error else None,
            retryable=bool(terminal_error and terminal_error.retryable),
            **fields,
        )


def _is_said(item: str | Message | None) -> TypeGuard[str | Message]:
    """Whether a person said it."""
    return isinstance(item, str) or (item is not None and item.kind == "prompt")


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


async def ask(agent: Agent, context: ContextPort, prompt: str, limits: Limits = Limits()) -> e.Result:
    """One prompt, one result: the one-shot form."""
    async for event in QueryEngine(agent, context).submit_message(prompt, limits):
        if isinstance(event, e.Result):
            return event
    raise AssertionError("submit_message ends with a Result")
