"""Messages of a transcript as values: the documented object, an answer as the API gives it, and the parts that a person reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from coordinator.views.values import iso
from tasks.records import MessageRecord
from worker_agent.messages import Message, Usage


def message_json(row: MessageRecord) -> dict[str, Any]:
    """One message of a transcript, as `logs --json` and `sessions export` give it."""
    return {
        "id": row.id,
        "seq": row.seq,
        "agent_id": row.agent_id,
        "task_id": row.task_id,
        "role": row.role,
        "kind": row.kind,
        "at": iso(row.at),
        "content": orjson.loads(row.content),
        **row.extra,
    }


def answer(message: Message, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An answer, or with a part of its `content` a part of it, in the shape of the Messages API."""
    value: dict[str, Any] = {
        "id": message.response_id or message.id,
        "type": "message",
        "role": "assistant",
        "model": message.model,
        "content": content,
        "stop_reason": message.stop_reason,
    }
    if message.usage:
        value["usage"] = usage_fields(message.usage)
    return value


def usage_fields(usage: Usage) -> dict[str, int]:
    """Usage under the names of the Messages API."""
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write_5m + usage.cache_write_1h,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


def parts(row: MessageRecord) -> Iterator[tuple[str, str]]:
    """The parts of a message that a person reads, each with its kind."""
    for block in orjson.loads(row.content):
        match block.get("type"):
            case "text":
                yield ("error" if row.kind == "api_error" else "text" if row.role == "assistant" else row.kind), block["text"]
            case "thinking":
                yield "thinking", block.get("thinking", "")
            case "tool_use":
                yield "tool", f"{block['name']} {orjson.dumps(block['input']).decode()}"
            case "tool_result":
                yield ("error" if block.get("is_error") else "result"), _result_text(block.get("content", ""))
            case other:
                yield "text", f"[{other}]"


def _result_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in content)
