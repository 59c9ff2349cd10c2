"""The bytes of a notebook under an edit of one cell: everything that is not edited stays as it is written.

A notebook read and written anew is another file: `\\u2019` becomes a character, `1E5` becomes `100000.0`, and a review shows
changes in cells that nobody touched. So only places in the text are found here, and pieces put in: a member of the cell, a
cell in the list. New pieces are written in the style of the file (indentation, line ends, escapes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class Member(Struct, frozen=True):
    """`"key": value` in an object: `start` to `key_stop` is the key, `value` to `stop` the value."""

    key: str
    start: int
    key_stop: int
    value: int
    stop: int


class Source:
    """The text of a valid notebook; every edit gives the new text."""

    def __init__(self, text: str, newline: str) -> None:
        self.text = text
        self._newline = newline
        found = re.search(r"\n([ \t]+)\"", text)
        self._unit = found[1] if found else None
        self._is_compact = self._unit is None and re.search(r'"cells":\S', text) is not None
        self._is_ascii = text.isascii() and "\\u" in text
        self._cells = next(m.value for m in reversed(self._members(self._skip(0))) if m.key == "cells")
        self._spans = self._elements(self._cells)

    # ── edits ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def replaced(self, index: int, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
        """The cell `index`, which reads as `old`, made to read as `new`; members that are the same keep their bytes."""
        start, stop = self._spans[index]
        members = self._members(start)
        if not members:
            return self._with(start, stop, self._dump(new, self._indent(start)))
        by_key = {member.key: member for member in members}
        first, last = members[0], members[-1]
        between = self.text[first.stop : members[1].start] if len(members) > 1 else ", "
        parts = [self._member(by_key.get(key), first, key, value, old) for key, value in new.items()]
        return self._with(first.start, last.stop, between.join(parts))

    def inserted(self, after: int, cell: Mapping[str, Any]) -> str:
        """`cell` behind the cell `after`; -1 = in front of all."""
        if not self._spans:
            return self._with(self._cells, self._array_stop(), self._dump([cell], self._indent(self._cells)))
        first = self._spans[0][0]
        lead = self.text[self._cells + 1 : first]
        between = self.text[self._spans[0][1] : self._spans[1][0]] if len(self._spans) > 1 else f",{lead or ' '}"
        new = self._dump(cell, self._indent(first))
        if after < 0:
            return self._with(first, first, new + between)
        place = self._spans[after][1]
        return self._with(place, place, between + new)

    def deleted(self, index: int) -> str:
        start, stop = self._spans[index]
        if index + 1 < len(self._spans):
            stop = self._spans[index + 1][0]
        elif index:
            start = self._spans[index - 1][1]
        else:
            start, stop = self._cells + 1, self._array_stop() - 1
        return self._with(start, stop, "")

    def _member(self, member: Member | None, style: Member, key: str, value: Any, old: Mapping[str, Any]) -> str:
        if member is not None and old[key] == value:
            return self.text[member.start : member.stop]
        head = self.text[member.start : member.value] if member else json.dumps(key) + self.text[style.key_stop : style.value]
        return head + self._dump(value, self._indent(style.start))

    # ── pieces ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _with(self, start: int, stop: int, piece: str) -> str:
        return self.text[:start] + piece + self.text[stop:]

    def _dump(self, value: Any, indent: str) -> str:
        separators = (",", ":") if self._is_compact else None
        text = json.dumps(value, ensure_ascii=self._is_ascii, indent=self._unit, separators=separators)
        return text.replace("\n", self._newline + indent)

    def _indent(self, place: int) -> str:
        """The white space at the beginning of the line of `place`."""
        start = max(self.text.rfind("\n", 0, place), self.text.rfind("\r", 0, place)) + 1
        found = re.compile(r"[ \t]*").match(self.text, start)
        return found[0] if found and self._unit else ""

    # ── places ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _skip(self, place: int) -> int:
        found = _SPACE.match(self.text, place)
        return found.end() if found else place

    def _stop_of(self, place: int) -> int:
        return _DECODER.raw_decode(self.text, place)[1]

    def _members(self, place: int) -> list[Member]:
        """Those of the object that begins at `place`, in order."""
        found, at = [], self._skip(place + 1)
        while self.text[at] != "}":
            key, key_stop = _DECODER.raw_decode(self.text, at)
            value = self._skip(self._skip(key_stop) + 1)
            found.append(Member(key, at, key_stop, value, stop := self._stop_of(value)))
            at = self._skip(stop)
            if self.text[at] == ",":
                at = self._skip(at + 1)
        return found

    def _elements(self, place: int) -> list[tuple[int, int]]:
        """The places of those of the list that begins at `place`, in order."""
        found, at = [], self._skip(place + 1)
        while self.text[at] != "]":
            found.append((at, stop := self._stop_of(at)))
            at = self._skip(stop)
            if self.text[at] == ",":
                at = self._skip(at + 1)
        return found

    def _array_stop(self) -> int:
        return self._skip(self._spans[-1][1] if self._spans else self._cells + 1) + 1
