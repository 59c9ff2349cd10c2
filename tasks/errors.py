"""The errors of the store, as one tree. Each message is one sentence for a person; decisions are made on the class.

StoreError
├─ DatabaseError      the database cannot be opened, upgraded, read or written; `.exit_code` is 2 where the person
│                     named something unusable, else 1
│  └─ DatabaseGone    its file was deleted or replaced under us: what was stored in it is lost
├─ IntegrityError     a write that a rule of the schema refuses: a mistake in the program
├─ NotFound           no such session, task or agent (exit code 3)
├─ Ambiguous          more than one fits; `.candidates` lists them (exit code 2)
├─ Exists             a session with this id is there already
├─ NameTaken          another agent of the session has this name
├─ IllegalMove        a change of status that the table of moves does not know: a mistake in the program
├─ Owned              another process owns the session; `.owner` says which
├─ OtherVersion       nodes of another version serve this database (exit code 2)
└─ Fenced             this process does not own the session any more: stop at once, write nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHOWN = 12  # candidates in a message


class StoreError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code = 1


class DatabaseError(StoreError):
    """The database cannot be opened, upgraded, read or written."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DatabaseGone(DatabaseError):
    """The database's file was deleted or replaced while it was in use."""


class IntegrityError(StoreError):
    """A rule of the schema refuses what was to be written."""


class NotFound(StoreError):
    """No such session, task or agent."""

    exit_code = 3


class Ambiguous(StoreError):
    """More than one session, task or agent fits what was asked for."""

    exit_code = 2

    def __init__(self, ref: str, candidates: Sequence[str]) -> None:
        more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
        super().__init__(f"{ref!r} fits more than one: {', '.join(candidates[:SHOWN])}{more}")
        self.candidates = tuple(candidates)


class Exists(StoreError):
    """A session with this id is there already."""

    exit_code = 2


class NameTaken(StoreError):
    """Another agent of the session has this name."""


class IllegalMove(StoreError):
    """A change of status that the table of moves does not know."""


class Owned(StoreError):
    """Another process owns the session."""

    def __init__(self, session_id: str, owner: Any) -> None:
        super().__init__(f"session {session_id} is owned by process {owner.pid} on {owner.host}")
        self.session_id = session_id
        self.owner = owner


class OtherVersion(StoreError):
    """Nodes of another version serve this database."""

    exit_code = 2


class Fenced(StoreError):
    """This process does not own the session any more."""
