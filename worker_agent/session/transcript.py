"""Resume: the repair of a history that was interrupted.

Rules of the repair (`repair`): whole messages stay as they are; the steps of an unfinished turn become its answer and
its results; every call without a result gets one that says whether it may have had an effect. What comes out can be
sent, and no call runs again by itself. Only a call that is known not to have begun, because it waited for a person, stays
open with all of its answer: the engine goes on with it before anything else (`Open`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, field

from worker_agent import messages as m
from worker_agent.loop.ports import Step
from worker_agent.messages import Block, Message

EFFECT_UNKNOWN = (
    "Interrupted: the program ended before this call's result was stored. Whether it had an effect is unknown."
    " Look before you do it again."
)
NO_EFFECT = "Interrupted: the program ended before this call's result was stored. It changes nothing: call again if needed."


def _unknown_elsewhere(call: Block) -> Block | None:
    return None


class Open(Struct, frozen=True):
    """The results, by call, that the last answer has already, while others of its calls are still to run; none: nothing
    is open."""

    results: Mapping[str, Block] = field(default_factory=dict)
    calls: tuple[Block, ...] = ()


class Repaired(Struct, frozen=True):
    """`added` are the messages to append; `open` what stays to be done before the history can be sent."""

    added: tuple[Message, ...] = ()
    open: Open = Open()


def repair(
    messages: Sequence[Message],
    steps: Sequence[Step],
    is_read_only: Callable[[str, m.Block], bool],
    known: Callable[[Block], Block | None] = _unknown_elsewhere,
    not_begun: Collection[str] = (),
) -> Repaired:
    """Make the history of `messages` whole again: the answer known from its steps, and one results message.
    `is_read_only(name, input)` says whether a call can have had an effect; `known(call)` gives the result of a call whose
    effect is recorded somewhere else; `not_begun` are the ids of calls that waited for a person."""
    added: list[Message] = []
    stored = {message.id for message in messages}
    answers = [s for s in steps if s.kind == "answer" and s.message_id not in stored]
    last = messages[-1] if messages else None
    if answers:
        last = m.assistant(answers[-1].blocks, id=answers[-1].message_id, model=answers[-1].model)
        added.append(last)
    if last is None or last.role != "assistant" or not last.tool_uses:
        return Repaired(tuple(added))
    results = {s.blocks[0]["tool_use_id"]: s.blocks[0] for s in steps if s.kind == "result" and s.message_id not in stored}
    waits = tuple(call for call in last.tool_uses if call["id"] in not_begun and call["id"] not in results)
    settled = {
        call["id"]: results.get(call["id"]) or known(call) or _unknown(call, is_read_only)
        for call in last.tool_uses
        if call not in waits
    }
    if waits:
        return Repaired(tuple(added), Open(settled, waits))
    added.append(m.user(list(settled.values()), kind="tool_results", meta=True))
    return Repaired(tuple(added))


def _unknown(call: Block, is_read_only: Callable[[str, m.Block], bool]) -> Block:
    text = NO_EFFECT if is_read_only(call["name"], call["input"]) else EFFECT_UNKNOWN
    return m.tool_result_block(call["id"], text, is_error=True)
