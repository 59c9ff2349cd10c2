"""Known secrets out of every text before anyone sees or stores it, in plain and in the forms in which they travel.

1. One look for each value and each of its forms: JSON-escaped, URL-encoded, hexadecimal, and base64 at each of its three
   alignments, so that a secret inside a longer encoded text is found too; of a value of several lines each long line. A
   text that holds none comes back as it is, the same object. The cost grows with the text, never with its square.
2. What comes in pieces goes through a `Stream`: it holds back only what may be the beginning of a secret.
3. What counts as a secret is decided in `config.secret_values`, not here.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

MARK = "[redacted]"
MIN_LENGTH = 8  # characters; a shorter value would tear ordinary text apart
MIN_ENCODED = 10  # characters of a base64 or hexadecimal form that are certain
MIN_LINE = 16  # characters of a line that stands for a value of several lines

Redact = Callable[[str], str]


class Redactor:
    """`Redactor(values)(text)` → the text without them. Safe to share; two of the same values are equal in effect."""

    __slots__ = ("_beginnings", "_forms", "_longest", "_shortest")

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if len(value) >= MIN_LENGTH for form in _forms(value)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._longest, self._shortest = (len(self._forms[0]), len(self._forms[-1])) if forms else (0, 0)
        self._beginnings: dict[str, list[str]] = {}  # by their first two characters, and by the first alone
        for form in self._forms:
            self._beginnings.setdefault(form[:2], []).append(form)
            self._beginnings.setdefault(form[:1], []).append(form)

    def __call__(self, text: str) -> str:
        # Nearly no text holds a secret, and looking for each form is ten times faster than one expression for all.
        found = self._found(text)
        return re.sub(_any_of(found), MARK, text) if found else text

    def __bool__(self) -> bool:
        """Whether there is anything to redact."""
        return bool(self._forms)

    def stream(self) -> Stream:
        """For one text that comes in pieces."""
        return Stream(self)

    def settled(self, text: str) -> int:
        """How much of `text` cannot change any more, whatever follows it: up to where a form may begin that goes on."""
        end = self._goes_on(text)
        if end < len(text) and (found := self._found(text)):
            spans = (match.span() for match in re.finditer(_any_of(found), text))
            return next((start for start, stop in spans if start < end < stop), end)
        return end

    def _found(self, text: str) -> list[str]:
        return [form for form in self._forms if form in text] if len(text) >= self._shortest else []

    def _goes_on(self, text: str) -> int:
        """The first place from which on `text` is the beginning of a longer form; its length if there is none."""
        beginnings, size = self._beginnings, len(text)
        for place in range(max(0, size - self._longest + 1), size):
            for form in beginnings.get(text[place : place + 2], ()):
                if len(form) > size - place and form.startswith(text[place : place + MIN_LENGTH]):
                    if form.startswith(text[place:]):
                        return place
        return size


class Stream:
    """One text in pieces: `feed` each, then take the `rest`. What comes out joins to the text without secrets."""

    __slots__ = ("_held", "_redact")

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown by now."""
        text = self._held + piece
        end = self._redact.settled(text)
        self._held = text[end:]
        return self._redact(text[:end])

    def rest(self) -> str:
        """What was held back to the end."""
        held, self._held = self._held, ""
        return self._redact(held)


def _any_of(forms: list[str]) -> str:
    return "|".join(map(re.escape, forms))


def in_json(value: Any, redact: Redact) -> Any:
    """A JSON value with every text in it redacted, keys included; the same object where nothing had to be."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        changed = {redact(key): in_json(inner, redact) for key, inner in value.items()}
        return value if changed == value else changed
    if isinstance(value, (list, tuple)):
        items = [in_json(inner, redact) for inner in value]
        return value if items == list(value) else items
    return value


def _forms(value: str) -> Iterator[str]:
    yield value
    data = value.encode("utf-8", "surrogatepass")
    escaped = json.dumps(value)[1:-1]
    yield from (escaped, json.dumps(value, ensure_ascii=False)[1:-1], escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1])
    for encoded in (quote(data, safe=""), quote_plus(data), quote(data)):
        yield from (encoded, re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded))
    yield from (form for form in (*_base64(data), data.hex(), data.hex().upper()) if len(form) >= MIN_ENCODED)
    stripped = value.strip()
    if stripped != value and len(stripped) >= MIN_LENGTH:
        yield from _forms(stripped)
    if "\n" in stripped:
        yield from (line for line in map(str.strip, stripped.split("\n")) if len(line) >= MIN_LINE and line[0] != "-")


def _base64(data: bytes) -> Iterator[str]:
    """The characters that depend on these bytes alone, at each of the three places where they may begin."""
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * offset + data).decode().rstrip("=")
            first = (offset * 8 + 5) // 6
            whole = (offset + len(data)) * 8 // 6
            yield text[first:whole]
