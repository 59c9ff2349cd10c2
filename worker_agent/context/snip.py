"""Step 2: drop old stretches of the history that no longer matter, and say how many tokens that freed.

What no longer matters, older than the latest turns: turns in which every call failed, and reads of a file that was
read whole again later. It acts at a share of the window and in one go, because it breaks the cache from the first
message it drops.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_agent.config import ContextSettings
from worker_agent.context.tokens import estimate
from worker_agent.context.values import Snip, Window
from worker_agent.context.view import groups
from worker_agent.messages import Message


def plan(view: Sequence[Message], window: Window, tokens: int, effective: int, settings: ContextSettings) -> Snip | None:
    """What to drop of a view of `tokens` in an effective window."""
    if tokens < effective * settings.snip_at:
        return None
    turns = [g for g in groups(view) if view[g.start].tool_uses]
    old = turns[: -settings.snip_keep_turns]
    read_later = _paths_read_whole([view[g.start] for g in turns])
    gone: list[Message] = []
    for position, group in enumerate(old):
        stretch = view[group.start : group.stop]
        if _all_failed(stretch) or _only_reads_again(view[group.start], position, read_later):
            gone += stretch
    freed = estimate(gone, window.chars_per_token)
    if freed < effective * settings.snip_at_least or not _is_worth_it(view, gone, freed, window):
        return None
    return Snip(tuple(message.id for message in gone), freed)


def _is_worth_it(view: Sequence[Message], gone: Sequence[Message], freed: int, window: Window) -> bool:
    """Whether more than half as much goes as must be written to the cache anew: all behind the first one dropped."""
    if not window.cache_control:
        return True
    first = next(i for i, message in enumerate(view) if message is gone[0])
    return freed * 3 > estimate(view[first:], window.chars_per_token)


def _all_failed(stretch: Sequence[Message]) -> bool:
    results = [b for message in stretch for b in message.tool_results]
    return bool(results) and all(b.get("is_error") for b in results) and not stretch[0].text.strip()


def _paths_read_whole(turns: Sequence[Message]) -> dict[str, int]:
    """Path → the position of the last turn that read it whole."""
    last: dict[str, int] = {}
    for position, message in enumerate(turns):
        for call in message.tool_uses:
            if call["name"] == "Read" and set(call["input"]) == {"file_path"}:
                last[call["input"]["file_path"]] = position
    return last


def _only_reads_again(message: Message, position: int, read_later: dict[str, int]) -> bool:
    calls = message.tool_uses
    return not message.text.strip() and all(
        call["name"] == "Read" and read_later.get(call["input"].get("file_path", ""), -1) > position for call in calls
    )
