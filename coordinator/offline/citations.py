"""Citations of the offline surveyor: `file:line` with the text that stands there, written and read back.

A citation is one line, "- `path:line` `text`". The text is what the line holds, without the white space around it; one
longer than `TEXT_CAP` is cut, and an ellipsis behind it says so. What could not be written like that without a change
is not cited at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

TEXT_CAP = 160  # characters of a quoted line
_CITED = re.compile(r"^- `([^`\n]+):(\d+)` (`+)(.*?)\3( …)?$", re.MULTILINE)


class Citation(Struct, frozen=True):
    """`path` as the tools show it, `line` from 1; `cut`: the line goes on after `text`."""

    path: str
    line: int
    text: str
    cut: bool = False

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line}"

    def holds(self, line: str) -> bool:
        """Whether this is what the line says."""
        return line.strip().startswith(self.text) if self.cut else line.strip() == self.text

    def __str__(self) -> str:
        return f"- `{self.key}` {code_span(self.text)}{' …' if self.cut else ''}"


def cite(path: str, line: int, text: str) -> Citation | None:
    """A citation, or None where the line cannot be quoted exactly in one line of Markdown."""
    text = text.strip()
    if not text or "`" in path or "\ufffd" in text or not text.replace("\t", "").isprintable():
        return None
    cut = len(text) > TEXT_CAP
    return Citation(path, line, text[:TEXT_CAP].rstrip() if cut else text, cut)


def code_span(text: str) -> str:
    """`text` as a Markdown code span, literal whatever it holds."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"


def citations(text: str) -> list[Citation]:
    """Every citation in `text`, each once, in order."""
    found = (_read(match) for match in _CITED.finditer(text))
    return list({citation.key: citation for citation in found}.values())


def keep(text: str, keys: Iterable[str]) -> str:
    """`text` without the lines that cite anything but `keys`."""
    kept = set(keys)
    lines = text.split("\n")
    return "\n".join(line for line in lines if not (match := _CITED.match(line)) or _read(match).key in kept)


def _read(match: re.Match[str]) -> Citation:
    path, line, fence, text, more = match.groups()
    return Citation(path, int(line), text[1:-1] if len(fence) > 1 else text, bool(more))
