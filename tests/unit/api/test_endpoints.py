"""What compatible servers send otherwise than the vendor, each as it was seen on one of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import orjson
import pytest

from tests.unit.api.clock import ManualClock
from worker_agent.api import models
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.client import BlockClosed, Finished, ModelEvent, Started
from worker_agent.api.errors_map import from_response
from worker_agent.api.stream import Folder, Watchdog, fold
from worker_agent.config import Settings
from worker_agent.errors import ErrorKind as K

CONTENT = [
    {"type": "text", "text": "Reading."},
    {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
]
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "model": "M",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 7, "output_tokens": 3},
}


def openai(type: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": None}}


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        (401, openai("invalid_request_error", "Incorrect API key"), K.AUTHENTICATION, "Incorrect API key"),
        (429, openai("invalid_request_error", "Slow down"), K.RATE_LIMIT, "Slow down"),
        (429, openai("api_error", "Slow down"), K.RATE_LIMIT, "Slow down"),
        (404, openai("invalid_request_error", "No such model"), K.NOT_FOUND, "No such model"),
        (529, openai("api_error", "Busy"), K.OVERLOADED, "Busy"),
        (500, openai("invalid_request_error", "Bad field"), K.INVALID_REQUEST, "Bad field"),
        (401, {"detail": "Not allowed"}, K.AUTHENTICATION, "Not allowed"),
        (400, {"detail": "maximum context length is 4096 tokens"}, K.PROMPT_TOO_LONG, "maximum context length is 4096 tokens"),
        (422, {"detail": [{"loc": ["body"], "msg": "Field required"}]}, K.INVALID_REQUEST, "Field required"),
        (422, {"detail": [{"loc": ["body", "thinking"], "msg": "Extra"}]}, K.INVALID_REQUEST, "thinking: Extra"),
        (403, {"error": "Forbidden", "message": "Ask the owner"}, K.PERMISSION, "Ask the owner"),
        (400, {"error": None, "message": "Wrong"}, K.INVALID_REQUEST, "Wrong"),
        (400, {"detail": {"error": {"message": "Nested"}}}, K.INVALID_REQUEST, "Nested"),
    ],
)
def test_a_foreign_error_is_known_by_its_status_and_said_in_its_words(
    status: int, body: dict[str, Any], expected: K, words: str
) -> None:
    error = from_response(status, {}, orjson.dumps(body), 0.0)
    assert (error.kind, error.message) == (expected, words)


def blocks(events: list[ModelEvent]) -> list[Any]:
    return [event.block for event in events if isinstance(event, BlockClosed)]


def test_a_whole_message_instead_of_a_stream_is_an_answer() -> None:
    body = orjson.dumps(MESSAGE, option=orjson.OPT_INDENT_2).replace(b"{", b"{\n\n", 1)

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 50):
            yield body[at : at + 50]

    async def run() -> list[ModelEvent]:
        clock = ManualClock()
        async with Watchdog.over(clock, 60.0) as dog:
            return [event async for event in fold(chunks(), dog, clock, {})]

    events = asyncio.run(run())
    assert isinstance(events[0], Started) and blocks(events) == CONTENT
    assert isinstance(events[-1], Finished) and (events[-1].stop_reason, events[-1].usage.output) == ("tool_use", 3)


def folded(*events: dict[str, Any]) -> list[ModelEvent]:
    folder = Folder()
    return [done for event in events for done in folder.feed(event)]


def test_a_message_start_that_carries_everything_counts_unless_blocks_of_its_own_come() -> None:
    start, stop = {"type": "message_start", "message": MESSAGE}, {"type": "message_stop"}
    assert blocks(folded(start, stop)) == CONTENT
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Streamed."}}
    assert blocks(folded(start, piece, stop)) == [{"type": "text", "text": "Streamed."}]


def unclosed(reason: str, *pieces: str) -> list[dict[str, Any]]:
    """An answer of a server that sends no `content_block_stop`: text, then a call whose input comes in `pieces`."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    return [
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Reading."}},
        {"type": "content_block_start", "index": 1, "content_block": call},
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in pieces
        ),
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


def test_blocks_that_were_never_closed_count_where_the_answer_ends_with_calls() -> None:
    assert blocks(folded(*unclosed("tool_use", '{"path": ', '"a"}'))) == CONTENT


@pytest.mark.parametrize(
    ("reason", "pieces"), [("tool_use", ['{"path": "a']), ("max_tokens", ['{"path": "a"}']), ("end_turn", [])]
)
def test_a_call_that_was_never_closed_is_none_where_it_may_have_been_cut(reason: str, pieces: list[str]) -> None:
    events = folded(*unclosed(reason, *pieces))
    assert blocks(events) == CONTENT[:1]
    assert isinstance(events[-1], Finished) and events[-1].open_block is not None


def test_zeros_at_the_end_erase_no_counts() -> None:
    zeros = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": None}
    start = {"type": "message_start", "message": {**MESSAGE, "content": [], "usage": {"input_tokens": 7, "output_tokens": 3}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": zeros}
    finished = folded(start, end, {"type": "message_stop"})[-1]
    assert isinstance(finished, Finished) and (finished.usage.input, finished.usage.output) == (7, 3)


def test_a_second_message_start_begins_no_second_answer() -> None:
    start = {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}}
    assert [type(event) for event in folded(start, start)] == [Started]


def test_the_list_of_models_names_the_window() -> None:
    entries = [
        {"id": "a", "max_model_len": 4096},
        {"id": "b", "meta": {"n_ctx": 8192, "n_ctx_train": 131072}},
        {"id": "c", "max_input_tokens": 16384},
    ]
    found = {id: models.in_list(id, {"data": entries}) for id in "abcd"}
    assert {id: models.from_endpoint(id, entry).window for id, entry in found.items() if entry} == {
        "a": 4096,
        "b": 8192,
        "c": 16384,
    }
    assert models.in_list("any", {"data": entries[:1]}) == entries[0]


class OnlyLists(BaseHTTPRequestHandler):
    """A server that knows its models as a list only."""

    def do_GET(self) -> None:
        listed = self.path == "/v1/models"
        body = orjson.dumps({"data": [{"id": "local", "meta": {"n_ctx": 8192}}]} if listed else {"detail": "Not Found"})
        self.send_response(200 if listed else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def test_a_server_that_only_lists_its_models_tells_the_window_all_the_same() -> None:
    async def window(address: str) -> int:
        client = AnthropicClient(settings=Settings(), base_url=address, api_key="key")
        try:
            return (await client.model_info("local")).window
        finally:
            await client.close()

    with HTTPServer(("127.0.0.1", 0), OnlyLists) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert asyncio.run(window(f"http://127.0.0.1:{server.server_port}")) == 8192
        finally:
            server.shutdown()
            thread.join()
