"""What an agent has read, as it is now: put behind a compaction, where what was read before is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from worker_agent import disk
from worker_agent import messages as m
from worker_agent.api.client import ModelInfo
from worker_agent.context import rebuild
from worker_agent.context.tokens import effective_window
from worker_agent.loop.agent import Agent
from worker_agent.messages import Message
from worker_agent.tools import files
from worker_agent.tools.builtin.read import image_type


async def files_afresh(agent: Agent, info: ModelInfo) -> list[Message]:
    """The files last read, afresh, newest first: at most 5, each and all within their caps and a fifth of the
    window."""
    context = agent.settings.context
    latest = sorted(agent.tool_context.read_files.items(), key=lambda item: item[1].order, reverse=True)
    tokens = min(context.rebuild_files_tokens, effective_window(info, context) // 5)
    room = int(tokens * info.chars_per_token)
    each = min(int(context.rebuild_file_tokens * info.chars_per_token), room // max(1, context.rebuild_files))
    found: list[Message] = []
    for path, _ in latest[: context.rebuild_files]:
        if text := await asyncio.to_thread(_beginning, path, each):
            shown = agent.tool_context.redact(m.clean(text))
            found.append(rebuild.file_message(str(path), shown, agent.clock.now()))
    return found


def _beginning(path: Path, characters: int) -> str:
    """The beginning of a regular file as text, of one that no reader reads as text (a picture, a PDF, a notebook) its
    name and kind; "" for anything else and for what cannot be read. Blocks."""
    try:
        data = disk.read_beginning(path, limit=4 * characters)
    except OSError:
        return ""
    if data.startswith(b"%PDF-"):
        kind: str | None = "a PDF"
    else:
        kind = image_type(data) or ("a notebook" if path.suffix == ".ipynb" else None)
    text = None if kind else files.decode(data)
    if text is None:
        return f"[{path.name} is {kind or 'binary data'}. It was read before; Read shows it again.]"
    return files.printable(text.text)[:characters]
