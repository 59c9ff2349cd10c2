"""The task store as one session sees it: its connection, its single writer, who it is, and its fence.

Every write goes through the one writer of the process. Reads are short and take their own snapshot; what `write` has
returned from, they see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tasks.db import Database
from tasks.errors import Fenced
from tasks.records import Owner
from tasks.writer import Writer
from worker_agent.config import Clock

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")


@dataclass(slots=True)
class Store:
    """`fence` is the token of the lease on `session_id`; a write with an older one is refused by the database."""

    database: Database
    writer: Writer
    session_id: str
    owner: Owner
    clock: Clock
    fence: int = 0
    lost: bool = False  # another process drives the session now: nothing is written, nothing of it is touched

    async def write(self, job: Callable[[Connection], T]) -> T:
        """Run `job` in a transaction; durable on return. Raises `Fenced` once another process drives the session."""
        try:
            return await self.writer.write(job)
        except Fenced:
            self.lost = True
            raise

    def submit(self, job: Callable[[Connection], object]) -> None:
        """Have `job` run soon, with nobody waiting for it."""
        self.writer.submit(job)

    def read(self, job: Callable[[Connection], T]) -> T:
        return self.database.read(job)
