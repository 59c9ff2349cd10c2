"""The readable transcript of a task: what its `output_file` names, for tools and people. Whoever prints it prints text:
nothing in it controls a terminal.

It is a convenience beside the stored transcript, never read back by this program: a full disk costs the file, not the
task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from coordinator.views.terminal_text import without_control
from worker_agent.messages import Block, Message


class TranscriptFile:
    """Appends messages as Markdown. `redact` takes known secrets out."""

    def __init__(self, path: Path, redact: Callable[[str], str] = lambda text: text) -> None:
        self.path = path
        self._redact = redact

    def add(self, messages: Sequence[Message]) -> None:
        text = "".join(map(as_markdown, messages))  # without control: what was hidden by it is a secret, too
        data = memoryview(self._redact(text).encode())
        try:  # by plain calls: a file object costs more than the writing
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                while data:
                    data = data[os.write(file, data) :]
            finally:
                os.close(file)
        except OSError:
            return


def as_markdown(message: Message) -> str:
    """One message under a heading that says who spoke; thinking is left out. Nothing in it controls a terminal."""
    parts = [part for part in map(_block, message.content) if part]
    return f"## {message.role} ({message.kind})\n\n" + "\n\n".join(parts) + "\n\n" if parts else ""


def _block(block: Block) -> str:
    match block.get("type"):
        case "text":
            return without_control(str(block["text"]))
        case "tool_use":
            return f"→ {without_control(str(block['name']))} {without_control(orjson.dumps(block['input']).decode())}"
        case "tool_result":
            content = block.get("content", "")
            text = without_control(content) if isinstance(content, str) else "\n".join(map(_block, content))
            return f"← {'error: ' if block.get('is_error') else ''}{text}"
        case "image" | "document" as kind:
            return f"[{kind}]"
        case _:
            return ""
