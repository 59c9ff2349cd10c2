"""What became of a file, and the lines in which it differs from what was known of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

DIFF_LINES = 60  # shown of one file
DIFF_REACH = 120  # lines between the first and the last change; beyond, comparing would take too long
LINE_CAP = 300  # characters of a line shown


class Change(Struct, frozen=True):
    """What became of a file. `old` and `new` are its text before and now, None where unknown or no text."""

    path: Path
    what: str
    old: str | None = None
    new: str | None = None

    def diff(self) -> list[str]:
        """The changed lines with their neighbours, as a unified diff without its head; [] where that is too long."""
        if self.old is None or self.new is None:
            return []
        before, after = self.old.split("\n"), self.new.split("\n")
        head = _common(before, after)
        tail = _common(before[head:][::-1], after[head:][::-1])
        if max(len(before), len(after)) - head - tail > DIFF_REACH:
            return []
        start, end = max(0, head - 3), max(0, tail - 3)
        lines = list(_hunks(before[start : len(before) - end], after[start : len(after) - end], start))
        return lines if len(lines) <= DIFF_LINES else []


def _common(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _hunks(before: list[str], after: list[str], start: int) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(3):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{start + i1 + 1},{i2 - i1} +{start + j1 + 1},{j2 - j1} @@"
        for tag, a1, a2, b1, b2 in group:
            yield from (f"{' ' if tag == 'equal' else '-'}{_cut(line)}" for line in before[a1:a2])
            if tag != "equal":
                yield from (f"+{_cut(line)}" for line in after[b1:b2])


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CAP else f"{line[:LINE_CAP]} [cut]"
