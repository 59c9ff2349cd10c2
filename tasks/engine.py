"""Where a database is, and connections with the settings that every one needs.

SQLite: the driver's own transaction control is off (it begins late and deferred, which loses updates silently: 8
processes of read-add-commit ended at 64 of 480). We begin ourselves: `BEGIN IMMEDIATE`, or `BEGIN` for those that only
read. WAL, foreign keys, 10 s busy timeout, synchronous NORMAL.

PostgreSQL: a writing transaction takes one advisory lock. That gives what SQLite gives, one writer at a time: ids of
events become visible in their order, and a guarded UPDATE is all a decision needs. It also notifies watchers on commit.
Who has that lock and asks nothing for `HELD` seconds (a process that was frozen, a machine that is gone) loses its connection,
and with it the lock: all others wait for that. Thawed, it does the same transaction again (`outage.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from tasks.connection import Driver, Pool
from tasks.errors import DatabaseError

BUSY_TIMEOUT = 10.0  # seconds
CHANNEL = "coordinator_changes"
POSTGRES_LOCK = 7_266_311_947  # any number of our own
READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
ASKING = frozenset(  # pragmas that only show, also with an argument
    {"foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check", "quick_check",
     "table_info", "table_list", "table_xinfo"}
)  # fmt: skip
SHOWING = ASKING | {
    "application_id", "auto_vacuum", "cache_size", "compile_options", "data_version", "database_list", "encoding",
    "foreign_keys", "freelist_count", "journal_mode", "page_count", "page_size", "schema_version", "synchronous",
    "user_version",
}  # fmt: skip
CONNECT_TIMEOUT = 10  # seconds, PostgreSQL
HELD = 2.0  # seconds
MARKS_KEPT = 3600  # seconds; nobody asks for a mark when the server was away for so long
_NOW = "extract(epoch FROM clock_timestamp())"
_MARK = (
    f"INSERT INTO commit_marks VALUES ('{{connection}}', 1, {_NOW}) "
    f"ON CONFLICT (connection) DO UPDATE SET number = commit_marks.number + 1, at = {_NOW} RETURNING number"
)
_UNREADABLE = "the database URL cannot be read; it looks like postgresql://user@host/name"


class Place(Struct, frozen=True):
    """Where a database is: the `path` of a file, or else the `url` of a server as its driver takes it. `name` is safe to
    show: it holds no password."""

    path: Path | None
    url: str | None
    name: str


def parse_place(url_or_path: str | Path) -> Place:
    """A path is an SQLite file; `sqlite:///file`, `postgresql://…` are URLs. Raises `DatabaseError`."""
    text = str(url_or_path)
    if "://" not in text:
        return _file(text)
    scheme, _, rest = text.partition("://")
    kind = scheme.partition("+")[0].lower()
    if not kind or not kind.isalnum():
        raise DatabaseError(_UNREADABLE, exit_code=2)
    if kind in ("postgres", "postgresql"):
        return _server(f"postgresql://{rest}")
    if kind != "sqlite":
        raise DatabaseError(f"{scheme} is no database we can use: SQLite and PostgreSQL are", exit_code=2)
    database = rest.partition("?")[0].removeprefix("/")
    if not database or database == ":memory:" or not rest.startswith("/"):
        raise DatabaseError("the database must be a file: other processes have to see it", exit_code=2)
    return _file(database)


def _file(text: str) -> Place:
    path = Path(text).expanduser().absolute()
    return Place(path, None, str(path))


def _server(url: str) -> Place:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        password, _port = parts.password, parts.port
    except ValueError:
        raise DatabaseError(_UNREADABLE, exit_code=2) from None
    account, at, host = parts.netloc.rpartition("@")
    shown = account.partition(":")[0] + ":***" if password is not None else account
    return Place(None, url, parts._replace(netloc=f"{shown}{at}{host}").geturl())


def connect_sqlite(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection that threads may pass on. Without `create` a missing file is an error, not a new one."""
    mode = "rwc" if create else "rw"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def configured_sqlite(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """One with the settings of ours."""
    driver = connect_sqlite(path, create=create)
    try:
        driver.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT * 1000)}")
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("PRAGMA synchronous=NORMAL")
        driver.execute("PRAGMA foreign_keys=ON")
    except sqlite3.Error:
        driver.close()
        raise
    return driver


def open_pool(place: Place, clock: Callable[[], float]) -> Pool:
    """Nothing is connected yet. Raises `DatabaseError` where the driver is not installed."""
    return Pool(_postgres(place.url) if place.url is not None else _sqlite(place.path), clock)


def _sqlite(path: Path | None) -> Driver:
    assert path is not None
    return Driver(
        connect=partial(configured_sqlite, path),
        errors=sqlite3.Error,
        integrity=sqlite3.IntegrityError,
        begin_writing="BEGIN IMMEDIATE",
        begin_reading="BEGIN",
        is_sqlite=True,
    )


def _postgres(url: str) -> Driver:
    try:
        psycopg = import_module("psycopg")
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"PostgreSQL needs the package {error.name}: pip install 'coordinator[postgres]'", exit_code=2
        ) from None
    return Driver(
        connect=partial(psycopg.connect, url, autocommit=True, connect_timeout=CONNECT_TIMEOUT),
        errors=psycopg.Error,
        integrity=psycopg.IntegrityError,
        begin_writing=f"BEGIN; SET LOCAL idle_in_transaction_session_timeout = {int(HELD * 1000)}; "
        f"SELECT pg_advisory_xact_lock({POSTGRES_LOCK}), pg_notify('{CHANNEL}', ''); {_MARK}",
        begin_reading="BEGIN",
        is_sqlite=False,
        is_alive=_answers,
        number_of=_number,
        forget=f"DELETE FROM commit_marks WHERE at < {_NOW} - {MARKS_KEPT}",
    )


def _number(begun: Any) -> int:
    """Of the four answers the last holds it."""
    for _ in range(3):
        begun.nextset()
    return int(begun.fetchone()[0])


def _answers(driver: Any) -> bool:
    """Whether the server still knows an idle connection."""
    try:
        driver.execute("SELECT 1")
    except Exception:  # a driver's
        return False
    return True


def authorize_reading(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    """What `Database.query` lets SQLite do (an authorizer, asked when a statement is compiled)."""
    shows = action == sqlite3.SQLITE_PRAGMA and first in (SHOWING if second is None else ASKING)
    return sqlite3.SQLITE_OK if action in READING or shows else sqlite3.SQLITE_DENY
