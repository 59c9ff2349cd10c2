"""A decision is a value: every kind of answer, in every state that matters, leads to one verdict."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent import tool_context
from worker_agent import messages as m
from worker_agent.config import LoopSettings
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.decide import MAX_PAUSES, Answer, GoOn, Stop, decide
from worker_agent.loop.reasons import ContinueReason as C
from worker_agent.loop.reasons import TerminalReason as T
from worker_agent.loop.state import State
from worker_agent.structs import replace

STATE = State(messages=(m.user("goal"),), tool_context=tool_context(Path("/nowhere")), model="m")
SAID = m.assistant("hello")


def verdict(answer, state=STATE, settings=LoopSettings(), staged=False, max_output=128_000):
    return decide(state, answer, settings, max_output=max_output, staged_collapses=staged)


def answer(stop_reason="end_turn", **fields):
    return Answer(message=SAID, model="m", stop_reason=stop_reason, **fields)


def failed(kind):
    return Answer(message=None, model="m", error=ModelError(kind, "no"))


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
def test_a_finished_answer_ends_the_turn(reason):
    assert verdict(answer(reason)) == "end_turn"


@pytest.mark.parametrize("reason", ["tool_use", "max_tokens", "end_turn", "unheard_of"])
def test_whole_calls_run_whatever_the_stop_reason(reason):
    assert verdict(answer(reason, calls=1)) == "run_tools"


def test_a_first_cut_off_escalates_to_the_escalated_cap_but_not_over_the_models_own():
    assert verdict(answer("max_tokens")) == GoOn(C.MAX_OUTPUT_TOKENS_ESCALATE, cap=64_000)
    assert verdict(answer("max_tokens"), max_output=32_000) == GoOn(C.MAX_OUTPUT_TOKENS_ESCALATE, cap=32_000)


def test_a_model_whose_cap_is_no_higher_recovers_at_once():
    assert verdict(answer("max_tokens"), max_output=8_000) == GoOn(C.MAX_OUTPUT_TOKENS_RECOVERY)


def test_a_cap_set_by_the_person_is_never_escalated():
    settings = LoopSettings(max_output_tokens=1_000)
    assert verdict(answer("max_tokens"), settings=settings) == GoOn(C.MAX_OUTPUT_TOKENS_RECOVERY)


def test_after_escalation_there_are_three_recoveries_and_then_the_error():
    state = replace(STATE, max_output_tokens_override=64_000)
    for count in range(3):
        state = replace(state, max_output_tokens_recovery_count=count)
        assert verdict(answer("max_tokens"), state) == GoOn(C.MAX_OUTPUT_TOKENS_RECOVERY)
    end = verdict(answer("max_tokens"), replace(state, max_output_tokens_recovery_count=3))
    assert (end.reason, end.error.kind) == (T.COMPLETED, ErrorKind.MAX_TOKENS_TOO_LARGE)


@pytest.mark.parametrize("kind", [ErrorKind.PROMPT_TOO_LONG, ErrorKind.REQUEST_TOO_LARGE])
def test_too_long_drains_then_compacts_then_ends(kind):
    assert verdict(failed(kind), staged=True) == GoOn(C.COLLAPSE_DRAIN_RETRY)
    assert verdict(failed(kind), staged=False) == GoOn(C.REACTIVE_COMPACT_RETRY)
    drained = replace(STATE, transition=C.COLLAPSE_DRAIN_RETRY)
    assert verdict(failed(kind), drained, staged=True) == GoOn(C.REACTIVE_COMPACT_RETRY)
    spent = replace(STATE, has_attempted_reactive_compact=True)
    assert verdict(failed(kind), spent).reason is T.PROMPT_TOO_LONG


def test_media_too_large_compacts_once_and_is_then_an_image_error():
    assert verdict(failed(ErrorKind.MEDIA_TOO_LARGE), staged=True) == GoOn(C.REACTIVE_COMPACT_RETRY)
    spent = replace(STATE, has_attempted_reactive_compact=True)
    assert verdict(failed(ErrorKind.MEDIA_TOO_LARGE), spent).reason is T.IMAGE_ERROR


def test_an_unforeseen_error_is_a_model_error_and_any_other_rides_along_with_completed():
    assert verdict(failed(ErrorKind.UNFORESEEN)).reason is T.MODEL_ERROR
    for kind in (ErrorKind.OVERLOADED, ErrorKind.AUTHENTICATION, ErrorKind.INVALID_REQUEST, ErrorKind.EMPTY_ANSWER):
        end = verdict(failed(kind))
        assert (end.reason, end.error.kind) == (T.COMPLETED, kind)


def test_an_error_after_side_effects_runs_what_was_whole():
    broken = answer(None, calls=1, side_effects=True, error=ModelError(ErrorKind.STREAM_BROKEN, "cut"))
    assert verdict(broken) == "run_tools"


def test_a_refusal_ends_the_turn_even_after_side_effects():
    refused = answer(None, calls=1, side_effects=True, error=ModelError(ErrorKind.REFUSAL, "no"))
    assert verdict(refused) == Stop(T.COMPLETED, refused.error)


def test_a_pause_goes_on_but_not_for_ever():
    assert verdict(answer("pause_turn")) == GoOn(C.NEXT_TURN, paused=True)
    assert verdict(answer("pause_turn"), replace(STATE, pause_count=MAX_PAUSES)).reason is T.MODEL_ERROR


def test_an_unknown_stop_reason_is_named_and_no_success():
    end = verdict(answer("bored"))
    assert end.error.kind is ErrorKind.UNKNOWN_STOP and "bored" in str(end.error)


def test_an_interrupt_wins_over_everything():
    assert verdict(answer("tool_use", calls=2, aborted="by the user")) == Stop(T.ABORTED_STREAMING)


def test_the_last_report_of_a_used_up_budget_is_a_budget_end():
    assert verdict(answer(last_call=True)).error.kind is ErrorKind.BUDGET


answers = st.builds(
    Answer,
    message=st.sampled_from([SAID, None]),
    model=st.just("m"),
    stop_reason=st.sampled_from(["end_turn", "tool_use", "max_tokens", "pause_turn", "stop_sequence", "??", None]),
    calls=st.integers(0, 2),
    side_effects=st.booleans(),
    error=st.sampled_from([None, *(ModelError(kind, "no") for kind in ErrorKind)]),
    aborted=st.sampled_from([None, "user"]),
)


@given(st.lists(answers, max_size=60))
def test_recoveries_without_tools_always_run_out(stream):
    """Whatever the model does, ways back that run no tool and end no turn are bounded by their guards."""
    state, rounds = STATE, 0
    for one in stream:
        match verdict(one, state, staged=rounds % 2 == 0):
            case GoOn(reason=C.MAX_OUTPUT_TOKENS_ESCALATE):
                state = replace(state, max_output_tokens_override=64_000, transition=C.MAX_OUTPUT_TOKENS_ESCALATE)
            case GoOn(reason=C.MAX_OUTPUT_TOKENS_RECOVERY):
                count = state.max_output_tokens_recovery_count + 1
                state = replace(state, max_output_tokens_recovery_count=count, transition=C.MAX_OUTPUT_TOKENS_RECOVERY)
            case GoOn(reason=C.COLLAPSE_DRAIN_RETRY):
                assert state.transition is not C.COLLAPSE_DRAIN_RETRY
                state = replace(state, transition=C.COLLAPSE_DRAIN_RETRY)
            case GoOn(reason=C.REACTIVE_COMPACT_RETRY):
                assert not state.has_attempted_reactive_compact
                state = replace(state, has_attempted_reactive_compact=True, transition=C.REACTIVE_COMPACT_RETRY)
            case GoOn(reason=C.NEXT_TURN):
                state = replace(state, pause_count=state.pause_count + 1, transition=C.NEXT_TURN)
            case _:
                return
        rounds += 1
    assert rounds <= 60 and state.max_output_tokens_recovery_count <= 3 and state.pause_count <= MAX_PAUSES
