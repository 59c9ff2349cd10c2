"""Text on its way to a person's terminal: what a model or a tool wrote is shown literally, or not at all.

`literal` takes terminal control out: escape sequences (CSI, OSC and the other strings), other control characters, and the
characters that reorder what follows them. Tabs become spaces, so that columns hold. Nothing here knows colour or rich.
"""

from __future__ import annotations

import re
import unicodedata

_SEQUENCE = re.compile(
    r"""
    (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?                            # CSI … final byte
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?   # OSC, DCS, SOS, PM, APC … terminator
    | \x1b[ -/]*[0-~]?                                           # any other escape
    """,
    re.VERBOSE,
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff\ud800-\udfff]")
_ASCII_CONTROL = bytes(code for code in (*range(0x20), 0x7F) if code not in (0x09, 0x0A))
ELLIPSIS = "…"


def literal(text: str) -> str:
    """`text` with nothing in it that a terminal would act on, but line ends."""
    return without_control(text).expandtabs(4)


def without_control(text: str) -> str:
    """The same with its tabs: for a file that a person may print."""
    if text.isascii() and len(text.encode().translate(None, _ASCII_CONTROL)) == len(text):
        return text  # nearly all that tools give, told thirty times faster than two patterns can
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def one_line(text: str, width: int | None = None) -> str:
    """`text` as one line without control, at most `width` columns wide, cut at the end."""
    line = " ".join(literal(text).split())
    return line if width is None else cut(line, width)


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_width(char) for char in text)


def _width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """`text` cut to `width` columns, with an ellipsis where something is missing."""
    if columns(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _width(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + ELLIPSIS if width > 0 else ""


def escape_json(text: str) -> str:
    """JSON text without the control characters that JSON itself lets through (DEL, C1, lone surrogates)."""
    return re.sub("[\x7f-\x9f\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)
