"""Step 5: when the window is nearly full, the whole history is summarised by a model call.

The decision is here; the call is made by whoever composed the agent. After three failures in a row it stops trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from worker_agent.config import ContextSettings
from worker_agent.context.tokens import estimate
from worker_agent.context.values import Tracking, Window
from worker_agent.context.view import groups
from worker_agent.messages import Message

KEEP_SHARE = 0.1  # of the effective window: about as much of the newest messages is kept as it is


class Pressure(StrEnum):
    ROOM = "room"
    COMPACT = "compact"
    BLOCKED = "blocked"


def pressure(tokens: int, effective: int, settings: ContextSettings, tracking: Tracking) -> Pressure:
    """What `tokens` in a window of `effective` asks for. With auto-compaction off (or given up), the hard limit is a
    little higher, so that there is room to compact by hand."""
    trying = settings.auto_compact and tracking.consecutive_failures < settings.max_compact_failures
    # A buffer made for large windows must not eat a small one.
    buffer = min(settings.auto_compact_buffer, effective // 4)
    if trying and tokens >= effective - buffer:
        return Pressure.COMPACT
    if not settings.auto_compact and tokens >= effective - min(settings.blocking_buffer, effective // 8):
        return Pressure.BLOCKED
    return Pressure.ROOM


def split(messages: Sequence[Message], window: Window, effective: int) -> int:
    """The index from which messages are kept as they are: whole groups, about a tenth of the window, never an answer
    without its results."""
    kept = 0
    cut = len(messages)
    for group in reversed(groups(messages)):
        kept += estimate(messages[group.start : group.stop], window.chars_per_token)
        if kept > effective * KEEP_SHARE:
            break
        cut = group.start
    return cut


def drop_oldest(messages: Sequence[Message], share: float = 0.2) -> tuple[Message, ...]:
    """Without the oldest whole groups, about `share` of the messages: when even the summarising call is too long."""
    found = groups(messages)
    wanted = max(1, int(len(messages) * share))
    for group in found:
        if group.stop >= wanted:
            return tuple(messages[group.stop :])
    return ()
