"""A conversation as plain text, for a model that has neither its tools nor its prompt, and no part in its thinking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worker_agent import messages as m
from worker_agent.messages import Block, Message

REPORTS = "task_notification"  # the source, in a message's `data`, of what workers reported


def as_text(messages: Sequence[Message], room: int) -> str:
    """A stretch with all its calls and results; the longest parts are cut so that it has about `room` characters."""
    return _fitted(
        [part for message in messages for block in message.content if (part := _block_text(message.role, block))], room
    )


def said(messages: Sequence[Message], room: int) -> str:
    """Only what the person and the agent said, and what its workers reported: nothing that a tool read. Cut likewise."""
    return _fitted([f"[{who}] {text}" for message in messages for who, text in _said(message) if text.strip()], room)


def _said(message: Message) -> Iterator[tuple[str, str]]:
    match message.kind:
        case "prompt":
            yield "person", message.text
        case "answer":
            yield "agent", message.text
        case "attachment" if message.data.get("source") == REPORTS:
            yield "report", message.text
        case _:
            return


def _fitted(parts: Sequence[str], room: int) -> str:
    limit = _fair_limit([len(part) for part in parts], room)
    return "\n".join(part if len(part) <= limit else f"{part[:limit]} […]" for part in parts)


def _block_text(role: str, block: Block) -> str:
    match block.get("type"):
        case "text":
            return f"[{role}] {block['text']}"
        case "tool_use":
            return f"[call] {block['name']} {m.canonical(block['input']).decode()}"
        case "tool_result":
            content = block.get("content", "")
            if not isinstance(content, str):
                content = "\n".join(inner.get("text") or f"({inner.get('type')})" for inner in content)
            return f"[result] {content}"
        case "compaction":
            return f"[summary of what came before] {block['content']}"
        case _:
            return ""


def _fair_limit(lengths: Sequence[int], room: int) -> int:
    """The length to cut parts to, so that all have `room`; short ones leave theirs to the others."""
    for position, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - position)
        if length > share:
            return share
        room -= length
    return max(lengths, default=0)
