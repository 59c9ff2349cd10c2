"""Has another process changed something?

SQLite counts commits: `PRAGMA data_version` differs when another connection has committed since this one looked (its
own commits do not count), and costs a few microseconds. PostgreSQL notifies: every writing transaction does, on commit. A
notification sent while nobody listened is lost, so a connection made anew is itself news.
"""

from __future__ import annotations

import time
from typing import Protocol

from tasks.connection import Connection
from tasks.db import Database
from tasks.engine import CHANNEL
from tasks.explain import explain
from tasks.outage import Patience, is_away

POLL = 0.05  # seconds between looks on SQLite


class Probe(Protocol):
    def changed(self, timeout: float = 0.0) -> bool:
        """Whether another connection committed since the last time this said so; waits up to `timeout` seconds."""
        ...

    def close(self) -> None: ...


class SqliteProbe:
    """Looks with a connection of its own, or with the one whose own commits must not count."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver = connection.driver
        self._seen = self._version()

    def _version(self) -> int:
        return int(self._driver.execute("PRAGMA data_version").fetchone()[0])

    def changed(self, timeout: float = 0.0) -> bool:
        deadline = time.monotonic() + timeout
        while (version := self._version()) == self._seen:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL, left))
        self._seen = version
        return True

    def close(self) -> None:
        self._connection.close()


class PostgresProbe:
    """Listens on a connection of its own; `ignore_pid` is the server process whose commits are our own. A connection that
    broke, or could not be had yet, is made by a later look, and that counts as a change: what was missed is not known. Raises
    `DatabaseError`, of a server that is away only by `changed`, when it is for long."""

    def __init__(self, db: Database, ignore_pid: int | None = None) -> None:
        self._db = db
        self._ignore = ignore_pid
        self._patience = Patience()
        self._connection: Connection | None = None  # None: nobody is listened to
        try:
            self._listen()
        except db.pool.driver.errors as error:
            if not is_away(error):
                raise explain(error, db.name) from error

    def _listen(self) -> None:
        connection = self._db.pool.take()
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        self._connection, self._patience = connection, Patience()

    def changed(self, timeout: float = 0.0) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            try:
                if self._connection is None:
                    self._listen()
                    return True
                return self._hears_others(self._connection, deadline)
            except self._db.pool.driver.errors as error:
                self.close()
                if not (is_away(error) and self._patience.goes_on()):
                    raise explain(error, self._db.name) from error
            if time.monotonic() >= deadline:
                return False

    def _hears_others(self, connection: Connection, deadline: float) -> bool:
        while True:
            left = max(0.0, deadline - time.monotonic())
            heard = list(connection.driver.notifies(timeout=left, stop_after=1))
            if any(note.pid != self._ignore for note in heard):
                return True
            if not heard or left == 0.0:
                return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def open_probe(db: Database) -> Probe:
    return SqliteProbe(db.pool.take()) if db.is_sqlite else PostgresProbe(db)


class Watcher:
    """For viewers (`logs -f`, `wait`): what changed is theirs to read. Not shared between threads."""

    def __init__(self, db: Database) -> None:
        self._probe = open_probe(db)

    def changed(self, timeout: float) -> bool:
        """Whether anything was committed since the last look; waits up to `timeout` seconds for it."""
        return self._probe.changed(timeout)

    def close(self) -> None:
        self._probe.close()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
