"""The task store as one session sees it: its connection, its single writer, who it is, and its fence.

Every write goes through the one writer of the process. Reads are short and take their own snapshot; what `write` has
returned from, they see.

The first failure of the database is the last: this process stores nothing after it (`failure`), so that nothing later
stands there without what came before it. What is stored stays as it is, for `resume`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from tasks.db import Database
from tasks.errors import DatabaseError, Fenced
from tasks.records import Owner
from tasks.writer import Writer
from worker_agent.config import Clock

if TYPE_CHECKING:
    from tasks.connection import Connection

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT)


class Store(Struct):
    """`fence` is the token of the lease on `session_id`; a write with an older one is refused by the database."""

    database: Database
    writer: Writer
    session_id: str
    owner: Owner
    clock: Clock
    fence: int = 0
    lost: bool = False  # another process drives the session now: nothing is written, nothing of it is touched
    failure: DatabaseError | None = None
    failed: Callable[[], object] = lambda: None  # called once, from any thread

    async def write(self, job: Callable[[Connection], T]) -> T:
        """Run `job` in a transaction; durable on return. Raises `Fenced` once another process drives the session,
        `DatabaseError` from the first failure on."""
        if self.failure is not None:
            raise DatabaseError(str(self.failure))
        try:
            return await self.writer.write(job)
        except Fenced:
            self.lose()
            raise
        except DatabaseError as error:
            self.fail(error)
            raise

    def submit(self, job: Callable[[Connection], object]) -> None:
        """Have `job` run soon, with nobody waiting for it."""
        if self.failure is None:
            self.writer.submit(job).add_done_callback(self._settled)

    def read(self, job: Callable[[Connection], T]) -> T:
        """Raises `DatabaseError`."""
        try:
            return self.database.read(job)
        except DatabaseError as error:
            self.fail(error)
            raise

    def lose(self) -> None:
        """Another process drives the session from now on."""
        self.lost = True

    def fail(self, error: DatabaseError) -> None:
        """Store nothing more, and say so."""
        if self.failure is None:
            self.failure = error
            self.failed()

    def fail_if_full(self, error: Exception) -> None:
        """A file beside the database could not be written because the disk is full: the next write would show it."""
        if isinstance(error, OSError) and error.errno in FULL:
            self.fail(DatabaseError(f"{error.filename or 'a file'} cannot be written: the disk is full; free some space"))

    def _settled(self, done: Future[object]) -> None:
        if isinstance(error := done.exception(), DatabaseError):
            self.fail(error)
