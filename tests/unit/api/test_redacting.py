"""What comes out of a `RedactingClient`: the same stream without secrets, and no thinking whose signature broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from worker_agent.api.client import BlockClosed, Finished, ModelClient, ModelEvent, ModelRequest, Started, TextPiece
from worker_agent.api.redacting import redacting
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage
from worker_agent.redaction import Redactor

SECRET = "tok-9f8e7d6c5b4a3210"
REDACT = Redactor([SECRET])
REQUEST = ModelRequest(model="m", max_tokens=1, system=(), tools=(), messages=())
END = Finished("end_turn", Usage())


class Script:
    """A client that gives these events, then raises `error` if there is one."""

    def __init__(self, events: Sequence[ModelEvent], error: ModelError | None = None) -> None:
        self.events, self.error, self.closed = events, error, False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            for event in self.events:
                yield event
            if self.error:
                raise self.error
        finally:
            self.closed = True


def through(script: Script) -> list[ModelEvent]:
    async def collect() -> list[ModelEvent]:
        return [event async for event in redacting(cast(ModelClient, script), REDACT).stream(REQUEST)]

    return asyncio.run(collect())


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "s"}


def blocks(*given: dict[str, Any]) -> list[dict[str, Any]]:
    events = [Started("id", "m", Usage()), *(BlockClosed(i, block) for i, block in enumerate(given)), END]
    return [dict(event.block) for event in through(Script(events)) if isinstance(event, BlockClosed)]


def test_a_stream_without_a_secret_passes_as_it_is_and_without_secrets_there_is_no_wrapper() -> None:
    events = [
        Started("id", "m", Usage()),
        TextPiece(0, "to"),
        TextPiece(0, "p"),
        BlockClosed(0, {"type": "text", "text": "top"}),
        END,
    ]
    out = through(Script(events))
    assert "".join(event.text for event in out if isinstance(event, TextPiece)) == "top"
    assert [event for event in out if not isinstance(event, TextPiece)] == [events[0], events[3], END]
    client = cast(ModelClient, Script([]))
    assert redacting(client, Redactor([])) is client


def test_what_was_held_back_comes_out_before_its_block_closes_or_the_answer_ends() -> None:
    out = through(
        Script([TextPiece(0, "a tok-9"), BlockClosed(0, {"type": "text", "text": "a tok-9"}), TextPiece(1, "tok"), END])
    )
    assert out[:2] == [TextPiece(0, "a "), TextPiece(0, "tok-9")] and out[3:] == [TextPiece(1, "tok"), END]


def test_thinking_that_holds_a_secret_or_stands_behind_a_changed_block_is_left_out_whole() -> None:
    plain, secret = {"type": "text", "text": "x"}, {"type": "text", "text": SECRET}
    assert blocks(thought("a"), plain, thought("b"), plain) == [thought("a"), plain, thought("b"), plain]
    assert blocks(thought("a"), secret, thought("b"), plain) == [thought("a"), {"type": "text", "text": "[redacted]"}, plain]
    assert blocks(thought(SECRET), plain, {"type": "redacted_thinking", "data": "d"}) == [plain]


def test_a_call_is_shown_redacted_and_keeps_its_own_words_for_the_tool() -> None:
    call = {"type": "tool_use", "id": "1", "name": "Bash", "input": {"command": f"echo {SECRET}", "deep": [{"k": SECRET}]}}
    (closed,) = through(Script([BlockClosed(0, call)]))
    assert isinstance(closed, BlockClosed) and closed.typed is call
    assert closed.block["input"] == {"command": "echo [redacted]", "deep": [{"k": "[redacted]"}]}
    harmless = {**call, "input": {"command": "ls"}}
    assert through(Script([BlockClosed(0, harmless)])) == [BlockClosed(0, harmless)]


def test_an_error_that_repeats_the_key_does_not_and_the_connection_is_closed() -> None:
    script = Script([Started("id", "m", Usage())], ModelError(ErrorKind.AUTHENTICATION, f"no such key {SECRET}", status=401))
    with pytest.raises(ModelError) as raised:
        through(script)
    assert (raised.value.message, raised.value.status, raised.value.kind) == (
        "no such key [redacted]",
        401,
        ErrorKind.AUTHENTICATION,
    )
    assert script.closed
