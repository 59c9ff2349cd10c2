"""Numbers with their nouns, for sentences that people and models read."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 file`, `2 files`, `1,000 files`. `noun` takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
