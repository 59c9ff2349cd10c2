"""Step 3: clear old results of tools that can be run again, keeping the latest ones.

It acts only when the prompt cache has gone cold (an hour since the last answer by default), so that a warm cache is
never broken for nothing. Where the endpoint edits the context itself, the request asks for that instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worker_agent import tool_facts
from worker_agent.config import ContextSettings
from worker_agent.context.values import Clear, Window
from worker_agent.context.view import CLEARED
from worker_agent.messages import Message
from worker_agent.tool_facts import Facts


def plan(
    view: Sequence[Message],
    settings: ContextSettings,
    now: float,
    facts: Callable[[str], Facts] = tool_facts.of,
) -> Clear | None:
    """What is to be cleared now, if anything. `facts` by a tool's name."""
    last = next((message.at for message in reversed(view) if message.role == "assistant"), now)
    if now - last <= settings.microcompact_cold:
        return None
    names = {call["id"]: call["name"] for message in view for call in message.tool_uses}
    results = [
        block["tool_use_id"]
        for message in view
        for block in message.tool_results
        if facts(names.get(block["tool_use_id"], "")).rerunnable and block.get("content") != CLEARED
    ]
    old = results[: -settings.microcompact_keep] if settings.microcompact_keep else results
    return Clear(tuple(old)) if old else None


def server_edit(
    window: Window, settings: ContextSettings, effective: int, lasting: Sequence[str] = ()
) -> Mapping[str, Any] | None:
    """The request's `context_management` where the server edits: byte-identical for all calls of one model. The results
    of the tools named in `lasting` cannot be had again."""
    if not (window.server_editing and window.binds_thinking):
        return None
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": int(effective * settings.server_edit_at)},
        "keep": {"type": "tool_uses", "value": settings.microcompact_keep},
        "clear_at_least": {"type": "input_tokens", "value": int(effective * 0.2)},
    }
    if lasting:
        edit["exclude_tools"] = list(lasting)
    return {"edits": [edit]}
