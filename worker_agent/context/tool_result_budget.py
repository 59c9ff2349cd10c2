"""Step 1: the results of one message together have a cap; the largest are spilled first.

A single result over its tool's own cap was already spilled when the tool ended. What was once spilled stays spilled
with the same text: the decision is recorded, and a message that was ever sent is never looked at again.
"""

from __future__ import annotations

from collections.abc import Callable

from worker_agent.config import ToolSettings
from worker_agent.context.values import Spill
from worker_agent.messages import Message


def plan(message: Message, settings: ToolSettings, spill: Callable[[str, str], str], cap: int | None = None) -> Spill | None:
    """For the newest results message: which of its results to spill so that the rest fits `cap` characters (None: the
    setting). `spill(tool_use_id, text)` writes one and gives the text that stands for it."""
    cap = settings.message_cap if cap is None else min(cap, settings.message_cap)
    sizes = {b["tool_use_id"]: len(b["content"]) for b in message.tool_results if isinstance(b.get("content"), str)}
    total = sum(sizes.values())
    if total <= cap:
        return None
    contents = {b["tool_use_id"]: b["content"] for b in message.tool_results}
    texts: dict[str, str] = {}
    for tool_use_id in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= cap or sizes[tool_use_id] <= settings.preview * 2:
            break
        texts[tool_use_id] = spill(tool_use_id, contents[tool_use_id])
        total -= sizes[tool_use_id] - len(texts[tool_use_id])
    return Spill(texts) if texts else None
