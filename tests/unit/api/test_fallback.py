"""Handing a turn over to another model."""

from __future__ import annotations

from worker_agent.api.fallback import OverloadCounter, strip_thinking
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import assistant, canonical, text_block, user

OVERLOAD = ModelError(ErrorKind.OVERLOADED, "busy")
THINKING = {"type": "thinking", "thinking": "", "signature": "S"}


def after(*seen):
    counter = OverloadCounter(limit=3)
    for error in seen:
        counter = counter.saw(error)
    return counter


def test_three_overloads_in_a_row_are_enough():
    assert not after(OVERLOAD, OVERLOAD).tripped
    assert after(OVERLOAD, OVERLOAD, OVERLOAD).tripped


def test_an_answer_or_another_error_starts_the_count_anew():
    for other in (None, ModelError(ErrorKind.CONNECTION, "gone"), ModelError(ErrorKind.RATE_LIMIT, "slow")):
        assert not after(OVERLOAD, OVERLOAD, other, OVERLOAD, OVERLOAD).tripped


def test_thinking_stays_behind_and_all_else_goes_along_untouched():
    prompt, plain = user("go"), assistant("no thoughts")
    mixed = assistant(
        [THINKING, text_block("x"), {"type": "redacted_thinking", "data": "E"}], model="m", stop_reason="tool_use"
    )
    only = assistant([THINKING])
    stripped = strip_thinking([prompt, plain, mixed, only])
    assert stripped[0] is prompt and stripped[1] is plain and len(stripped) == 3
    assert stripped[2].content == (text_block("x"),) and stripped[2].wire == canonical([text_block("x")])
    assert (stripped[2].id, stripped[2].stop_reason) == (mixed.id, "tool_use")
    assert mixed.content[0] is THINKING
