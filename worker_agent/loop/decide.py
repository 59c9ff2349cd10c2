"""What the stream brought + state → what happens next, as a value. Pure: no I/O, nothing is changed.

Withhold and release: a recoverable error never leaves this module as an error before its recovery is spent. The order
of the questions is the order of the code in `decide`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from worker_agent.config import LoopSettings
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.reasons import ContinueReason, TerminalReason
from worker_agent.loop.state import State
from worker_agent.messages import Message, Usage

MAX_PAUSES = 8
DONE = frozenset({"end_turn", "stop_sequence", "tool_use"})


class Answer(Struct, frozen=True, kw_only=True):
    """What one model turn brought, after all tries. A refusal is an error here: it ends the turn and its tools do not
    run.

    `message` is the assistant's message to keep (None when nothing is to be kept); `calls` how many of its `tool_use`
    blocks were handed to the executor; `cut_calls` the names of calls that the end cut and that are no block;
    `error` is what ended the call after all tries."""

    message: Message | None
    model: str
    stop_reason: str | None = None
    calls: int = 0
    side_effects: bool = False
    cut_calls: tuple[str, ...] = ()
    error: ModelError | None = None
    usage: Usage = Usage()
    aborted: str | None = None
    last_call: bool = False  # the budget allowed one tool-free report, and this was it


class Stop(Struct, frozen=True):
    """End now, without stop hooks."""

    reason: TerminalReason
    error: ModelError | None = None


AfterAnswer = Literal[
    ContinueReason.NEXT_TURN,
    ContinueReason.MAX_OUTPUT_TOKENS_ESCALATE,
    ContinueReason.MAX_OUTPUT_TOKENS_RECOVERY,
    ContinueReason.COLLAPSE_DRAIN_RETRY,
    ContinueReason.REACTIVE_COMPACT_RETRY,
]
"""What an answer can lead to; the other transitions are taken at the end of a turn (`stop.py`)."""


class GoOn(Struct, frozen=True):
    """Take this transition; `cap` goes with `max_output_tokens_escalate`."""

    reason: AfterAnswer
    cap: int | None = None
    paused: bool = False


Verdict = Stop | GoOn | Literal["run_tools", "end_turn"]


def decide(
    state: State,
    answer: Answer,
    settings: LoopSettings,
    *,
    max_output: int,
    staged_collapses: bool,
    edited: bool = False,
) -> Verdict:
    """`max_output` is the model's own output cap in tokens; `staged_collapses` whether any can be drained; `edited`
    whether what is sent is not what was said."""
    if answer.aborted is not None:
        return Stop(TerminalReason.ABORTED_STREAMING)
    if answer.error is not None and answer.error.kind is ErrorKind.REFUSAL:
        return Stop(TerminalReason.COMPLETED, answer.error)
    if answer.error is not None and not answer.side_effects:
        return _after_error(state, answer.error, staged_collapses, edited)
    if answer.last_call:
        text = "the budget is used up; this was the last report"
        return Stop(TerminalReason.COMPLETED, ModelError(ErrorKind.BUDGET, text))
    if answer.calls:
        return "run_tools"
    if answer.stop_reason == "max_tokens":
        return _cut_off(state, settings, max_output)
    if answer.stop_reason == "pause_turn":
        if state.pause_count >= MAX_PAUSES:
            return Stop(TerminalReason.MODEL_ERROR, ModelError(ErrorKind.UNKNOWN_STOP, "the model paused too often"))
        return GoOn(ContinueReason.NEXT_TURN, paused=True)
    if answer.stop_reason not in DONE:
        text = f"the model stopped for a reason this program does not know: {answer.stop_reason!r}"
        return Stop(TerminalReason.COMPLETED, ModelError(ErrorKind.UNKNOWN_STOP, text))
    return "end_turn"


def _after_error(state: State, error: ModelError, staged_collapses: bool, edited: bool) -> Verdict:
    match error.kind:
        case ErrorKind.INVALID_REQUEST if edited and not state.has_attempted_reactive_compact:
            # What was never said may be what the endpoint does not take: a summary of it all has no such seam.
            return GoOn(ContinueReason.REACTIVE_COMPACT_RETRY)
        case ErrorKind.PROMPT_TOO_LONG | ErrorKind.REQUEST_TOO_LARGE:
            if staged_collapses and state.transition is not ContinueReason.COLLAPSE_DRAIN_RETRY:
                return GoOn(ContinueReason.COLLAPSE_DRAIN_RETRY)
            if not state.has_attempted_reactive_compact:
                return GoOn(ContinueReason.REACTIVE_COMPACT_RETRY)
            return Stop(TerminalReason.PROMPT_TOO_LONG, error)
        case ErrorKind.MEDIA_TOO_LARGE:
            if not state.has_attempted_reactive_compact:
                return GoOn(ContinueReason.REACTIVE_COMPACT_RETRY)
            return Stop(TerminalReason.IMAGE_ERROR, error)
        case ErrorKind.UNFORESEEN:
            return Stop(TerminalReason.MODEL_ERROR, error)
        case _:
            return Stop(TerminalReason.COMPLETED, error)


def _cut_off(state: State, settings: LoopSettings, max_output: int) -> Verdict:
    cap = min(settings.escalated_output_tokens, max_output)
    first_cap = settings.max_output_tokens or min(settings.default_output_tokens, max_output)
    if state.max_output_tokens_override is None and settings.max_output_tokens is None and cap > first_cap:
        return GoOn(ContinueReason.MAX_OUTPUT_TOKENS_ESCALATE, cap=cap)
    if state.max_output_tokens_recovery_count < settings.max_output_recoveries:
        return GoOn(ContinueReason.MAX_OUTPUT_TOKENS_RECOVERY)
    text = f"the answer reached the output limit {settings.max_output_recoveries + 1} times in a row"
    return Stop(TerminalReason.COMPLETED, ModelError(ErrorKind.MAX_TOKENS_TOO_LARGE, text))
