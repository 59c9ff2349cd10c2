"""Slash commands: handled before the model sees anything; and the token budget in a prompt (`+500k`)."""

from __future__ import annotations

import re

from msgspec import Struct

NAMES = frozenset({"compact", "cost", "help"})
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
_BUDGET = re.compile(r"(?:^|\s)\+(\d+(?:\.\d+)?)([km])(?=\s|$)", re.IGNORECASE)


class Command(Struct, frozen=True):
    name: str
    arguments: str = ""


def parse_command(prompt: str) -> Command | None:
    """The command a prompt is; None when it is none of ours, so that a path at its beginning stays a prompt."""
    match = _COMMAND.fullmatch(prompt.strip())
    if match is None or match[1] not in NAMES:
        return None
    return Command(match[1], (match[2] or "").strip())


def token_budget(prompt: str) -> int | None:
    """The tokens a prompt gives its turn: `+500k` or `+1.5m`, standing alone."""
    match = _BUDGET.search(prompt)
    if match is None:
        return None
    return round(float(match[1]) * {"k": 1_000, "m": 1_000_000}[match[2].lower()])
