"""A history and its decisions → the view that is sent. Pure; applying the same decisions twice changes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker_agent import messages as m
from worker_agent.context.values import Clear, Collapse, Decision, Snip, Spill, StripThinking
from worker_agent.messages import CACHE_ANCHOR, Block, Message
from worker_agent.structs import replace

CLEARED = "[Old tool result cleared to make room. Call the tool again if it is needed.]"
THINKING = frozenset({"thinking", "redacted_thinking"})
USER_CONTEXT_AFTER = "user_context_after"  # in the `data` of a server's compaction: behind which message it stands then


def draw(messages: Sequence[Message], decisions: Sequence[Decision]) -> tuple[Message, ...]:
    """The view of `messages` under `decisions`, applied in the order they were taken."""
    view = tuple(messages)
    for decision in decisions:
        view = apply(view, decision)
    return view


def apply(messages: tuple[Message, ...], decision: Decision) -> tuple[Message, ...]:
    match decision:
        case Spill(texts=texts):
            return _map_results(messages, lambda block: texts.get(block["tool_use_id"]))
        case Clear(tool_use_ids=ids):
            wanted = frozenset(ids)
            return _map_results(messages, lambda block: CLEARED if block["tool_use_id"] in wanted else None)
        case Snip(ids=ids):
            gone = frozenset(ids)
            return tuple(message for message in messages if message.id not in gone)
        case Collapse():
            return _collapse(messages, decision)
        case StripThinking(last=last, first=begin):
            return _strip_thinking(messages, begin, last)


def _map_results(messages: tuple[Message, ...], new_text: Callable[[Block], str | None]) -> tuple[Message, ...]:
    """Replace the content of tool results for which `new_text` has one; every other message stays the same object."""
    out = []
    for message in messages:
        if message.kind == "tool_results":
            blocks = tuple(_with_text(b, new_text(b)) if b.get("type") == "tool_result" else b for b in message.content)
            if any(a is not b for a, b in zip(blocks, message.content, strict=True)):
                message = replace(message, content=blocks, wire=b"")
        out.append(message)
    return tuple(out)


def _with_text(block: Block, text: str | None) -> Block:
    return block if text is None or block.get("content") == text else {**block, "content": text}


def _collapse(messages: tuple[Message, ...], decision: Collapse) -> tuple[Message, ...]:
    index = {message.id: i for i, message in enumerate(messages)}
    first, last = index.get(decision.first), index.get(decision.last)
    if first is None or last is None:
        return messages
    summary = _summary(decision, messages[last].at)
    return (*messages[:first], summary, *messages[last + 1 :])


def collapse_id(last: str) -> str:
    """The id of the message that stands for a stretch ending with the message `last`."""
    return f"collapse-{last}"


def is_collapse(message: Message) -> bool:
    return message.data.get("reason") == "collapse"


def _summary(decision: Collapse, at: float) -> Message:
    id = collapse_id(decision.last)
    if decision.block is not None:
        data = {"reason": "collapse", USER_CONTEXT_AFTER: decision.after}
        return m.assistant((decision.block,), at=at, id=id, data=data)
    text = f"<collapsed>\nSummary of earlier steps, made to save room:\n{decision.summary}\n</collapsed>"
    return m.user(text, kind="meta", meta=True, id=id, at=at, data={"reason": "collapse", CACHE_ANCHOR: True})


def _strip_thinking(messages: tuple[Message, ...], begin: str, last: str) -> tuple[Message, ...]:
    index = {message.id: i for i, message in enumerate(messages)}
    start, end = (index.get(begin) if begin else 0), index.get(last)
    if start is None or end is None:
        return messages
    stripped = (without_thinking(message) for message in messages[start : end + 1])
    return (*messages[:start], *stripped, *messages[end + 1 :])


def without_thinking(message: Message) -> Message:
    """`message` without thinking blocks; the same object when it has none."""
    if message.role != "assistant" or not any(b["type"] in THINKING for b in message.content):
        return message
    return replace(message, content=tuple(b for b in message.content if b["type"] not in THINKING), wire=b"")


MEDIA_GONE = m.text_block("[An image or document stood here. It could not be sent.]")


def without_media(message: Message) -> Message:
    """`message` with a line of text in place of every image and document; the same object when it has none."""
    content = tuple(_without_media(block) for block in message.content)
    return message if content == message.content else replace(message, content=content, wire=b"")


def _without_media(block: Block) -> Block:
    if block.get("type") in ("image", "document"):
        return MEDIA_GONE
    if block.get("type") == "tool_result" and not isinstance(block.get("content", ""), str):
        return {**block, "content": [_without_media(inner) for inner in block["content"]]}
    return block


def with_user_context(view: tuple[Message, ...], user_context: Message | None) -> tuple[Message, ...]:
    """The view as it is sent. The injected user context stands in front; behind the compaction of a server, which must
    come first and covers the context that was sent before, it stands again, after the messages that were kept."""
    if user_context is None:
        return view
    head = next((i for i, message in enumerate(view[:2]) if USER_CONTEXT_AFTER in message.data), None)
    if head is None:
        return (user_context, *view)
    after = view[head].data[USER_CONTEXT_AFTER]
    place = next((i for i in range(head + 1, len(view)) if view[i].id == after), head) if after else head
    return (*view[: place + 1], user_context, *view[place + 1 :])


def newest_part(view: tuple[Message, ...]) -> tuple[Message, ...]:
    """What stands behind the user context, wherever that stands: what a further compaction of the server must not cut
    into, because it covers what was sent in the order it was sent."""
    head = next((i for i, message in enumerate(view[:2]) if USER_CONTEXT_AFTER in message.data), None)
    if head is None or not (after := view[head].data[USER_CONTEXT_AFTER]):
        return view
    place = next((i for i in range(head + 1, len(view)) if view[i].id == after), None)
    return view[place + 1 :] if place is not None else ()


def groups(messages: Sequence[Message]) -> list[range]:
    """Index ranges that must stay together: an answer with the results of its calls; anything else alone."""
    found: list[range] = []
    start = 0
    while start < len(messages):
        end = start + 1
        if messages[start].role == "assistant" and messages[start].tool_uses:
            while end < len(messages) and messages[end].kind == "tool_results":
                end += 1
        found.append(range(start, end))
        start = end
    return found
