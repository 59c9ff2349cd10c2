"""A result that is too large goes whole to a file of the session; the message keeps a preview that says so.

What is spilled twice gets the same bytes twice, so that the prompt cache holds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from worker_agent.messages import Block, text_block


def spill_path(directory: Path, tool_use_id: str) -> Path:
    """Where the result of a call lies. An id that is no plain word (a model may write anything) becomes its hash."""
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,100}", tool_use_id)
    name = tool_use_id if plain else hashlib.sha256(tool_use_id.encode("utf-8", "replace")).hexdigest()[:32]
    return directory / f"{name}.txt"


def spill_text(text: str, tool_use_id: str, directory: Path, preview: int) -> str:
    """Write `text` whole to a file of the session and give what stands for it. Raises `OSError`."""
    path = spill_path(directory, tool_use_id)
    _write_once(path, text)
    return shortened(text, path, preview)


def spill(
    content: str | Sequence[Block], tool_use_id: str, directory: Path, cap: int, preview: int
) -> tuple[str | Sequence[Block], Path | None]:
    """`content` itself if its text has at most `cap` characters, else the preview in its place and the file's path.
    Images and documents stay. Raises `OSError` if the file cannot be written."""
    text = content if isinstance(content, str) else "\n".join(b["text"] for b in content if b.get("type") == "text")
    if len(text) <= cap:
        return content, None
    path = spill_path(directory, tool_use_id)
    short = spill_text(text, tool_use_id, directory, preview)
    if isinstance(content, str):
        return short, path
    return [text_block(short), *(b for b in content if b.get("type") != "text")], path


def shortened(text: str, path: Path, preview: int) -> str:
    """What stands in the message for a spilled `text`."""
    start = text[:preview]
    cut = start.rfind("\n")
    start = start[:cut] if cut > preview // 2 else start
    return (
        f"[The result has {len(text):,} characters; these are the first {len(start):,}. All of it is in {path}: "
        f"read parts of it with Read (offset, limit) or search it with Grep.]\n{start}"
    )


def _write_once(path: Path, text: str) -> None:
    data = text.encode("utf-8", "replace")
    if path.is_file() and path.stat().st_size == len(data):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)
