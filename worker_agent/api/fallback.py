"""What it takes to hand a turn over to another model: when, and what of the history may go along. All pure.

The overloads that count are those in a row on one model: an answer, or another kind of error, starts the count anew.
Thinking is signed by the model that thought, so none of it goes along. The rest of a hand-over
(tombstones, the discarded executor) is the loop's.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Message
from worker_agent.structs import replace

_THINKING = frozenset({"thinking", "redacted_thinking"})


class OverloadCounter(Struct, frozen=True):
    """Overload answers in a row. `limit` of them are enough to switch."""

    limit: int = 3
    count: int = 0

    def saw(self, error: ModelError | None) -> OverloadCounter:
        """The counter after one more try; None is a try that was answered."""
        overloaded = error is not None and error.kind is ErrorKind.OVERLOADED
        count = self.count + 1 if overloaded else 0
        return self if count == self.count else replace(self, count=count)

    @property
    def tripped(self) -> bool:
        return self.count >= self.limit


def strip_thinking(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` without thinking blocks; messages that have none are the same objects, those of thinking only are left
    out."""
    stripped = (_without_thinking(message) for message in messages)
    return tuple(message for message in stripped if message is not None)


def _without_thinking(message: Message) -> Message | None:
    if message.role != "assistant":
        return message
    kept = tuple(block for block in message.content if block.get("type") not in _THINKING)
    if len(kept) == len(message.content):
        return message
    return replace(message, content=kept, wire=b"") if kept else None
