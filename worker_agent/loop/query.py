"""`query()`: the loop of one agent.

    prepare the context → stream the model, starting tools while it talks → decide: stop, recover, or gather the
    results and go round again

The reasons and guards stand in `state.py`, the decision in `decide.py`, the ways back to the top in `transitions.py`,
one model call with its tries in `model_turn.py`, the tools of a turn in `tool_turn.py`, the end of a turn in `stop.py`.
What is stored is stored before what it causes: the answer before its results, the results before the next call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import assert_never

from worker_agent import events as e
from worker_agent.api.fallback import OverloadCounter
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop import transitions
from worker_agent.loop.decide import GoOn, Stop, decide
from worker_agent.loop.model_turn import ModelTurn, Overloads
from worker_agent.loop.params import QueryParams
from worker_agent.loop.reasons import ContinueReason, TerminalReason
from worker_agent.loop.state import BudgetProgress, State, Terminal
from worker_agent.loop.stop import count_output, end_turn, ended, interrupted
from worker_agent.loop.tool_turn import ToolTurn
from worker_agent.messages import Message
from worker_agent.structs import replace
from worker_agent.tools.base import Interrupted
from worker_agent.words import counted

SUMMARY_PATIENCE = 1.0  # seconds
# What a compaction is told it is for, and how the loop ends when it fails; anything else was too long.
COMPACTED_FOR = {
    ErrorKind.MEDIA_TOO_LARGE: ("media", TerminalReason.IMAGE_ERROR),
    ErrorKind.INVALID_REQUEST: ("edited", TerminalReason.COMPLETED),
}


async def query(params: QueryParams, overloads: Overloads | None = None) -> AsyncGenerator[e.Event | Terminal, None]:
    """Run the loop. Yields events and, last, exactly one `Terminal`. `overloads` is what the agent's prompts before
    this one left.

    Raises only what is no part of the conversation: a journal that refuses (this process does not own the agent any
    more), or the cancellation of the caller; whatever was begun is ended first."""
    overloads = overloads or Overloads(OverloadCounter(params.agent.settings.retry.overloads_before_fallback))
    model = overloads.model(params.agent.model, params.agent.clock.monotonic())
    spent = BudgetProgress(params.tokens_used)
    state = State(messages=params.messages, tool_context=params.agent.tool_context, model=model, budget=spent)
    shown = {message.id for message in params.messages}
    try:
        while True:
            one_pass = Pass(params, state, overloads)
            async with aclosing(one_pass.run()) as events:
                async for event in events:
                    if isinstance(event, e.MessageAdded):
                        shown.add(event.message.id)
                    yield event
            for message in one_pass.next.messages:  # what the loop itself said, what was attached, what a compaction made
                if message.id not in shown:
                    shown.add(message.id)
                    yield e.MessageAdded(message)
            if isinstance(one_pass.next, Terminal):
                if (error := one_pass.next.error) is not None:
                    said = one_pass.next.messages[-1].text if one_pass.next.messages else ""
                    await params.agent.turn_hooks.stop_failure(error.kind.value, error.message, said)
                yield one_pass.next
                return
            state = one_pass.next
            assert state.transition is not None, "every way back to the top says why"
            yield e.TransitionTaken(state.transition.value)
    finally:
        await _cancelled(state.pending_tool_use_summary)


class Pass:
    """One pass of the loop. Iterate `run()`; then `next` is the state to go round with, or how the loop ends."""

    def __init__(self, params: QueryParams, state: State, overloads: Overloads) -> None:
        self.params = params
        self.state = state
        self.overloads = overloads
        self.next: State | Terminal = ended(state, TerminalReason.MODEL_ERROR)
        self.turn: ModelTurn

    async def run(self) -> AsyncGenerator[e.Event, None]:
        if await self._is_over():
            return
        try:
            async for event in self._prepare():
                yield event
        except Interrupted:
            self.next = await interrupted(self.params, self.state, TerminalReason.ABORTED_STREAMING)
            return
        if self._is_blocked():
            return
        self.params.agent.attachments.begin(self.state.messages)
        self.turn = ModelTurn(self.params, self.state, self.prepared, self.info, self.overloads)
        try:
            async with aclosing(self.turn.stream()) as events:
                async for event in events:
                    yield event
            async with aclosing(self._decide()) as events:
                async for event in events:
                    yield event
        finally:
            await self.turn.executor.discard()

    # ── before the call ────────────────────────────────────────────────────────────────────────────────────────────

    async def _is_over(self) -> bool:
        params, state = self.params, self.state
        if params.max_turns is not None and state.turn_count > params.max_turns:
            detail = f"the limit of {counted(params.max_turns, 'turn')} is reached"
            self.next = ended(state, TerminalReason.MAX_TURNS, detail=detail)
            return True
        if params.abort.is_set:
            self.next = await interrupted(params, state, TerminalReason.ABORTED_STREAMING)
            return True
        return False

    async def _prepare(self) -> AsyncIterator[e.Event]:
        params, state = self.params, self.state
        self.info = await params.agent.client.model_info(state.model)
        async with params.abort.guard():
            self.prepared = await params.context.prepare(state.messages, self.info, state.auto_compact_tracking)
        if (compacted := self.prepared.compacted) is not None:
            await params.agent.journal.append(compacted.added)
            tracking = state.auto_compact_tracking.compacted()
            self.state = replace(state, messages=compacted.messages, auto_compact_tracking=tracking)
            text = f"the conversation of about {self.prepared.tokens:,} tokens was summarised"
            yield e.Notice(e.NoticeKind.COMPACTION, text, {"trigger": "auto", "tokens_before": self.prepared.tokens})
        elif self.prepared.compact_failed:
            self.state = replace(state, auto_compact_tracking=state.auto_compact_tracking.failed())

    def _is_blocked(self) -> bool:
        if self.prepared.blocking:
            tokens = f"{self.prepared.tokens:,}"
            detail = f"the conversation has about {tokens} tokens, too many to go on; /compact makes room"
            self.next = ended(self.state, TerminalReason.BLOCKING_LIMIT, detail=detail)
        return self.prepared.blocking

    # ── after the call ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _decide(self) -> AsyncGenerator[e.Event, None]:
        params, turn, answer = self.params, self.turn, self.turn.answer
        state = self.state
        if turn.told or turn.model != state.model:
            state = replace(state, model=turn.model, messages=(*state.messages, *turn.told))
        self.state = count_output(state, answer.usage.output)
        if line := await self._summary():
            yield e.Notice(e.NoticeKind.TOOL_USE_SUMMARY, line)
        verdict = decide(
            self.state,
            answer,
            params.agent.settings.loop,
            max_output=turn.info.max_output,
            staged_collapses=params.context.has_staged_collapses,
            edited=params.context.is_edited,
        )
        match verdict:
            case Stop():
                events = self._stop(verdict)
            case "end_turn":
                events = self._end_turn()
            case "run_tools":
                events = self._run_tools()
            case GoOn():
                events = self._go_on(verdict)
            case _:
                assert_never(verdict)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _summary(self) -> str | None:
        """The line about the last turn's tools, if it is there in time; it is never worth more waiting."""
        summary = self.state.pending_tool_use_summary
        if summary is None:
            return None
        try:
            async with self.params.abort.guard():
                await asyncio.wait((summary,), timeout=SUMMARY_PATIENCE)
        except Interrupted:
            pass
        if not summary.done():
            await _cancelled(summary)
            return None
        return summary.result()

    async def _stop(self, verdict: Stop) -> AsyncGenerator[e.Event, None]:
        """End without stop hooks. What is kept of the answer is stored with a result for every call in it."""
        tools = ToolTurn(self.params, self.state, self.turn)
        cause = self.params.abort.reason
        words = cause.in_words if cause else f"stopped: {verdict.error.message if verdict.error else 'the turn ended'}"
        async for event in tools.break_off(words):
            yield event
        if verdict.reason is TerminalReason.ABORTED_STREAMING:
            self.next = await interrupted(self.params, tools.state, verdict.reason)
            return
        if verdict.error is not None:
            yield e.Notice(e.NoticeKind.API_ERROR, verdict.error.message, {"kind": verdict.error.kind.value})
            if verdict.reason is TerminalReason.PROMPT_TOO_LONG:
                self.next = self._ended_too_long(verdict.reason, verdict.error)
                return
        self.next = ended(tools.state, verdict.reason, error=verdict.error)

    def _ended_too_long(self, reason: TerminalReason, error: ModelError) -> Terminal:
        largest = self.params.context.largest(self.state.messages, self.turn.info)
        return ended(self.state, reason, error=error, detail=f"{error.message}; the largest part is {largest}")

    async def _end_turn(self) -> AsyncGenerator[e.Event, None]:
        for event in await self._keep(self.turn.answer.message):
            yield event
        end = await end_turn(self.params, self.state, self.turn.answer)
        for notice in end.notices:
            yield notice
        self.next = end.next

    async def _run_tools(self) -> AsyncGenerator[e.Event, None]:
        tools = ToolTurn(self.params, self.state, self.turn)
        async with aclosing(tools.run()) as events:
            async for event in events:
                yield event
        self.next = tools.next

    async def _go_on(self, verdict: GoOn) -> AsyncGenerator[e.Event, None]:
        """The ways back to the top that run no tool."""
        params, answer = self.params, self.turn.answer
        match verdict.reason:
            case ContinueReason.MAX_OUTPUT_TOKENS_ESCALATE:
                assert verdict.cap is not None
                yield e.Tombstone(self.turn.message_id, "max_output_tokens")
                self.next = transitions.max_output_tokens_escalate(self.state, verdict.cap)
            case ContinueReason.MAX_OUTPUT_TOKENS_RECOVERY:
                for event in await self._keep(answer.message):
                    yield event
                added = (transitions.continue_cut(answer.cut_calls),)
                await params.agent.journal.append(added)
                self.next = transitions.max_output_tokens_recovery(self.state, added)
            case ContinueReason.COLLAPSE_DRAIN_RETRY:
                params.context.drain_collapses(self.state.messages, self.turn.info)
                self.next = transitions.collapse_drain_retry(self.state)
            case ContinueReason.REACTIVE_COMPACT_RETRY:
                assert answer.error is not None
                async for event in self._compact_now(answer.error):
                    yield event
            case ContinueReason.NEXT_TURN:
                for event in await self._keep(answer.message):
                    yield event
                self.next = transitions.next_turn(self.state, (), paused=verdict.paused)
            case _:
                assert_never(verdict.reason)

    async def _compact_now(self, error: ModelError) -> AsyncIterator[e.Event]:
        params = self.params
        trigger, reason = COMPACTED_FOR.get(error.kind, ("reactive", TerminalReason.PROMPT_TOO_LONG))
        try:
            async with params.abort.guard():
                compacted = await params.context.compact(self.state.messages, self.turn.info, trigger)
        except Interrupted:
            self.next = await interrupted(params, self.state, TerminalReason.ABORTED_STREAMING)
            return
        if compacted is None:
            yield e.Notice(e.NoticeKind.API_ERROR, error.message, {"kind": error.kind.value})
            too_long = reason is TerminalReason.PROMPT_TOO_LONG
            self.next = self._ended_too_long(reason, error) if too_long else ended(self.state, reason, error=error)
            return
        await params.agent.journal.append(compacted.added)
        yield e.Notice(e.NoticeKind.COMPACTION, f"{error.message}; the conversation was summarised", {"trigger": trigger})
        self.next = transitions.reactive_compact_retry(self.state, compacted)

    async def _keep(self, message: Message | None) -> Sequence[e.Event]:
        """Store an answer and put it into the state; the event that shows it."""
        if message is None:
            return ()
        await self.params.agent.journal.append((message,))
        self.state = replace(self.state, messages=(*self.state.messages, message))
        return (e.MessageAdded(message),)


async def _cancelled(task: asyncio.Task[str | None] | None) -> None:
    """End a background call that nobody waits for any more."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,))
