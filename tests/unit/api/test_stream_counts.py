"""What a stream's odd numbers and unclosed blocks come to."""

from __future__ import annotations

from typing import Any

from worker_agent.api.client import BlockClosed, Finished, ModelEvent
from worker_agent.api.stream import Folder
from worker_agent.messages import Usage


def folded(*events: dict[str, Any]) -> list[ModelEvent]:
    folder = Folder()
    return [event for wire in events for event in folder.feed(wire)]


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "m1", "model": "m", "usage": usage}}


STOP = {"type": "message_stop"}


def test_zeros_at_the_end_do_not_erase_what_was_known() -> None:
    known = {"input_tokens": 100_000, "cache_read_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 5}}
    zeros = {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation": {"ephemeral_1h_input_tokens": 0}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {**zeros, "output_tokens": 6}}
    finished = folded(start(**known, output_tokens=1), end, STOP)[-1]
    assert isinstance(finished, Finished)
    assert finished.usage == Usage(input=100_000, cache_read=7, cache_write_1h=5, output=6)


def test_text_that_was_never_closed_counts_where_the_message_ends_in_order_and_a_call_does_not() -> None:
    text = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "all "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "of it"}},
    ]
    call = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "Bash"}}
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}
    closed = [event for event in folded(start(), *text, call, end, STOP) if isinstance(event, BlockClosed | Finished)]
    assert closed[0] == BlockClosed(0, {"type": "text", "text": "all of it"})
    assert isinstance(closed[1], Finished) and closed[1].open_block is not None and closed[1].open_block["name"] == "Bash"
