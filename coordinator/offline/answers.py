"""What the tools answered, read back: listings of Glob, lines and counts of Grep, numbered lines of Read.

Each answer knows how much it left out, so that a report can say how many of how many it shows.
"""

from __future__ import annotations

import re

from msgspec import Struct

from coordinator.offline.citations import Citation, cite


class Listing(Struct, frozen=True):
    """An answer of Glob. `total` counts the files that were left out too; `open_end`: there are more than `total`."""

    files: tuple[str, ...]
    total: int
    open_end: bool = False

    @property
    def whole(self) -> bool:
        return self.total == len(self.files) and not self.open_end

    @classmethod
    def of(cls, result: str | None) -> Listing:
        lines = (result or "No file").split("\n")
        notes = [line for line in lines if line.startswith("[") and line.endswith("]")]
        if lines[0].startswith("No file") or any("git ignores" in note for note in notes):
            return cls((), 0)
        files = tuple(line for line in lines if line and line not in notes)
        more = next((_number(m[1]) for note in notes if (m := re.match(r"\[([\d,]+) more", note))), 0)
        return cls(files, len(files) + more, any("names were looked at" in note for note in notes))

    def count(self) -> str:
        return f"{'More than ' if self.open_end else ''}{self.total:,}"


class Hit(Struct, frozen=True):
    path: str
    line: int
    text: str

    def cited(self) -> Citation | None:
        return cite(self.path, self.line, self.text)


class Hits(Struct, frozen=True):
    """An answer of Grep in content mode. `open_end`: there are more than `total`."""

    hits: tuple[Hit, ...]
    total: int
    open_end: bool = False

    @property
    def whole(self) -> bool:
        return self.total == len(self.hits) and not self.open_end

    @classmethod
    def of(cls, result: str | None) -> Hits:
        lines = (result or "").split("\n")
        matches = (re.match(r"(.+?):(\d+):(.*)", line) for line in lines)
        hits = tuple(Hit(m[1], int(m[2]), m[3]) for m in matches if m)
        note = re.match(r"\[[\d,]+ of (at least )?([\d,]+) lines shown", lines[-1])
        total = _number(note[2]) if note else len(hits)
        return cls(hits, total, bool(note and note[1]))

    def count(self) -> str:
        return f"{'at least ' if self.open_end else ''}{self.total:,}"

    def citations(self) -> list[Citation]:
        return [c for hit in self.hits if (c := hit.cited())]


def counts(result: str | None) -> list[tuple[str, int]]:
    """An answer of Grep in count mode, the highest first."""
    matches = (re.fullmatch(r"(.+):(\d+)", line) for line in (result or "").split("\n"))
    return sorted(((m[1], int(m[2])) for m in matches if m), key=lambda pair: (-pair[1], pair[0]))


def files_counted(result: str | None) -> str:
    """How many files an answer of Grep in count mode is about, the ones it left out included."""
    note = re.search(r"^\[[\d,]+ of (at least )?([\d,]+) files shown", result or "", re.MULTILINE)
    return f"{note[1] or ''}{note[2]}" if note else str(len(counts(result)))


def lines_read(result: str | None) -> list[str] | None:
    """The lines of a file that one answer of Read showed whole, from its first to its last; None for a part."""
    numbered = [m for line in (result or "").split("\n") if (m := re.fullmatch(r"\s*(\d+)\t(.*)", line))]
    if not numbered or re.search(r"\n\n\[Lines [\d–]+", result or ""):
        return None
    whole = all(int(match[1]) == number for number, match in enumerate(numbered, 1))
    return [match[2] for match in numbered] if whole else None


def numbered(path: str, result: str | None) -> list[Citation]:
    """The lines of an answer of Read, as far as they can be cited."""
    lines = (re.fullmatch(r"\s*(\d+)\t(.*)", line) for line in (result or "").split("\n"))
    return [c for m in lines if m and (c := cite(path, int(m[1]), m[2]))]


def _number(text: str) -> int:
    return int(text.replace(",", ""))
