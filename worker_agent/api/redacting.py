"""A `ModelClient` whose answers hold no known secret, from their birth on.

1. What comes out of here is what enters the history: the row that is stored, the bytes that are sent back and what an
   observer sees are one and the same text, so the prefix stays as it is and a resumed run sends the same bytes.
2. What runs is what the model wrote. A call whose input had to be redacted carries its own words in `typed`, for the tool
   alone; they are in no message.
3. Thinking is signed, word for word and for everything before it. Where it would have to be changed, or where something
   before it in the same answer was, it is left out whole: an answer without thinking can be sent, one with a broken
   signature cannot.
4. Pieces are shown as they come, but for an end that may be the beginning of a secret.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import assert_never

from worker_agent.api.client import (
    BlockClosed,
    Finished,
    InputPiece,
    ModelClient,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    Started,
    TextPiece,
    ThinkingPiece,
)
from worker_agent.errors import ModelError
from worker_agent.messages import Block, Usage
from worker_agent.redaction import Redactor, Stream, in_json
from worker_agent.structs import replace

_SIGNED = frozenset({"thinking", "redacted_thinking"})


def redacting(client: ModelClient, redact: Redactor) -> ModelClient:
    """`client`, its answers redacted; itself where no secret is known."""
    return RedactingClient(client, redact) if redact else client


class RedactingClient:
    """See the head of the file."""

    def __init__(self, client: ModelClient, redact: Redactor) -> None:
        self._client = client
        self._redact = redact

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        answer, events = _Answer(self._redact), self._client.stream(request)
        try:
            async for event in events:
                for shown in answer.take(event):
                    yield shown
        except ModelError as error:
            raise error.reworded(self._redact(error.message)) from None
        finally:
            await events.aclose()

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self._client.count_tokens(request)

    async def model_info(self, model: str) -> ModelInfo:
        return await self._client.model_info(model)

    def cost(self, model: str, usage: Usage) -> float | None:
        return self._client.cost(model, usage)

    async def refresh_credentials(self) -> bool:
        return await self._client.refresh_credentials()

    def forget(self, conversation: str) -> None:
        self._client.forget(conversation)

    async def close(self) -> None:
        await self._client.close()


class _Answer:
    """One answer on its way through."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._open: dict[int, tuple[type[TextPiece | ThinkingPiece], Stream]] = {}
        self._changed = False  # something before this place in the answer is no longer what was signed

    def take(self, event: ModelEvent) -> Iterator[ModelEvent]:
        match event:
            case Started() | InputPiece():
                yield event
            case TextPiece() | ThinkingPiece():
                _, stream = self._open.setdefault(event.index, (type(event), self._redact.stream()))
                if text := stream.feed(event.text):
                    yield replace(event, text=text)
            case BlockClosed():
                yield from self._rest(event.index)
                yield from self._closed(event)
            case Finished():
                for index in sorted(self._open):
                    yield from self._rest(index)
                yield replace(
                    event,
                    open_block=in_json(event.open_block, self._redact),
                    stop_details=in_json(event.stop_details, self._redact),
                )
            case _:
                assert_never(event)

    def _rest(self, index: int) -> Iterator[ModelEvent]:
        piece, stream = self._open.pop(index, (TextPiece, None))
        if stream is not None and (text := stream.rest()):
            yield piece(index, text)

    def _closed(self, event: BlockClosed) -> Iterator[ModelEvent]:
        block: Block = in_json(event.block, self._redact)
        self._changed |= block is not event.block
        if self._changed and block.get("type") in _SIGNED:
            return
        invalid = event.invalid if event.invalid is None else self._redact(event.invalid)
        typed = event.block if block is not event.block and block.get("type") == "tool_use" else None
        yield replace(event, block=block, invalid=invalid, typed=typed)
