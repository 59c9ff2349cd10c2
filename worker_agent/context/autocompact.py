"""Step 5: when the window is nearly full, the whole history is summarised by a model call.

The decision is here; the call is made by whoever composed the agent. After three failures in a row it stops trying.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from enum import StrEnum

from worker_agent.config import ContextSettings
from worker_agent.context.tokens import estimate
from worker_agent.context.values import Tracking, Window
from worker_agent.context.view import groups, is_collapse
from worker_agent.messages import Message

KEEP_UNANSWERED = 0.25  # of the effective window: what nobody has answered yet is kept up to this


class Pressure(StrEnum):
    ROOM = "room"
    COMPACT = "compact"
    BLOCKED = "blocked"


def pressure(tokens: int, effective: int, settings: ContextSettings, tracking: Tracking) -> Pressure:
    """What `tokens` in a window of `effective` asks for. With auto-compaction off (or given up), the hard limit is a
    little higher, so that there is room to compact by hand."""
    trying = settings.auto_compact and tracking.consecutive_failures < settings.max_compact_failures
    # Buffers made for large windows must not eat a small one.
    buffer = min(settings.auto_compact_buffer, effective // 12)
    if trying and tokens >= effective - buffer:
        return Pressure.COMPACT
    if not settings.auto_compact and tokens >= effective - min(settings.blocking_buffer, effective // 24):
        return Pressure.BLOCKED
    return Pressure.ROOM


def kept(
    view: Sequence[Message], window: Window, effective: int, share: float, rebuilt: Collection[str] = ()
) -> tuple[Message, ...]:
    """The newest messages, which a compaction keeps as they are: what nobody has answered yet, and before it whole
    turns up to `share` of the window. The kept part begins with an answer, so that it stays the same behind a summary.
    What an earlier compaction made (its ids are in `rebuilt`) is made anew, and bounds what is kept. A prompt that nobody
    has answered is kept however large it is: no summary says what a person asked for."""
    taken: list[Message] = []
    begin, size, unanswered, bounded = 0, 0, True, False
    for group in reversed(groups(view)):
        stretch = view[group.start : group.stop]
        if is_made(stretch[0], rebuilt):
            bounded = True
            continue
        unanswered = unanswered and stretch[0].role != "assistant"
        if bounded and not unanswered:
            break
        size += estimate(stretch, window.chars_per_token)
        if size > effective * (KEEP_UNANSWERED if unanswered else share):
            break
        taken[:0] = stretch
        if unanswered or stretch[0].role == "assistant":
            begin = len(taken)
    found = taken[len(taken) - begin :]
    ids = {message.id for message in found}
    return (*(prompt for prompt in unanswered_prompts(view, rebuilt) if prompt.id not in ids), *found)


def unanswered_prompts(view: Sequence[Message], rebuilt: Collection[str] = ()) -> tuple[Message, ...]:
    """What was asked since the last answer or compaction, in order."""
    since = itertools.takewhile(lambda message: message.role != "assistant" and not is_made(message, rebuilt), reversed(view))
    return tuple(message for message in since if message.kind == "prompt")[::-1]


def is_made(message: Message, rebuilt: Collection[str] = ()) -> bool:
    """Whether a message was made by a compaction or a collapse."""
    return message.kind in ("boundary", "summary") or is_collapse(message) or message.id in rebuilt


def drop_oldest(messages: Sequence[Message], share: float = 0.2) -> tuple[Message, ...]:
    """Without the oldest whole groups, about `share` of the text: when even the summarising call is too long. What was
    asked at the beginning stays, and what an earlier compaction said, which stands for much more than itself; () when
    only one group is left beside them."""
    head = 0
    while head < len(messages) and (is_made(messages[head]) or messages[head].kind == "prompt"):
        head += 1
    rest = tuple(messages[head:])
    wanted, dropped, found = estimate(rest, 4.0) * share, 0, groups(rest)
    for group, following in itertools.pairwise(found):
        dropped += estimate(rest[group.start : group.stop], 4.0)
        if dropped >= wanted or following is found[-1]:
            return (*messages[:head], *rest[group.stop :])
    return ()
