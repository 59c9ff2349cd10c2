"""What `coordinator doctor` found: one value a line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`state` is ok, note (works, but know it) or problem (exit code 1)."""

    name: str
    state: str
    text: str
