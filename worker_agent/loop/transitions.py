"""Seven pure functions `State → State`, one per `ContinueReason` and named as it; see the table in `state.py`.

Each takes what the pass brought and returns a whole new state. None of them does anything else: what must be stored is
stored by `query.py` before the transition is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from worker_agent import messages as m
from worker_agent.loop.ports import Compacted
from worker_agent.loop.reasons import ContinueReason
from worker_agent.loop.state import BudgetProgress, Repeats, State
from worker_agent.messages import Message
from worker_agent.structs import replace


def next_turn(
    state: State,
    added: Sequence[Message],
    *,
    repeats: Repeats = Repeats(),
    ran_tools: bool = False,
    paused: bool = False,
    report_only: bool = False,
    summary: asyncio.Task[str | None] | None = None,
) -> State:
    """The model asked for tools (or paused, or a message waits): go on with what came of it."""
    return replace(
        state,
        messages=(*state.messages, *added),
        auto_compact_tracking=state.auto_compact_tracking.turn(),
        max_output_tokens_recovery_count=0,
        has_attempted_reactive_compact=False,
        max_output_tokens_override=None,
        pending_tool_use_summary=summary,
        stop_hook_active=False,
        stop_hook_block_count=0,
        pause_count=state.pause_count + 1 if paused else 0,
        repeats=repeats,
        report_only=report_only,
        turn_count=state.turn_count + 1 if ran_tools else state.turn_count,
        transition=ContinueReason.NEXT_TURN,
    )


def max_output_tokens_escalate(state: State, cap: int) -> State:
    """Cut off at the default cap: the same request with a higher one."""
    return replace(state, max_output_tokens_override=cap, transition=ContinueReason.MAX_OUTPUT_TOKENS_ESCALATE)


def max_output_tokens_recovery(state: State, added: Sequence[Message]) -> State:
    """Cut off although escalated: keep the part, ask to go on where it stopped."""
    return replace(
        state,
        messages=(*state.messages, *added),
        max_output_tokens_recovery_count=state.max_output_tokens_recovery_count + 1,
        transition=ContinueReason.MAX_OUTPUT_TOKENS_RECOVERY,
    )


def collapse_drain_retry(state: State) -> State:
    """Prompt too long, and staged collapses existed: all of them are committed now."""
    return replace(state, transition=ContinueReason.COLLAPSE_DRAIN_RETRY)


def reactive_compact_retry(state: State, compacted: Compacted) -> State:
    """Prompt too long or media too large: the history is what the compaction made of it."""
    return replace(
        state,
        messages=compacted.messages,
        auto_compact_tracking=state.auto_compact_tracking.compacted(),
        has_attempted_reactive_compact=True,
        transition=ContinueReason.REACTIVE_COMPACT_RETRY,
    )


def stop_hook_blocking(state: State, added: Sequence[Message]) -> State:
    """A stop hook sent the agent back to work with its errors."""
    return replace(
        state,
        messages=(*state.messages, *added),
        max_output_tokens_recovery_count=0,
        max_output_tokens_override=None,
        stop_hook_active=True,
        stop_hook_block_count=state.stop_hook_block_count + 1,
        transition=ContinueReason.STOP_HOOK_BLOCKING,
    )


def token_budget_continuation(state: State, added: Sequence[Message], budget: BudgetProgress) -> State:
    """The turn's token budget is not used yet: a nudge with the share used so far."""
    return replace(
        state,
        messages=(*state.messages, *added),
        max_output_tokens_recovery_count=0,
        max_output_tokens_override=None,
        has_attempted_reactive_compact=False,
        budget=budget,
        budget_continuation_count=state.budget_continuation_count + 1,
        transition=ContinueReason.TOKEN_BUDGET_CONTINUATION,
    )


# What the loop says to the model, in meta user messages.

CONTINUE_CUT = (
    "Your answer reached the output limit and was cut. Go on exactly where it stopped, in the middle of the sentence if"
    " need be: no apology, no recap. Do the rest in smaller pieces."
)


def continue_cut(cut_calls: Sequence[str] = ()) -> Message:
    blocks = [m.text_block(CONTINUE_CUT)]
    if cut_calls:
        blocks.append(cut_call_note(cut_calls))
    return m.user(blocks, kind="meta", meta=True, data={"reason": ContinueReason.MAX_OUTPUT_TOKENS_RECOVERY.value})


def repeat_warning(times: int) -> Message:
    text = (
        f"You made the same calls and got the same results {times} times in a row. Do something else, or report what you"
        " have: if it happens once more, the next answer is the last one and gets no tools."
    )
    return m.user(text, kind="meta", meta=True, data={"reason": "identical_calls"})


def hook_feedback(blocking: Sequence[str]) -> Message:
    text = "Stop hook feedback: you are not done yet.\n" + "\n".join(blocking)
    return m.user(text, kind="meta", meta=True, data={"reason": ContinueReason.STOP_HOOK_BLOCKING.value})


def budget_nudge(used: int, total: int) -> Message:
    text = (
        f"You have used {used:,} of the {total:,} tokens given for this ({used / total:.0%}). Keep working on the goal:"
        " go deeper, check what you have, finish what is open. Do not summarise yet."
    )
    return m.user(text, kind="meta", meta=True, data={"reason": ContinueReason.TOKEN_BUDGET_CONTINUATION.value})


def last_report() -> Message:
    text = (
        "The budget is used up: this is your last answer, and no tool can be called any more. Report now what you have"
        " found and done, and what is left to do."
    )
    return m.user(text, kind="meta", meta=True, data={"reason": "budget"})


def budget_notice(text: str) -> Message:
    return m.user(text, kind="meta", meta=True, data={"reason": "budget"})


def cut_call_note(names: Sequence[str]) -> m.Block:
    which = ", ".join(names)
    return m.text_block(
        f"Your answer was cut before this call was whole, so it did not run: {which}. Send it again, in smaller pieces if"
        " its input is long."
    )
