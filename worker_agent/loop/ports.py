"""What the loop needs from outside, as protocols satisfied by shape: who remembers, who sends, who pays, who objects.

The `coordinator` package satisfies them over the `tasks` store; `session/transcript.py` has an in-memory journal for
an agent that nobody needs to resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from worker_agent.api.call import Budget, Reservation
from worker_agent.api.client import ModelInfo, ModelRequest
from worker_agent.context.values import Compacted, Prepared, Tracking
from worker_agent.hooks.answer import BatchVerdict, StopVerdict
from worker_agent.messages import Message, Usage

StepKind = Literal["answer", "result"]


class Step(Struct, frozen=True, kw_only=True):
    """A part of an unfinished turn that must survive a crash.

    `answer`: the closed blocks so far of the answer `message_id`, recorded before one of its calls with side effects
    starts. `result`: one finished `tool_result` block, in `blocks[0]`, of the results message `message_id`. Both are
    superseded by the whole message when that is appended."""

    kind: StepKind
    message_id: str
    blocks: tuple[Any, ...]
    model: str | None = None


class Journal(Protocol):
    """The transcript of one agent: append-only, in order."""

    async def append(self, messages: Sequence[Message], consumed: Sequence[str] = ()) -> None:
        """Durable on return, in one transaction with marking the deliveries `consumed`. Raises if this process does
        not own the agent any more (fenced): the loop must stop at once."""
        ...

    async def step(self, step: Step) -> None:
        """Durable on return."""
        ...


class Attachment(Struct, frozen=True):
    """A message from outside for this agent, and the deliveries that are consumed when it is stored."""

    message: Message
    deliveries: tuple[str, ...] = ()


class Inbox(Protocol):
    """Queued messages for this agent: task notifications, SendMessage, what a person typed."""

    async def take(self) -> Sequence[Attachment]:
        """What is ready now, oldest first; several notifications travel in one message. Does not consume: what is
        not appended to the journal is offered again."""
        ...


class AttachmentSource(Protocol):
    """News beside the inbox: relevant memory, skills discovered, files that changed. The prefetches run while the model
    talks; `take` gives what is ready and never waits."""

    def begin(self, messages: tuple[Message, ...]) -> None: ...

    def take(self) -> Sequence[Message]: ...

    async def close(self) -> None: ...


class StopHooks(Protocol):
    async def stop(self, last_message: str, stop_hook_active: bool) -> StopVerdict: ...


class TurnHooks(Protocol):
    async def post_tool_batch(self, calls: Callable[[], Sequence[Mapping[str, Any]]]) -> BatchVerdict:
        """All calls of one answer have their results. `calls` makes the list of them."""
        ...

    async def stop_failure(self, kind: str, message: str, last_message: str) -> None:
        """The agent ends by an error of a model call."""
        ...


class ContextPort(Protocol):
    """The five steps of `context/pipeline.py`, and what mends a prompt that is too long."""

    async def prepare(self, messages: tuple[Message, ...], info: ModelInfo, tracking: Tracking) -> Prepared: ...

    @property
    def has_staged_collapses(self) -> bool: ...

    @property
    def is_edited(self) -> bool:
        """Whether what is sent is not what was said: something was snipped, cleared or collapsed."""
        ...

    def drain_collapses(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        """Commit every staged collapse."""
        ...

    async def compact(
        self, messages: tuple[Message, ...], info: ModelInfo, trigger: str, instructions: str = ""
    ) -> Compacted | None:
        """A full compaction now; None if it failed. `trigger` is `reactive`, `manual`, `media`, which leaves out
        every image and document, or `edited`: the endpoint refused a history with a seam in it."""
        ...

    def turn_ended(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        """A turn's tools are done: stage collapses in the background while the model works."""
        ...

    async def close(self) -> None:
        """End what works in the background."""
        ...

    def largest(self, messages: tuple[Message, ...], info: ModelInfo) -> str:
        """The largest block of the conversation in words, with its size: what a person must know when nothing helps."""
        ...


__all__ = [
    "Attachment", "AttachmentSource", "Budget", "Compacted", "ContextPort", "Inbox", "Journal", "NoAttachments", "Nothing",
    "Prepared", "Reservation", "Step", "StopHooks", "StopVerdict", "Tracking", "TurnHooks",
]  # fmt: skip


class NoAttachments:
    def begin(self, messages: tuple[Message, ...]) -> None:
        return None

    def take(self) -> Sequence[Message]:
        return ()

    async def close(self) -> None:
        return None


class Nothing:
    """The ports of an agent without inbox, hooks, budget."""

    notice: str | None = None
    last_call: bool = False
    max_tokens: int | None = None

    async def take(self) -> Sequence[Attachment]:
        return ()

    async def stop(self, last_message: str, stop_hook_active: bool) -> StopVerdict:
        return StopVerdict()

    async def post_tool_batch(self, calls: Callable[[], Sequence[Mapping[str, Any]]]) -> BatchVerdict:
        return BatchVerdict()

    async def stop_failure(self, kind: str, message: str, last_message: str) -> None:
        return None

    async def reserve(self, request: ModelRequest, prompt_tokens: int) -> Reservation:
        return self

    def spare(self, request: ModelRequest, prompt_tokens: int) -> Reservation:
        return self

    def settle(self, model: str, usage: Usage | None) -> None:
        return None
