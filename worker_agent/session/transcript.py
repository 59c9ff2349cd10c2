"""Record and resume: the in-memory journal, and the repair of a history that was interrupted.

Rules of the repair (`repair`): whole messages stay as they are; the steps of an unfinished turn become its answer and
its results; every call without a result gets one that says whether it may have had an effect. What comes out can be
sent, and no call runs again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker_agent import messages as m
from worker_agent.loop.ports import Step
from worker_agent.messages import Block, Message

EFFECT_UNKNOWN = (
    "Interrupted: the program ended before this call's result was stored. Whether it had an effect is unknown."
    " Look before you do it again."
)
NO_EFFECT = "Interrupted: the program ended before this call's result was stored. It changes nothing: call again if needed."


class MemoryJournal:
    """A journal for an agent that nobody needs to resume."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.steps: list[Step] = []
        self.consumed: list[str] = []

    async def append(self, messages: Sequence[Message], consumed: Sequence[str] = ()) -> None:
        self.messages += messages
        self.consumed += consumed
        stored = {message.id for message in messages}
        self.steps = [step for step in self.steps if step.message_id not in stored]

    async def step(self, step: Step) -> None:
        self.steps.append(step)


def _unknown_elsewhere(call: Block) -> Block | None:
    return None


def repair(
    messages: Sequence[Message],
    steps: Sequence[Step],
    is_read_only: Callable[[str, m.Block], bool],
    known: Callable[[Block], Block | None] = _unknown_elsewhere,
) -> tuple[Message, ...]:
    """The messages to append to `messages` so that the history is whole again: the answer known from its steps, and
    one results message. `is_read_only(name, input)` says whether a call can have had an effect; `known(call)` gives the
    result of a call whose effect is recorded somewhere else."""
    added: list[Message] = []
    stored = {message.id for message in messages}
    answers = [s for s in steps if s.kind == "answer" and s.message_id not in stored]
    last = messages[-1] if messages else None
    if answers:
        last = m.assistant(answers[-1].blocks, id=answers[-1].message_id, model=answers[-1].model)
        added.append(last)
    if last is None or last.role != "assistant" or not last.tool_uses:
        return tuple(added)
    results = {s.blocks[0]["tool_use_id"]: s.blocks[0] for s in steps if s.kind == "result" and s.message_id not in stored}
    blocks = [results.get(call["id"]) or known(call) or _unknown(call, is_read_only) for call in last.tool_uses]
    added.append(m.user(blocks, kind="tool_results", meta=True))
    return tuple(added)


def _unknown(call: Block, is_read_only: Callable[[str, m.Block], bool]) -> Block:
    text = NO_EFFECT if is_read_only(call["name"], call["input"]) else EFFECT_UNKNOWN
    return m.tool_result_block(call["id"], text, is_error=True)
