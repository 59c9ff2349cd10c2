"""From the bytes of a body to its JSON, strictly, and to the exact bytes of each message.

Duplicate keys, lone surrogates, NaN and invalid UTF-8 are refused, as the real API refuses them. Parsing is done with
orjson; that it saw the whole body is proved by writing it out again: if the compact form equals the bytes received, no
key can have been lost. Only bodies that differ (white space, escapes) pay for the slow, exact parser.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from tests.support.fake_api.errors import Refusal

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]')
_MARK = rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)'
_MARKS = re.compile(rb",\s*" + _MARK + rb"|" + _MARK + rb"\s*,?")


@dataclass(frozen=True, slots=True)
class Parsed:
    """`message_bytes` are the messages one by one in compact form; `messages_raw` the array exactly as received."""

    body: dict[str, Any]
    message_bytes: list[bytes]
    messages_raw: bytes


def parse(raw: bytes) -> Parsed:
    """Parse a request body, or raise the `Refusal` the API would send."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(f"The request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal("The request body is not valid JSON: Input should be an object")
    messages = body.get("messages")
    if not isinstance(messages, list):
        return Parsed(_exact(raw), [], b"")
    pieces = [orjson.dumps(m) for m in messages]
    array = b"[" + b",".join(pieces) + b"]"
    if _assembled(body, array) == raw:
        return Parsed(body, pieces, array)
    body = _exact(raw)
    pieces = [orjson.dumps(m) for m in messages]
    return Parsed(body, pieces, _slice(raw, b'"messages"'))


def without_marks(raw: bytes) -> bytes:
    """`raw` JSON without its cache marks. Quotes inside strings are escaped, so a mark cannot be mistaken."""
    return _MARKS.sub(b"", raw) if b'"cache_control"' in raw else raw


def _assembled(body: dict[str, Any], array: bytes) -> bytes:
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    target = before
    for key, value in body.items():
        if key == "messages":
            target = after
        else:
            target[key] = value
    head = orjson.dumps(before)[:-1] + (b"," if before else b"")
    tail = (b"," if after else b"") + orjson.dumps(after)[1:]
    return head + b'"messages":' + array + tail


def _exact(raw: bytes) -> dict[str, Any]:
    try:
        return json.loads(raw, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise Refusal(f"The request body is not valid JSON: {error}") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"duplicate key: {twice!r}")
    return value


def _slice(raw: bytes, key: bytes) -> bytes:
    """The exact bytes of the array under top-level `key`."""
    depth, start, last = 0, -1, b""
    for token in _TOKEN.finditer(raw):
        byte = token[0]
        if byte in b"[{":
            if depth == 1 and last == key and byte == b"[":
                start = token.start()
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if depth == 1 and start >= 0:
                return raw[start : token.end()]
        elif byte not in b":,":
            last = byte if depth == 1 else b""
    return b""
