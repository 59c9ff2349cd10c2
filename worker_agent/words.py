"""Numbers with their nouns, for sentences that people and models read; and the names that people mean."""

from __future__ import annotations

from collections.abc import Iterable

CLOSE = 0.8  # how like a name must be to be taken for another one misspelled, of 1
SHORT = 4  # letters: a name of fewer is like too many others


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`, `1,000 files`. `noun` takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def meant(key: str, names: Iterable[str], close: float = CLOSE) -> str | None:
    """Which of `names` somebody meant who wrote `key`: the same but for case, `-` and `_`, or for a slip of the pen; None
    where it is one of them, or like none."""
    known = {_bare(name): name for name in names}
    if key in known.values():
        return None
    bare = _bare(key)
    if bare in known:
        return known[bare]
    if (slipped := next((name for one, name in known.items() if _one_slip(bare, one)), None)) is not None:
        return slipped
    from difflib import get_close_matches

    return next((known[near] for near in get_close_matches(bare, known, n=1, cutoff=close)), None)


def _one_slip(typed: str, name: str) -> bool:
    """Whether one letter is missing, too many, another one, or stands behind its neighbour. Of shorter names than `SHORT`
    that says nothing."""
    if min(len(typed), len(name)) < SHORT:
        return False
    same = next((i for i, (a, b) in enumerate(zip(typed, name, strict=False)) if a != b), min(len(typed), len(name)))
    here, there = typed[same:], name[same:]
    swapped = here[:2] == there[1::-1] and here[2:] == there[2:]
    return here != there and (swapped or here[1:] == there[1:] or here[1:] == there or here == there[1:])


def _bare(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum())
