"""A connection of the driver's own, and the little that SQLite and PostgreSQL differ in.

1. Statements are plain SQL with named parameters (`:name`). No layer that describes SQL stands between: importing one took a
   quarter of a start and a third of its memory, and executing through one took longer than what it executed. The tables are
   described in `models.py`, for migrations and for the tests that hold statements and records against them.
2. Values find their form here, by their type: texts are cleaned (`text.py`), what is neither text nor number nor nothing is
   stored as JSON. What comes back becomes values in `records.py`.
3. A driver's own exceptions pass through; `Database` and `Writer` say what they mean (`Driver.errors` names them).
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from msgspec import Struct

from tasks.text import clean, dump_json

KEPT = 4  # idle connections
_PARAMETER = re.compile(r"(?<!:):([a-z_]\w*)")


class Driver(Struct, frozen=True, kw_only=True):
    """What a kind of database brings along. `connect` opens a connection with its settings, outside a transaction; `begin`
    are the statements with which a writing, and a reading, transaction begins; `{connection}` in them is the connection's id."""

    connect: Callable[[], Any]
    errors: type[Exception]
    integrity: type[Exception]
    begin_writing: str
    begin_reading: str
    is_sqlite: bool
    is_alive: Callable[[Any], bool] = lambda driver: True
    number_of: Callable[[Any], int | None] = lambda begun: None  # of a writing transaction, by what its beginning answered
    forget: str = ""  # what takes away the marks of connections that are gone


class Mark(Struct, frozen=True):
    """What a writing transaction leaves in a server's database, if it takes place: its number among those of its connection
    (`commit_marks`). The server's own numbers are no mark: one that crashes gives again what it had not yet stored."""

    connection: str
    number: int


class Connection:
    """One transaction's view of a database. `driver` is the driver's own connection."""

    __slots__ = ("_id", "_spec", "begins", "clock", "driver", "mark", "sharing", "updating")

    def __init__(self, driver: Any, spec: Driver, clock: Callable[[], float]) -> None:
        self.driver = driver
        self.clock = clock
        # What a SELECT ends with to hold a row until the end of the transaction; SQLite holds all of them anyway.
        self.sharing = "" if spec.is_sqlite else " FOR SHARE"
        self.updating = "" if spec.is_sqlite else " FOR UPDATE"
        # That the id in `{0}` begins with `:ref`. Ids are letters and digits, so a range says it, which an index serves; a
        # server may sort them in another order than that of their codes.
        self.begins = ("({0} >= :ref AND {0} < :ref || '~')" if spec.is_sqlite else "starts_with({0}, :ref)").format
        self.mark: Mark | None = None  # of the last writing transaction
        self._id = uuid.uuid4().hex
        self._spec = spec

    def execute(self, sql: str, /, **values: Any) -> Any:
        """The driver's cursor, with `rowcount`. Raises what the driver raises."""
        for name, value in values.items():
            if value is None or isinstance(value, (int, float)):
                continue
            values[name] = clean(value) if isinstance(value, str) else dump_json(value)
        if self._spec.is_sqlite:
            return self.driver.execute(sql, values)
        return self.driver.execute(_percent(sql), values)

    def rows(self, sql: str, /, **values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.execute(sql, **values).fetchall()
        return found

    def row(self, sql: str, /, **values: Any) -> tuple[Any, ...] | None:
        """The first row, if there is one."""
        found: tuple[Any, ...] | None = self.execute(sql, **values).fetchone()
        return found

    def value(self, sql: str, /, **values: Any) -> Any:
        """The first column of the first row; None without one."""
        row = self.execute(sql, **values).fetchone()
        return None if row is None else row[0]

    def changed(self, sql: str, /, **values: Any) -> int:
        """How many rows a statement changed."""
        return int(self.execute(sql, **values).rowcount)

    def insert(self, table: str, row: dict[str, Any]) -> None:
        self.execute(_insert(table, tuple(row)), **row)

    def set(self, table: str, values: dict[str, Any], where: str, /, **parameters: Any) -> int:
        """Update the columns that `values` names; how many rows changed. `where` may not use their names as parameters."""
        return self.changed(_update(table, tuple(values), where), **values, **parameters)

    def server_time(self) -> float:
        """The time by the server's clock, which is one for all machines; of a file, that of its only machine."""
        return self.clock() if self._spec.is_sqlite else float(self.value("SELECT extract(epoch FROM clock_timestamp())"))

    def time_of(self, now: float) -> float:
        """What machines take for `now`, a time by this one's clock: of a server its own time, since their clocks differ."""
        return now if self._spec.is_sqlite else self.server_time()

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[None]:
        """Committed at the end, rolled back after an exception, and always where it was for `reading`."""
        if reading:
            self.driver.execute(self._spec.begin_reading)
        else:
            begun = self.driver.execute(self._spec.begin_writing.replace("{connection}", self._id))
            number = self._spec.number_of(begun)
            self.mark = None if number is None else Mark(self._id, number)
        try:
            if not reading and self.mark is not None and self.mark.number == 1:
                self.driver.execute(self._spec.forget)
            yield
            self.driver.execute("ROLLBACK" if reading else "COMMIT")
        except BaseException:
            with suppress(self._spec.errors):  # a full disk may have rolled back already
                self.driver.execute("ROLLBACK")
            raise

    def close(self) -> None:
        with suppress(self._spec.errors):
            self.driver.close()


@cache
def _percent(sql: str) -> str:
    """A statement in the style of PostgreSQL's driver."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


@cache
def _insert(table: str, names: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


@cache
def _update(table: str, names: tuple[str, ...], where: str) -> str:
    return f"UPDATE {table} SET {', '.join(f'{name} = :{name}' for name in names)} WHERE {where}"


def among(column: str, values: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """A condition that `column` is one of `values`, and its parameters."""
    name = column.replace(".", "_")
    parameters = {f"{name}_{n}": value for n, value in enumerate(values)}
    return (f"{column} IN ({', '.join(f':{p}' for p in parameters)})" if parameters else "1 = 0"), parameters


class Pool:
    """Connections of one database; threads may share it. `clock` gives seconds since the epoch."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self.driver = driver
        self.clock = clock
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed_at = 0  # connections of an earlier life are not kept

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """One that nobody else uses meanwhile. Raises what the driver raises."""
        life = self._closed_at
        connection = self.take()
        try:
            yield connection
        except self.driver.errors:
            connection.close()  # broken or not: the next one is fresh
            raise
        except BaseException:
            self._give(connection, life)
            raise
        self._give(connection, life)

    def take(self) -> Connection:
        """One for the caller to close."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self.driver.connect(), self.driver, self.clock)
            if self.driver.is_alive(connection.driver):
                return connection
            connection.close()

    def _give(self, connection: Connection, life: int) -> None:
        with self._lock:
            if len(self._idle) < KEPT and life == self._closed_at:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed_at += 1
        for connection in idle:
            connection.close()
