"""The block between two lines `---` at the head of a Markdown file: of agents, skills and rules."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)(?:\r?\n)?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def split(text: str) -> tuple[str | None, str]:
    """What stands in the block, None where there is none; and what follows it."""
    match = _BLOCK.match(text)
    return (match[1], text[match.end() :]) if match else (None, text)
