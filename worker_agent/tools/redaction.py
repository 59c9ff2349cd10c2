"""Known secrets out of every text before anyone sees or stores it, in plain and in the forms in which they travel.

One compiled expression for all values and their forms: JSON-escaped, URL-encoded, hexadecimal, and base64 at each of
its three alignments, so that a secret inside a longer encoded text is found too. A text that holds none comes back as it
is, the same object.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MARK = "[redacted]"
MIN_LENGTH = 8  # characters; a shorter value would tear ordinary text apart
MIN_ENCODED = 10  # characters of a base64 or hexadecimal form that are certain


class Redactor:
    """`Redactor(values)(text)` → the text without them. Safe to share; two of the same values are equal in effect."""

    __slots__ = ("_forms", "_pattern")

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if len(value) >= MIN_LENGTH for form in _forms(value)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if forms else None

    def __call__(self, text: str) -> str:
        # Nearly no text holds a secret, and looking for each form is ten times faster than the expression.
        for form in self._forms:
            if form in text:
                assert self._pattern is not None
                return self._pattern.sub(MARK, text)
        return text

    def __bool__(self) -> bool:
        """Whether there is anything to redact."""
        return self._pattern is not None


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


def _base64(data: bytes) -> Iterator[str]:
    """The characters that depend on these bytes alone, at each of the three places where they may begin."""
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * offset + data).decode().rstrip("=")
            first = (offset * 8 + 5) // 6
            whole = (offset + len(data)) * 8 // 6
            yield text[first:whole]
