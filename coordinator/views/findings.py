"""What `coordinator doctor` found: one value a line."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`state` is ok, note (works, but know it) or problem (exit code 1)."""

    name: str
    state: str
    text: str
