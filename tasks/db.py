"""`Database`: open once, then `read` and `write` with a function over a connection.

    db = Database.open(path)
    task = db.read(lambda conn: registry.get(conn, task_id))
    db.write(lambda conn: outbox.send(conn, …))

1. Every write is one transaction that begins with the write lock, so what it read cannot be stale when it commits.
2. A function may run again when the lock could not be had, or the server went away: it must touch nothing but the
   connection.
3. Drivers' exceptions leave as `DatabaseError` with one sentence. What the function itself raises passes unchanged.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tasks import upgrade
from tasks.connection import Connection, Mark, Pool
from tasks.engine import Place, authorize_reading, open_pool, parse_place
from tasks.errors import DatabaseError, DatabaseGone, IntegrityError
from tasks.explain import explain, is_busy
from tasks.outage import Patience, is_away, was_committed
from tasks.upgrade import HEAD_REVISION

__all__ = ["HEAD_REVISION", "Database", "DatabaseError", "now_of"]

T = TypeVar("T")
TRIES = 3  # each waits up to the busy timeout of 10 s


def now_of(connection: Connection) -> float:
    """The time by the clock of the connection's database, seconds since the epoch."""
    return connection.clock()


class Database:
    """`path` is None for a server; `name` is safe to show (no password). Threads may share it."""

    def __init__(self, place: Place, clock: Callable[[], float]) -> None:
        self.place = place
        self.pool: Pool = open_pool(place, clock)
        self.clock = clock
        self.is_sqlite = place.path is not None
        self.path = place.path
        self.name = place.name
        self._file = self._identity()

    @classmethod
    def open(cls, url_or_path: str | Path, *, clock: Callable[[], float] = time.time) -> Database:
        """Open, and make or upgrade as needed (see `upgrade.py`). Raises `DatabaseError`."""
        place = parse_place(url_or_path)
        if place.path is not None:
            upgrade.prepare_sqlite(place.path, clock)
            return cls(place, clock)
        db = cls(place, clock)
        try:
            upgrade.prepare_postgres(db.pool, place)
        except db.pool.driver.errors as error:
            raise explain(error, db.name) from None
        return db

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of the file; None where there is none."""
        if self.path is None:
            return None
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check_file(self) -> None:
        """Raise `DatabaseGone` if the file that was opened is not in its place any more: SQLite would go on writing into
        one that nobody can read again."""
        if self._file is not None and self._identity() != self._file:
            raise DatabaseGone(f"the database {self.name} was deleted or replaced while it was in use")

    def read(self, fn: Callable[[Connection], T]) -> T:
        """`fn` over one consistent state of the database. What it writes is rolled back."""
        return self._run(fn, reading=True)

    def write(self, fn: Callable[[Connection], T]) -> T:
        """`fn` in one transaction; durable on return."""
        return self._run(fn, reading=False)

    def _run(self, fn: Callable[[Connection], T], *, reading: bool) -> T:
        driver, tries, patience = self.pool.driver, 1, Patience()
        committing: tuple[Mark, T] | None = None  # a transaction that may have taken place, and what it gave
        while True:
            try:
                if committing is not None and was_committed(self.pool, committing[0]):
                    return committing[1]
                committing = None
                with self.pool.connection() as connection, connection.transaction(reading=reading):
                    value = fn(connection)
                    if not reading and connection.mark is not None:
                        committing = (connection.mark, value)
                return value
            except driver.integrity as error:
                raise IntegrityError(str(error)) from error
            except driver.errors as error:
                if is_away(error) and patience.goes_on():
                    continue
                if not is_busy(error) or tries == TRIES:
                    raise explain(error, self.name) from error
                tries += 1

    def query(self, sql: str) -> tuple[list[str], list[Sequence[Any]]]:
        """Column names and rows of one statement that only reads; anything else is refused by the database."""

        def ask(connection: Connection) -> tuple[list[str], list[Sequence[Any]]]:
            with self._only_reading(connection):
                cursor = connection.driver.execute(sql)
                names = [column[0] for column in cursor.description or ()]
                return names, [tuple(row) for row in cursor.fetchall()] if names else []

        return self._run(ask, reading=True)

    @contextmanager
    def _only_reading(self, connection: Connection) -> Iterator[None]:
        """`connection` refuses all but reading: also what changes no row of ours, such as attaching a file."""
        if not self.is_sqlite:
            connection.execute("SET TRANSACTION READ ONLY")
            yield
            return
        driver = connection.driver
        driver.set_authorizer(authorize_reading)
        try:
            yield
        finally:
            driver.set_authorizer(None)

    def check(self) -> list[str]:
        """What is wrong with the file, in the database's words; empty if it is sound. Reads all of it."""
        if not self.is_sqlite:
            return []
        rows = self.read(lambda connection: connection.rows("PRAGMA integrity_check"))
        return [row[0] for row in rows if row[0] != "ok"]

    def backup(self, target: Path) -> Path:
        """Copy the SQLite file, with all that is committed, while others write. Raises `DatabaseError`."""
        if self.path is None:
            raise DatabaseError("a server's database is backed up with its own tools (pg_dump)", exit_code=2)
        try:
            return upgrade.backup(self.path, target)
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"no backup could be written to {target}: {upgrade.reason_of(error)}") from None

    def close(self) -> None:
        self.pool.close()
