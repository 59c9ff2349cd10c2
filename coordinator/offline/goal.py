"""The words of a goal: which are searched, in which form, and which are left out and why.

1. No word is dropped unsaid: it is searched, or it stands in one of two lists of a report.
2. A word is found at the beginning of a word or of a part of a name: `retry` in `max_retry` and `RetryPolicy`, `count`
   not in `account`. Ordinary words are searched without their ending, names in code form as they are written.
3. One pattern serves ripgrep and `re`, so that what was found by the one is counted by the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

MOST = 16  # words searched: each costs three searches
SHORT = 3  # letters; a word of so few is found only as a whole part of a name
STEM = 4  # letters that a word keeps at least when it loses its ending
STOP_WORDS = frozenset(
    "a about after all also an and any are around as at be been before being between both but by can could describe did do "
    "does done each every explain find for from give had has have he her his how i if in into is it its just know let list "
    "look make many me more most much must my need no not of on once one only or other our out over own per please report "
    "repo repository same say see she should show so some such survey take tell than that the their them then there "
    "these they this those through to too under until up us use used uses using very want was way we were what when where "
    "whether which while who whose why will with within without work works would yes you your "
    "aber alle als am auch auf aus bei bin bis bitte da das dass dem den der des die dies diese dieser dieses doch du ein "
    "eine einem einen einer eines er es für gibt hat ich ihr im ist kann man mit nach nicht nur oder sich sie sind so über "
    "um und uns von vor was welche welcher welches wenn wer werden wie wir wird wo zeige zu zum zur".split()
)


class Word(Struct, frozen=True, dict=True):
    """A word of the goal, as it is searched."""

    text: str

    @cached_property
    def stem(self) -> str:
        """What is looked for: the word, or what is left of an ordinary one without its ending."""
        ordinary = self.text.isascii() and self.text.isalpha() and (self.text.islower() or self.text.istitle())
        return _without_ending(self.text.lower()) if ordinary else self.text

    @cached_property
    def pattern(self) -> str:
        """A regular expression for ripgrep and for `re`."""
        stem, end = _escaped(self.stem), ""
        if len(self.stem) <= SHORT and self.stem[-1].isalnum():
            end = r"(?:\b|[_\d])"
        if not (self.stem[0].isalnum() or self.stem[0] == "_"):
            return f"(?i:{stem}){end}"
        beginnings = [rf"(?:\b|_|\d)(?i:{stem}){end}"]
        if self.stem.isascii() and self.stem.isalpha():  # parts of a name in camel case
            hump = r"(?:\b|[_\dA-Z])" if end else ""
            beginnings += [rf"[a-zA-Z]{self.stem.capitalize()}{hump}", rf"[a-z]{self.stem.upper()}{end}"]
        return f"(?:{'|'.join(beginnings)})"

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def is_in(self, text: str) -> bool:
        return self._compiled.search(text) is not None

    @property
    def glob(self) -> str:
        """The stem in a glob, in any case."""
        both = ((c.lower(), c.upper()) for c in self.stem)
        return "".join(f"[{low}{up}]" if low != up and len(low) == len(up) == 1 else low for low, up in both)

    def __str__(self) -> str:
        return self.text if self.stem.lower() == self.text.lower() else f"{self.text} (as {self.stem}…)"


class Words(Struct, frozen=True):
    """All words of a goal, each once. `common`: such as nearly every question holds; `beyond`: more than `MOST`."""

    searched: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    @classmethod
    def of(cls, goal: str) -> Words:
        found = (word.rstrip("-.") for word in re.findall(r"\w[\w.+#-]*", goal))
        words = list({word.lower(): word for word in reversed([w for w in found if w.isprintable()])}.values())[::-1]
        common = tuple(word for word in words if _is_common(word))
        rest = [word for word in words if word not in common]
        # Names in code form say most; else the first words of a goal do.
        chosen = set(sorted(rest, key=_is_plain)[:MOST])
        return cls(tuple(w for w in rest if w in chosen), common, tuple(w for w in rest if w not in chosen))

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(Word(text) for text in self.searched)


def any_of(words: Sequence[Word]) -> str:
    """A pattern for lines that hold one of `words`."""
    return "|".join(word.pattern for word in words)


def two_of(words: Sequence[Word]) -> str:
    """A pattern for lines that hold two of `words`, in any order."""
    return "|".join(f"{a.pattern}.*{b.pattern}" for a in words for b in words if a != b)


def _is_common(word: str) -> bool:
    return word.lower() in STOP_WORDS or (len(word) == 1 and not word.isdigit() and word.isascii())


def _is_plain(word: str) -> bool:
    return (word.islower() or word.istitle()) and not re.search(r"[_.\d]", word)


def _without_ending(word: str) -> str:
    """`retries` and `retry` → `retr`, `parses` and `parsing` → `pars`: enough for the beginning of a word."""
    if re.search(r"[^s]ses$|[xz]es$|[cs]hes$|sses$", word) and len(word) >= STEM + 2:
        word = word[:-2]
    elif re.search(r"[^siu]s$", word) and len(word) > STEM:
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending):
            rest = word.removesuffix(ending)
            rest = rest[:-1] if re.search(r"([bdgmnprt])\1$", rest) else rest
            return rest if len(rest) >= STEM - (rest + rest[-1] + ending == word) else word
    for ending in ("ie", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= STEM:
            return word.removesuffix(ending)
    return word


def _escaped(word: str) -> str:
    return re.sub(r"([^\w])", r"\\\1", word)
