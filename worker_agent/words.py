"""Numbers with their nouns, for sentences that people and models read; and the names that people mean."""

from __future__ import annotations

from collections.abc import Iterable

CLOSE = 0.8  # how like a name must be to be taken for another one misspelled, of 1


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
    from difflib import get_close_matches

    return next((known[near] for near in get_close_matches(bare, known, n=1, cutoff=close)), None)


def _bare(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum())
