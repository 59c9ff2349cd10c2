"""Ids: a prefix letter and 8 characters of `0-9a-z`, each drawn uniformly from a cryptographic source (36⁸ ≈ 2.8·10¹²).

A collision is drawn again by whoever inserts the row. A type stands here only when the program can run it.
"""

from __future__ import annotations

from enum import StrEnum

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
LENGTH = 8
SESSION_PREFIX = "s"
APPROVAL_PREFIX = "q"


class TaskType(StrEnum):
    LOCAL_AGENT = "local_agent"  # one run of an agent in the owner's process
    LOCAL_BASH = "local_bash"  # a shell command in the background


PREFIXES: dict[TaskType, str] = {TaskType.LOCAL_AGENT: "a", TaskType.LOCAL_BASH: "b"}


def new_id(type: TaskType) -> str:
    return PREFIXES[type] + _random()


def new_session_id() -> str:
    return SESSION_PREFIX + _random()


def new_approval_id() -> str:
    return APPROVAL_PREFIX + _random()


def _random() -> str:
    import secrets

    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
