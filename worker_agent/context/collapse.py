"""Step 4: stretches of finished turns, staged as summaries ahead of need and committed when the window fills.

A projection at read time: the history is never changed, a committed collapse is a recorded decision. Staging runs in
the background while the agent works, one stretch at a time; committing takes what is staged and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker_agent.context.tokens import estimate
from worker_agent.context.values import Collapse, Window
from worker_agent.context.view import groups
from worker_agent.messages import Message

STAGE_SHARE = 0.5  # of the effective window: staging begins here
STRETCH_SHARE = 0.3  # of the effective window: about as much is summarised at once
KEEP_TURNS = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """Messages to be summarised together."""

    messages: tuple[Message, ...]

    def collapse(self, summary: str) -> Collapse:
        return Collapse(self.messages[0].id, self.messages[-1].id, summary)


def next_stretch(
    view: Sequence[Message], window: Window, tokens: int, effective: int, staged: Sequence[Collapse]
) -> Stretch | None:
    """The oldest finished stretch worth staging, behind what is staged already; None while there is room, or too
    little to summarise. The prompt that began the work and what a compaction or collapse left are not touched."""
    if tokens < effective * STAGE_SHARE:
        return None
    start = _begin(view, staged)
    found = [g for g in groups(view) if g.start >= start]
    usable = found[:-KEEP_TURNS] if len(found) > KEEP_TURNS else []
    taken: list[Message] = []
    for group in usable:
        taken += view[group.start : group.stop]
        if estimate(taken, window.chars_per_token) >= effective * STRETCH_SHARE:
            break
    if estimate(taken, window.chars_per_token) < effective * STRETCH_SHARE / 3:
        return None
    return Stretch(tuple(taken))


def _begin(view: Sequence[Message], staged: Sequence[Collapse]) -> int:
    if staged:
        last = next((i for i, message in enumerate(view) if message.id == staged[-1].last), -1)
        return last + 1
    answers = (i for i, message in enumerate(view) if message.role == "assistant" and message.kind == "answer")
    return next(answers, len(view))
