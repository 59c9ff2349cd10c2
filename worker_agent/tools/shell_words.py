"""The parts of a shell command: words with their value once quotes are removed, as far as it can be known without running
anything; redirections, assignments, and the simple command they make."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from worker_agent.structs import replace
from worker_agent.tools.rules import WILD

MAX_BRACES = 256  # words that one brace expansion may give


class Word(Struct, frozen=True):
    """`raw` as written ("" for a word that only exists at run time), `text` without quotes and with `WILD` for what only
    the shell knows. `glob`: an unquoted pattern, which may become several words. `splits`: an unquoted expansion, likewise.
    `var`: the word is exactly this variable; `values` what it may hold, where the same command says so."""

    raw: str
    text: str
    glob: bool = False
    splits: bool = False
    tilde: bool = False
    var: str | None = None
    values: tuple[Word, ...] = ()

    @property
    def static(self) -> bool:
        return WILD not in self.text

    @property
    def base(self) -> str:
        """The last part of a path: `rm` of `/bin/rm`."""
        return self.text.rpartition("/")[2]

    def __add__(self, other: Word) -> Word:
        if open_bracket(self.raw) and "]" in other.raw:
            return Word(self.raw + other.raw, self.text.partition("[")[0] + WILD, glob=True, splits=True, tilde=self.tilde)
        return Word(
            self.raw + other.raw, self.text + other.text, self.glob or other.glob, self.splits or other.splits, self.tilde
        )


def open_bracket(raw: str) -> bool:
    """Whether an unquoted piece of a word begins a pattern `[…]` that only a later piece can close."""
    return re.search(r"(?<!\\)\[[^\]/]*$", raw) is not None


def unquote_word(raw: str) -> Word:
    """A word without quote marks: backslashes removed, unquoted `* ?` and `[…]` taken as patterns. A bracket ends
    before the next slash, and where it ends is read generously: `[[:alpha:]x]` is one."""
    text, glob, index = "", False, 0
    while index < len(raw):
        char = raw[index]
        if char == "\\" and index + 1 < len(raw):
            text += "" if raw[index + 1] == "\n" else raw[index + 1]
            index += 2
            continue
        end = _bracket_end(raw, index) if char == "[" else -1
        pattern = char in "*?" or end > 0
        text += WILD if pattern else char
        glob = glob or pattern
        index = end if end > 0 else index + 1
    return Word(raw, text, glob=glob, tilde=raw.startswith("~"))


def _bracket_end(raw: str, start: int) -> int:
    """Behind the last `]` that may close the bracket at `start`; -1 if nothing closes it."""
    slash = raw.find("/", start)
    return raw.rfind("]", start + 2, slash if slash >= 0 else len(raw)) + 1 or -1


_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI_C = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL)


def decode_ansi_c(body: str) -> str:
    r"""The value of `$'body'`. What follows a NUL is dropped, as bash does."""

    def value(match: re.Match[str]) -> str:
        hexadecimal, short, long, octal, control, char = match.groups()
        if code := hexadecimal or short or long:
            return chr(min(int(code, 16), 0x10FFFF))
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if control:
            return chr(ord(control) & 0x1F)
        return _ESCAPES.get(char, char if char in "\\'\"?" else "\\" + char)

    return _ANSI_C.sub(value, body).partition("\0")[0]


_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(\.\.-?\d+)?")


def expand_braces(word: Word) -> Iterator[Word]:
    """`{rm,-rf,p}` is three words. Only where nothing is quoted or unknown; elsewhere braces may become anything."""
    if "{" not in word.raw or not re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", word.raw):
        yield word
        return
    if re.search(r"[\\'\"$`]", word.raw) or _RANGE.search(word.raw):
        if re.fullmatch(r"'[^']*'|\"[^\"]*\"|\$'.*'", word.raw, re.DOTALL):
            yield word
        else:
            yield replace(word, text=_BRACE.sub(WILD, word.text) if "{" in word.text else WILD, glob=True)
        return
    texts = [word.raw]
    while any(_splits(text) for text in texts) and len(texts) < MAX_BRACES:
        texts = [part for text in texts for part in _one_brace(text)]
    if len(texts) >= MAX_BRACES:
        yield replace(word, text=WILD, glob=True)
        return
    for text in texts:
        if text:
            yield unquote_word(text)


def _splits(text: str) -> bool:
    return any("," in match[1] for match in _BRACE.finditer(text))


def _one_brace(text: str) -> list[str]:
    for match in _BRACE.finditer(text):
        if "," in match[1]:
            return [text[: match.start()] + part + text[match.end() :] for part in match[1].split(",")]
    return [text]


class Redirect(Struct, frozen=True):
    """`target` is None where nothing but file descriptors change (`2>&1`)."""

    operator: str
    target: Word | None

    @property
    def writes(self) -> bool:
        return self.target is not None and self.operator.startswith((">", "&>", "<>"))

    @property
    def reads(self) -> bool:
        return self.target is not None and self.operator == "<"


class Assignment(Struct, frozen=True):
    name: str
    value: Word


class SimpleCommand(Struct, frozen=True):
    """One command with its words after brace expansion. `documents` are the texts on its standard input, `piped` says
    that something else stands there; `repeats` that it stands in a loop or function; `opaque` why nobody can say what it
    runs."""

    words: tuple[Word, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    documents: tuple[str, ...] = ()
    piped: bool = False
    repeats: bool = False
    carried: bool = False
    opaque: str | None = None
    defined: bool = False  # a function that the same text defines: its body is judged by itself

    @property
    def raw(self) -> str:
        """As written, without redirections and assignments, words separated by one space."""
        return " ".join(word.raw for word in self.words if word.raw)

    @property
    def name(self) -> str:
        return self.words[0].text if self.words else ""

    @property
    def base_name(self) -> str:
        return self.name.rpartition("/")[2]
