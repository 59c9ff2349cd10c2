"""The end of a turn in which no tool was asked for: waiting messages, then stop hooks, then the token budget.

Waiting messages come first, so that a message sent while the last answer was written is read and not lost. Never
called after an API error (see `state.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from worker_agent import messages as m
from worker_agent.errors import ModelError
from worker_agent.events import Notice, NoticeKind
from worker_agent.loop import transitions
from worker_agent.loop.decide import Answer
from worker_agent.loop.params import QueryParams
from worker_agent.loop.reasons import TerminalReason
from worker_agent.loop.state import BudgetProgress, State, Terminal
from worker_agent.messages import Message
from worker_agent.structs import replace


class End(Struct, frozen=True):
    """What the end of a turn leads to: the next `State`, its messages stored, or how the loop ends; and what the person
    is told of it."""

    next: State | Terminal
    notices: tuple[Notice, ...] = ()


async def end_turn(params: QueryParams, state: State, answer: Answer) -> End:
    """`state.messages` already holds the answer."""
    if added := await read_inbox(params):
        return End(transitions.next_turn(state, added))
    verdict = await params.agent.stop_hooks.stop(answer.message.text if answer.message else "", state.stop_hook_active)
    if verdict.prevent is not None:
        return End(ended(state, TerminalReason.STOP_HOOK_PREVENTED, detail=verdict.prevent))
    is_overruled = state.stop_hook_block_count >= params.agent.settings.loop.max_stop_hook_blocks
    if verdict.blocking and not is_overruled:
        feedback = (transitions.hook_feedback(verdict.blocking),)
        await params.agent.journal.append(feedback)
        return End(transitions.stop_hook_blocking(state, feedback))
    told = (_overruled(state, verdict.blocking),) if verdict.blocking else ()
    if (budget := _budget_left(params, state, answer)) is not None:
        nudge = (transitions.budget_nudge(budget.used, params.token_budget or 0),)
        await params.agent.journal.append(nudge)
        return End(transitions.token_budget_continuation(state, nudge, budget), told)
    return End(ended(state, TerminalReason.COMPLETED), told)


def _overruled(state: State, blocking: Sequence[str]) -> Notice:
    text = f"the Stop hook is overruled after {state.stop_hook_block_count} blocks in a row; it said: {'; '.join(blocking)}"
    return Notice(NoticeKind.HOOK, text)


def _budget_left(params: QueryParams, state: State, answer: Answer) -> BudgetProgress | None:
    """The progress to go on with; None when the budget is off, used, or going on brings too little. Waiting for what still
    runs is no end of the work, so there is nothing to urge: the target is looked at again when that has reported."""
    total, settings = params.token_budget, params.agent.settings.loop
    if total is None or state.report_only or params.agent.awaits():
        return None
    progress = state.budget
    last = progress.continuations[-settings.diminishing_continuations :]
    diminishing = len(last) == settings.diminishing_continuations and max(last) < settings.diminishing_tokens
    if diminishing or progress.used >= total * settings.token_budget_share:
        return None
    return replace(progress, continuations=(*progress.continuations, 0))


def count_output(state: State, tokens: int) -> State:
    """`state` with an answer's output tokens counted to the budget and to the running continuation, if one runs."""
    progress = state.budget
    continuations = progress.continuations
    if continuations:
        continuations = (*continuations[:-1], continuations[-1] + tokens)
    return replace(state, budget=BudgetProgress(progress.used + tokens, continuations))


async def read_inbox(params: QueryParams) -> tuple[Message, ...]:
    """What waits for this agent, appended to the journal in the transaction that consumes it."""
    attachments = await params.agent.inbox.take()
    added = tuple(a.message for a in attachments)
    if added:
        await params.agent.journal.append(added, [d for a in attachments for d in a.deliveries])
    return added


def ended(state: State, reason: TerminalReason, *, error: ModelError | None = None, detail: str = "") -> Terminal:
    return Terminal(reason=reason, turn_count=state.turn_count, messages=state.messages, error=error, detail=detail)


INTERRUPTED = {
    TerminalReason.ABORTED_STREAMING: "[The answer was {words}.]",
    TerminalReason.ABORTED_TOOLS: "[The tools were {words}.]",
}


async def interrupted(params: QueryParams, state: State, reason: TerminalReason) -> Terminal:
    """The end after an interrupt: one message says whether the answer or the tools were stopped, and by whom."""
    cause = params.abort.reason
    assert cause is not None, "asked after an interrupt only"
    text = INTERRUPTED[reason].format(words=cause.in_words)
    message = m.user(text, kind="meta", meta=True, data={"reason": reason.value, "cause": cause.value})
    await params.agent.journal.append((message,))
    return ended(replace(state, messages=(*state.messages, message)), reason, detail=cause.to_person)
