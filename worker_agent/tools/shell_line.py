"""A command line in the small grammar of which nothing is left to guess: what may run unasked is read with this, and only this.

Rules:

1. The grammar is positive. Words of plain characters, quotes, globs, one level of `{a,b}`; `|`, `&&`, `||`, `;`, newline;
   redirections between file descriptors, from a file, and to `/dev/null`. `read_line` answers None for everything else.
2. No expansion but `$?`, which is a number. No assignment, here-document, group, loop, background, substitution.
3. A glob keeps its pieces, so that `Glob` can be expanded by us, with more names than bash would take, never with fewer.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

from worker_agent.tools.shell_tree import is_strange

MAX_NAMES = 2_000  # that one glob may give

_PLAIN = re.compile(r"@\{[A-Za-z0-9-]*\}|[A-Za-z0-9_./:@%+,=^!#\]-]|(?<=[A-Za-z0-9_^@/.-])~|\[(?=[ \t])|[^\x00-\x7f]")
_BRACES = re.compile(r"\{([A-Za-z0-9_./*-]*(?:,[A-Za-z0-9_./*-]*)+)\}")
_REDIRECT = re.compile(r"(?:[012]?>&[12]|(?:[12]|&)?>{1,2}[ \t]*/dev/null|0?<[ \t]*/dev/null)(?=[ \t\n;|&]|$)")
_READ = re.compile(r"0?<(?![<&(>])[ \t]*")
_OPERATOR = re.compile(r"&&|\|\||\|&|[|;\n]")
_IN_DOUBLE = re.compile(r"\\[$`\"\\]|\\(?![$`\"\\\n])|\$(?=[\")| ])|[^\\$`\"]")
_BRACKET = re.compile(r"\[[!^]?\]?[^\]/\[\s'\"\\$`]*\]")


class Piece(Struct, frozen=True):
    """A stretch of a word; `glob` where it is a pattern."""

    text: str
    glob: bool = False


class Plain(Struct, frozen=True):
    """One word. `computed`: a number only the shell knows stands in it. `quoted`: it may be empty or begin anyhow."""

    pieces: tuple[Piece, ...]
    computed: bool = False
    quoted: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def is_glob(self) -> bool:
        return any(piece.glob for piece in self.pieces)

    def names(self, base: Path) -> tuple[str, ...] | None:
        """What bash may put in place of a glob that is expanded in `base`: at least every name that matches. None where
        that is not certain, or too much."""
        pattern = "".join(_generous(piece) for piece in self.pieces)
        if any(re.match(r"\.[*?\[]", part) for part in self.text.split("/")) or "[." in self.text or "[=" in self.text:
            return None  # `.*` may be `..`
        found = tuple(islice(glob.iglob(pattern, root_dir=base), MAX_NAMES + 1))
        return found if len(found) <= MAX_NAMES else None


def _generous(piece: Piece) -> str:
    if not piece.glob:
        return glob.escape(piece.text)
    return "?" if piece.text.startswith("[") else piece.text


class Part(Struct, frozen=True):
    """One simple command. `reads` are files on its standard input."""

    words: tuple[Plain, ...]
    reads: tuple[Plain, ...] = ()


def read_line(command: str) -> tuple[Part, ...] | None:
    """The parts of a line in order; None for a line that is not in the grammar."""
    if any(is_strange(char) for char in command):
        return None
    try:
        return tuple(_Scanner(command).parts())
    except _NotPlain:
        return None


def plain_word(raw: str) -> tuple[Plain, ...] | None:
    """One word as written, braces expanded."""
    parts = read_line(": " + raw)
    return parts[0].words[1:] if parts is not None and len(parts) == 1 and not parts[0].reads else None


class _NotPlain(Exception):
    pass


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def parts(self) -> Iterator[Part]:
        words: list[Plain] = []
        reads: list[Plain] = []
        joined = False  # an operator before asks for a command
        while True:
            self._skip(r"[ \t]+|\\\n")
            if self._skip(r"#[^\n]*"):
                continue
            if self.at >= len(self.text):
                break
            if operator := self._take(_OPERATOR):
                if not words and (operator not in ("\n",) or reads):
                    raise _NotPlain
                if words:
                    yield Part(tuple(words), tuple(reads))
                    joined = operator not in (";", "\n")
                words, reads = [], []
            elif self._take(_REDIRECT):
                continue
            elif self._take(_READ):
                reads += self._word()
            else:
                words += self._word()
                if words[-1].text.isdigit() and self.text[self.at : self.at + 1] in ("<", ">"):
                    raise _NotPlain  # a descriptor
        if words:
            yield Part(tuple(words), tuple(reads))
        elif reads or joined:
            raise _NotPlain

    def _skip(self, pattern: str) -> bool:
        return self._take(re.compile(pattern)) is not None

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[0]

    def _word(self) -> list[Plain]:
        pieces: list[Piece] = []
        computed = quoted = False
        alternatives: list[str] | None = None
        before: list[Piece] = []
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;|&<>":
            char = self.text[self.at]
            if char == "'":
                pieces.append(Piece(self._until_quote()))
                quoted = True
            elif char == '"':
                inside, number = self._double()
                pieces.append(Piece(inside))
                computed, quoted = computed or number, True
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] not in ("", "\n"):
                pieces.append(Piece(self.text[self.at + 1]))
                self.at += 2
                quoted = True
            elif self.text.startswith("$?", self.at):
                pieces.append(Piece("0"))
                computed = True
                self.at += 2
            elif alternatives is None and (braces := self._take(_BRACES)):
                alternatives, before, pieces = braces[1:-1].split(","), pieces, []
            elif char in "*?":
                pieces.append(Piece(char, glob=True))
                self.at += 1
            elif bracket := self._take(_BRACKET):
                pieces.append(Piece(bracket, glob=True))
            elif self.text.startswith("{}", self.at):
                pieces.append(Piece("{}"))
                self.at += 2
            else:
                plain = self._take(_PLAIN)
                if plain is None:
                    raise _NotPlain
                pieces.append(Piece(plain))
        if not pieces and alternatives is None:
            raise _NotPlain
        if alternatives is None:
            return [Plain(tuple(pieces), computed, quoted)]
        if quoted or computed:
            raise _NotPlain
        return [Plain((*before, *map(_piece, alternative), *pieces)) for alternative in alternatives]

    def _until_quote(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise _NotPlain
        inside, self.at = self.text[self.at + 1 : end], end + 1
        return inside

    def _double(self) -> tuple[str, bool]:
        self.at += 1
        inside, number = "", False
        while not self.text.startswith('"', self.at):
            if self.text.startswith("$?", self.at):
                inside, number = inside + "0", True
                self.at += 2
                continue
            part = self._take(_IN_DOUBLE)
            if part is None:
                raise _NotPlain
            inside += part[1:] if len(part) == 2 and part[0] == "\\" else part
        self.at += 1
        return inside, number


def _piece(char: str) -> Piece:
    return Piece(char, glob=char == "*")
