"""An agent's answers as the API's own stream events, for `--include-partial-messages`: `message_start`, the blocks one after
another, `message_delta`, `message_stop`.

What a block is made of comes as it is written, the input of a tool's call in one piece: it is known to be whole JSON without
secrets only when its block closes. An answer that broke off ends without `message_stop`; the next one begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.views.messages import usage_fields
from worker_agent.events import AnswerBegan, AnswerDone, BlockDone, Event, TextDelta, ThinkingDelta
from worker_agent.messages import Usage

Body = dict[str, Any]
_EMPTY: Mapping[str, Body] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class PartialMessages:
    """Of one agent. Remembers which block is open."""

    def __init__(self) -> None:
        self._open: int | None = None

    def of(self, event: Event) -> Iterator[Body]:
        match event:
            case AnswerBegan(response_id, model, usage):
                self._open = None
                yield {"type": "message_start", "message": _empty_message(response_id, model, usage)}
            case TextDelta(text, index):
                yield from self._piece(index, "text", {"type": "text_delta", "text": text})
            case ThinkingDelta(text, index):
                yield from self._piece(index, "thinking", {"type": "thinking_delta", "thinking": text})
            case BlockDone(index, block):
                yield from self._whole(index, block)
            case AnswerDone(stop_reason, usage):
                yield from self._stop()
                delta = {"stop_reason": stop_reason, "stop_sequence": None}
                yield {"type": "message_delta", "delta": delta, "usage": usage_fields(usage)}
                yield {"type": "message_stop"}

    def _piece(self, index: int, kind: str, delta: Body) -> Iterator[Body]:
        yield from self._start(index, _EMPTY[kind])
        yield _delta(index, delta)

    def _whole(self, index: int, block: Mapping[str, Any]) -> Iterator[Body]:
        """The rest of a block, from whatever was shown of it to its end."""
        match block["type"]:
            case "text" | "thinking" as kind:
                if self._open != index and block.get(kind):  # none of it came in pieces
                    yield from self._piece(index, kind, {"type": f"{kind}_delta", kind: block[kind]})
                yield from self._start(index, _EMPTY[kind])
                if block.get("signature"):
                    yield _delta(index, {"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                yield from self._start(index, {**block, "input": {}})
                yield _delta(index, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
            case _:
                yield from self._start(index, dict(block))
        yield from self._stop()

    def _start(self, index: int, block: Body) -> Iterator[Body]:
        if self._open != index:
            yield from self._stop()
            self._open = index
            yield {"type": "content_block_start", "index": index, "content_block": dict(block)}

    def _stop(self) -> Iterator[Body]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._open}
            self._open = None


def _empty_message(id: str, model: str, usage: Usage) -> Body:
    return {
        "id": id, "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage_fields(usage),
    }  # fmt: skip


def _delta(index: int, delta: Body) -> Body:
    return {"type": "content_block_delta", "index": index, "delta": delta}
