"""Text and JSON on their way into the database.

Whatever a model or a tool wrote must be storable: a task's end may never fail over one character of its result. Lone
surrogates (no UTF-8) and NUL (refused by PostgreSQL, a terminator to C readers of SQLite) become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def clean(text: str) -> str:
    """`text` as a plain `str` without lone surrogates and NUL."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)


def dump_json(value: Any) -> str:
    """Compact JSON of `value`, always: what JSON does not know is stored as its text."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return orjson.dumps(_plain(value)).decode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return clean(str(value))
