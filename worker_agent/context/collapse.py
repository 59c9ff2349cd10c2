"""Step 4: stretches of finished turns, staged as summaries ahead of need and committed when the window fills.

A projection at read time: the history is never changed, a committed collapse is a recorded decision. Staging runs in
the background while the agent works, one stretch at a time; committing takes what is staged and waits for nothing.

Which stretch, and by what means, is a question of the cache:

- `SERVER`, where thinking is bound and the server compacts on demand: its block stands for everything up to a point,
  and what is kept behind it keeps its thinking.
- `PREFIX`, where the endpoint caches: the agent's own model reads its own prefix (from the cache) and summarises the
  *young* part of it. The old part stays as it is, so that the next call still reads it from the cache: each collapse
  writes anew only its summary and the newest turns. When the old part and the summaries behind it have grown too large,
  all of it is summarised once.
- `TEXT`, where nothing is cached: a small model reads the stretch as plain text; it reaches back to the first answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from worker_agent.config import ContextSettings
from worker_agent.context.tokens import estimate
from worker_agent.context.values import Collapse, Window
from worker_agent.context.view import groups, is_collapse, newest_part
from worker_agent.messages import Message

FULL_FRONT = 1.45  # times the front's share: an old part as large as this is summarised itself
LEAST = 0.1  # of the effective window: a shorter stretch is not worth a call


class Means(StrEnum):
    SERVER = "server"
    PREFIX = "prefix"
    TEXT = "text"


def means_for(window: Window) -> Means:
    if window.server_compaction and window.binds_thinking:
        return Means.SERVER
    return Means.PREFIX if window.cache_control else Means.TEXT


class Stretch(Struct, frozen=True):
    """`messages` are to be summarised together; `before` are those in front of them, `turns` how many answers they
    hold."""

    means: Means
    before: tuple[Message, ...]
    messages: tuple[Message, ...]

    @property
    def turns(self) -> int:
        return sum(message.role == "assistant" for message in self.messages)

    def collapse(self, summary: str, block: Any = None) -> Collapse:
        return Collapse(self.messages[0].id, self.messages[-1].id, summary, block)


def next_stretch(
    view: tuple[Message, ...], window: Window, tokens: int, effective: int, settings: ContextSettings
) -> Stretch | None:
    """The stretch worth staging now; None while there is room, or too little to summarise."""
    if tokens < effective * settings.collapse_stage:
        return None
    means = means_for(window)
    start = 0 if means is Means.SERVER else _start(view, window, effective, settings, means)
    stop = _stop(view, window, effective * settings.collapse_keep)
    if estimate(view[start:stop], window.chars_per_token) < effective * LEAST:
        return None
    if means is Means.SERVER and not newest_part(view[:stop]):
        return None
    return Stretch(means, view[:start], view[start:stop])


def _start(view: Sequence[Message], window: Window, effective: int, settings: ContextSettings, means: Means) -> int:
    """The first message of the stretch. The prompt that began the work is never touched."""
    oldest = next((i for i, message in enumerate(view) if message.kind == "answer" or is_collapse(message)), len(view))
    if means is Means.TEXT:
        return oldest
    front = effective * settings.collapse_front
    summarised = next((i + 1 for i in range(len(view) - 1, -1, -1) if is_collapse(view[i])), 0)
    if estimate(view[:summarised], window.chars_per_token) > front * FULL_FRONT:
        return oldest
    size = 0
    for group in groups(view):
        if group.start >= max(oldest, summarised) and size >= front and view[group.start].role == "assistant":
            return group.start
        size += estimate(view[group.start : group.stop], window.chars_per_token)
    return len(view)


def _stop(view: Sequence[Message], window: Window, room: float) -> int:
    """Behind the last message of the stretch: the newest turns are left out, as many as have `room`. What comes while
    the summary is made stands behind it in any case, so that the newest turn is always shown whole."""
    stop, size = len(view), 0
    for group in reversed(groups(view)):
        size += estimate(view[group.start : group.stop], window.chars_per_token)
        if size > room:
            break
        if view[group.start].kind == "answer":
            stop = group.start
    return stop
