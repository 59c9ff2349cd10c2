"""What a conversation consists of after a compaction, in this order:

boundary marker → summary → recent messages that are kept → files last read, afresh → state of the background agents →
plan → skills used → listings as far as they changed → results of session-start hooks.

A message older than the boundary that is not named in it is never sent again. The boundary names the kept messages and
the rebuilt ones by id, so that a resumed conversation draws the same view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker_agent import messages as m
from worker_agent.context.values import Compacted
from worker_agent.context.view import without_media, without_thinking
from worker_agent.messages import Message, Usage

SUMMARY_HEAD = (
    "This conversation goes on from an earlier part that no longer fits. Below is a summary of it; the full transcript"
    " is stored. Go on with the work where it stands; do not greet, do not repeat the summary.\n\n"
)


def compacted(
    *,
    trigger: str,
    tokens_before: int,
    summary: str | Message,
    kept: Sequence[Message],
    rebuilt: Sequence[Message],
    last_id: str | None,
    strip_thinking: bool,
    strip_media: bool = False,
    at: float,
    usage: Usage = Usage(),
) -> Compacted:
    """`summary` is text, or the server's own compaction message, kept unchanged."""
    if isinstance(summary, str):
        summary = m.user(SUMMARY_HEAD + summary, kind="summary", meta=True, at=at)
    data: dict[str, Any] = {
        "trigger": trigger,
        "tokens_before": tokens_before,
        "transcript_position": last_id,
        "summary": summary.id,
        "kept": [message.id for message in kept],
        "rebuilt": [message.id for message in rebuilt],
        "strip_thinking": strip_thinking,
        "strip_media": strip_media,
    }
    boundary = Message(role="system", content=(), kind="boundary", meta=True, data=data, at=at)
    added = (boundary, summary, *rebuilt)
    return Compacted(messages=_in_order(boundary, summary, kept, rebuilt), added=added, usage=usage)


def after_boundary(stored: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation as it stands, from everything that was ever stored: the last boundary with what it names, then
    what came after."""
    index = next((i for i in range(len(stored) - 1, -1, -1) if stored[i].kind == "boundary"), None)
    if index is None:
        return tuple(stored)
    boundary = stored[index]
    by_id = {message.id: message for message in stored}
    named = [boundary.data["summary"], *boundary.data["rebuilt"]]
    kept = [by_id[id_] for id_ in boundary.data["kept"] if id_ in by_id]
    rebuilt = [by_id[id_] for id_ in boundary.data["rebuilt"] if id_ in by_id]
    later = [message for message in stored[index + 1 :] if message.id not in set(named)]
    return (*_in_order(boundary, by_id[boundary.data["summary"]], kept, rebuilt), *later)


def _in_order(
    boundary: Message, summary: Message, kept: Sequence[Message], rebuilt: Sequence[Message]
) -> tuple[Message, ...]:
    if boundary.data["strip_thinking"]:
        kept = [without_thinking(message) for message in kept]
    if boundary.data["strip_media"]:
        kept = [without_media(message) for message in kept]
    return (boundary, summary, *kept, *rebuilt)
