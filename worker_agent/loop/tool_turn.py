"""The tools of one turn: wait for their results, show their progress, store what they brought, take the next step.

Rules: every `tool_use` of the stored answer gets exactly one result, in the order asked, all in one user message; text
that comes with them (a cut call, what hooks said) stands behind the results in the same message; messages from outside
follow in messages of their own, never between a call and its result. An interrupt ends everything that runs, waits for
it, and still stores a result for every call.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.loop import transitions
from worker_agent.loop.model_turn import ModelTurn
from worker_agent.loop.params import QueryParams
from worker_agent.loop.reasons import TerminalReason
from worker_agent.loop.state import Repeats, State, Terminal
from worker_agent.loop.stop import ended, interrupted, read_inbox
from worker_agent.messages import Block, Message
from worker_agent.structs import replace
from worker_agent.tools.base import Interrupted, ToolOutcome
from worker_agent.tools.summaries import summarise

KEPT_RESULTS = 8  # different results of the same calls that are told apart
IN_CIRCLES = (
    "the model made the same calls {times} times in a row and nothing new came of them, also after it was warned: one more answer"
    " is asked for, without tools, and the work ends with it"
)


class ToolTurn:
    """Iterate `run()`; then `next` is the state to go round with, or how the loop ends."""

    def __init__(self, params: QueryParams, state: State, turn: ModelTurn) -> None:
        self.params = params
        self.state = state
        self.turn = turn
        self.next: State | Terminal = ended(state, TerminalReason.ABORTED_TOOLS)
        self._aborted = False

    async def run(self) -> AsyncGenerator[e.Event, None]:
        async for event in self._store_answer():
            yield event
        async with aclosing(self._wait()) as events:
            async for event in events:
                yield event
        async for event in self._store_results(self.outcomes):
            yield event
        if self._aborted:
            self.next = await interrupted(self.params, self.state, TerminalReason.ABORTED_TOOLS)
        elif stop := next((o.stop for o in self.outcomes if o.stop), None):
            self.next = ended(self.state, TerminalReason.HOOK_STOPPED, detail=stop)
        elif (verdict := await self.params.agent.turn_hooks.post_tool_batch(self._batch)).stop is not None:
            self.next = ended(self.state, TerminalReason.HOOK_STOPPED, detail=verdict.stop)
        else:
            self.next = following = await self._next_turn(verdict.context)
            if following.report_only:
                yield e.Notice(e.NoticeKind.REPETITION, IN_CIRCLES.format(times=following.repeats.count))

    async def break_off(self, words: str) -> AsyncIterator[e.Event]:
        """The turn ends with the answer: store what is kept of it, its calls answered as interrupted: `words` complete "This call was …"."""
        async for event in self._store_answer():
            yield event
        if self.turn.answer.calls and self.turn.answer.message is not None:
            self.outcomes = await self.turn.executor.interrupt(words)
            for event in self.turn.buffer.drain():
                yield event
            async for event in self._store_results(self.outcomes):
                yield event

    # ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _store_answer(self) -> AsyncIterator[e.Event]:
        message = self.turn.answer.message
        if message is None:
            return
        await self.params.agent.journal.append((message,))
        self.turn.note_stored()
        self.state = replace(self.state, messages=(*self.state.messages, message))
        yield e.MessageAdded(message)

    async def _wait(self) -> AsyncGenerator[e.Event, None]:
        """Progress while the tools run; leaves their outcomes in `outcomes`."""
        executor, buffer = self.turn.executor, self.turn.buffer
        if executor.is_done and not self.params.abort.is_set:
            self.outcomes = await executor.results()
            for event in buffer.drain():
                yield event
            return
        results = asyncio.create_task(executor.results())
        results.add_done_callback(buffer.wake)
        try:
            while not results.done():
                async with self.params.abort.guard():
                    await buffer.wait()
                for event in buffer.drain():
                    yield event
            self.outcomes = results.result()
        except Interrupted:
            self._aborted = True
            cause = self.params.abort.reason
            assert cause is not None
            self.outcomes = await executor.interrupt(cause.in_words)
        finally:
            results.cancel()
            await asyncio.wait((results,))
        for event in buffer.drain():
            yield event

    async def _store_results(self, outcomes: Sequence[ToolOutcome]) -> AsyncIterator[e.Event]:
        message = self._results_message(outcomes)
        await self.params.agent.journal.append((message,))
        self.state = replace(self.state, messages=(*self.state.messages, message))
        yield e.MessageAdded(message)

    def _results_message(self, outcomes: Sequence[ToolOutcome]) -> Message:
        blocks: list[Block] = [o.block for o in outcomes]
        if self.turn.answer.cut_calls:
            blocks.append(transitions.cut_call_note(self.turn.answer.cut_calls))
        blocks += [m.text_block(text) for o in outcomes for text in o.context]
        return m.user(blocks, kind="tool_results", meta=True, id=self.turn.results_id, at=self.params.agent.clock.now())

    def _batch(self) -> list[dict[str, Any]]:
        """The calls of this turn with what came of them, as hooks see them: with absolute paths."""
        answer, context = self.turn.answer.message, self.params.agent.tool_context
        assert answer is not None
        results = {outcome.tool_use_id: outcome.block.get("content") for outcome in self.outcomes}

        def shown(call: Block) -> dict[str, Any]:
            paths = self.params.agent.registry.facts(call["name"]).path_fields
            return {k: str(context.cwd / v) if k in paths and isinstance(v, str) else v for k, v in call["input"].items()}

        return [
            {
                "tool_name": call["name"],
                "tool_input": shown(call),
                "tool_use_id": call["id"],
                "tool_response": results.get(call["id"]),
            }
            for call in answer.tool_uses
        ]

    async def _next_turn(self, said: Sequence[str]) -> State:
        """`said` is what hooks of the turn have for the model."""
        params, state = self.params, self.state
        repeats = self._repeats()
        limit = params.agent.settings.loop.identical_calls_before_warning
        added: list[Message] = []
        if repeats.count == limit:
            added.append(transitions.repeat_warning(limit))
        added += [m.user(text, kind="attachment", meta=True, data={"source": "hook"}) for text in said]
        if added:
            await params.agent.journal.append(tuple(added))
        added += await read_inbox(params)
        if news := params.agent.attachments.take():
            await params.agent.journal.append(news)
            added += news
        params.context.turn_ended((*state.messages, *added), self.turn.info)
        return transitions.next_turn(
            state, added, ran_tools=True, repeats=repeats, report_only=repeats.count > limit, summary=self._summary()
        )

    def _repeats(self) -> Repeats:
        """The same calls as in the last turn, with a result that they have had before (not only just before: Read answers
        in turns with the text and "unchanged"): count on. Anything new starts anew, so that polling something that
        changes is never taken for going in circles."""
        answer = self.turn.answer.message
        assert answer is not None
        calls = _digest([[call["name"], call["input"]] for call in answer.tool_uses])
        result = _digest_of(outcome.block["content"] for outcome in self.outcomes)
        before = self.state.repeats
        if before.digest != calls:
            return Repeats(calls, 1, (result,))
        if result in before.results:
            return replace(before, count=before.count + 1)
        return Repeats(calls, 1, (*before.results, result)[-KEPT_RESULTS:])

    def _summary(self) -> asyncio.Task[str | None] | None:
        if not (self.params.agent.top and self.params.agent.settings.loop.tool_use_summaries):
            return None
        answer = self.turn.answer.message
        assert answer is not None
        caller, model = self.params.caller(stops=False), self.params.agent.settings.small_model
        return asyncio.create_task(summarise(caller, model, self.outcomes, answer.tool_uses))


def _digest_of(results: Iterable[str | Sequence[Block]]) -> str:
    """Of the very text, which need not be made JSON for it."""
    found = hashlib.blake2b(digest_size=16)
    for result in results:
        data = result.encode() if isinstance(result, str) else m.canonical(result)
        found.update(b"%d " % len(data))
        found.update(data)
    return found.hexdigest()


def _digest(value: object) -> str:
    return hashlib.blake2b(m.canonical(value), digest_size=16).hexdigest()
