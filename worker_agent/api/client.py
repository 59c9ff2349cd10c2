"""`ModelClient`: the port behind which a model stands, and the values that cross it.

Rules:

1. One call is one stream of `ModelEvent`s: `Started` first, deltas and `BlockClosed`s in order, `Finished` last. What
   ends otherwise raises `ModelError` (see `errors.py`); no exception of a transport or an SDK crosses this port.
2. An adapter makes exactly one try. The schedule of tries belongs to the loop (`loop/model_turn.py`).
3. A stream that ends without `message_stop` or without a stop reason is `STREAM_BROKEN`, never a success.
4. Closing the iterator (`aclose`, or cancellation) closes the connection: that is the cancel.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from worker_agent.messages import Block, Message, Usage


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it. A `deferred` one only once a `tool_reference` in the conversation names it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    deferred: bool = False


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One call. `system` are text blocks, the part that is equal over all agents of one definition first and the
    agent's own context last; the cache mark stands after the first. `messages` is the view to send, before the four
    passes of `normalize.py`. `conversation` names the agent, so that an adapter can keep what it serialised."""

    model: str
    max_tokens: int
    system: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    conversation: str = ""
    effort: str | None = None
    tools_allowed: bool = True  # False: the tools stay in the prefix, but this call must not use them
    output_schema: Mapping[str, Any] | None = None
    context_management: Mapping[str, Any] | None = None  # server-side context editing, where the model offers it
    compact: str | None = None  # on-demand compaction with these instructions ("" = the server's own)
    betas: tuple[str, ...] = ()
    single: bool = False  # nothing follows on this call: what an adapter serialises for it need not be kept


class Started(Struct, frozen=True):
    """The answer began. `response_id` is the API's message id, `request_id` the header's."""

    response_id: str
    model: str
    usage: Usage
    request_id: str | None = None


class TextPiece(Struct, frozen=True):
    index: int
    text: str


class ThinkingPiece(Struct, frozen=True):
    index: int
    text: str


class InputPiece(Struct, frozen=True):
    """Part of a call's input came: nothing to read before the block is closed, but a sign of life. `length` in characters."""

    index: int
    length: int


class BlockClosed(Struct, frozen=True):
    """A block is complete, exactly as it must be sent back. For a `tool_use` whose JSON does not parse strictly to an
    object, `invalid` says why and `block["input"]` is `{}`: such a call never runs. `typed` is the call in the model's own
    words where `block` is not (`redacting.py`): it runs, and goes nowhere else."""

    index: int
    block: Block
    invalid: str | None = None
    typed: Block | None = None


class Finished(Struct, frozen=True):
    """The answer is whole. `usage` is final and cumulative; `open_block` is the block that the end cut, if any;
    `stop_details` is what a refusal says of itself."""

    stop_reason: str
    usage: Usage
    open_block: Block | None = None
    stop_details: Mapping[str, Any] | None = None


ModelEvent = Started | TextPiece | ThinkingPiece | InputPiece | BlockClosed | Finished


class Price(Struct, frozen=True, kw_only=True):
    """USD per million tokens, all five, of one tier from one day on."""

    input: float
    output: float
    write_5m: float
    write_1h: float
    read: float


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What one model can do. `price` is None when unknown: its cost is shown as unknown, never as 0."""

    id: str
    window: int
    max_output: int
    chars_per_token: float = 4.0
    binds_thinking: bool = False  # thinking signatures hold for the exact prefix only
    server_compaction: bool = False  # on-demand compaction through the beta namespace
    server_editing: bool = False  # context editing through the beta namespace
    cache_control: bool = True
    adaptive_thinking: bool = False
    effort: bool = False
    tool_search: bool = False  # takes deferred tools, and results that reference them
    max_media: int = 100
    known: bool = True  # False: an endpoint's own model that no table knows
    plain: bool = False  # the endpoint refused a vendor's feature: none of them is sent, and no thinking


class ModelClient(Protocol):
    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """One try of one call; whoever stops reading closes it. Raises `ModelError`."""
        ...

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """The endpoint's own count of the prompt; None where it does not count."""
        ...

    async def model_info(self, model: str) -> ModelInfo:
        """From the models endpoint where it says so, else from the table, else a careful guess (`known=False`)."""
        ...

    def cost(self, model: str, usage: Usage) -> float | None:
        """USD for `usage` on `model` today; None when a price is unknown."""
        ...

    async def refresh_credentials(self) -> bool:
        """Try to get fresh credentials after a 401; whether there is something new to try."""
        ...

    def forget(self, conversation: str) -> None:
        """The conversation goes on no more, or not here: what was kept for its next call is not needed."""
        ...

    async def close(self) -> None: ...
