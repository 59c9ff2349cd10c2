"""Engines with the settings that every connection needs.

SQLite: the driver's own transaction control is off (it begins late and deferred, which loses updates silently: 8
processes of read-add-commit ended at 64 of 480). We begin ourselves: `BEGIN IMMEDIATE`, or `BEGIN` for connections with
the option `deferred`, which only read. WAL, foreign keys, 10 s busy timeout, synchronous NORMAL.

PostgreSQL: a writing transaction takes one advisory lock. That gives what SQLite gives, one writer at a time: ids of
events become visible in their order, and a guarded UPDATE is all a decision needs. It also notifies watchers on commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

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


def parse_url(url_or_path: str | Path) -> URL:
    """A path is an SQLite file; `sqlite:///file`, `postgresql://…` are URLs. Raises `DatabaseError`."""
    text = str(url_or_path)
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise DatabaseError("the database URL cannot be read; it looks like postgresql://user@host/name", exit_code=2) from None
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "postgresql":
        return url
    if url.get_backend_name() != "sqlite":
        raise DatabaseError(f"{url.drivername} is no database we can use: SQLite and PostgreSQL are", exit_code=2)
    if not url.database or url.database == ":memory:":
        raise DatabaseError("the database must be a file: other processes have to see it", exit_code=2)
    return URL.create("sqlite", database=str(Path(url.database).expanduser().absolute()))


def connect_sqlite(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection that threads may pass on. Without `create` a missing file is an error, not a new one."""
    mode = "rwc" if create else "rw"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
    )


def make_engine(url: URL, clock: Callable[[], float], *, create: bool = False) -> Engine:
    """An engine whose connections carry `clock` in their `info`. Nothing is opened yet; `create` may make the file."""
    try:
        if url.get_backend_name() == "sqlite":
            connect = partial(connect_sqlite, Path(url.database or ""), create=create)
            engine = create_engine(url, creator=connect, pool_size=4, max_overflow=32)
            _sqlite_events(engine, clock)
        else:
            engine = create_engine(url, connect_args={"connect_timeout": CONNECT_TIMEOUT}, pool_pre_ping=True)
            _postgres_events(engine, clock)
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"PostgreSQL needs the package {error.name}: pip install 'coordinator[postgres]'", exit_code=2
        ) from None
    return engine


def authorize_reading(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    """What `Database.query` lets SQLite do (an authorizer, asked when a statement is compiled)."""
    shows = action == sqlite3.SQLITE_PRAGMA and first in (SHOWING if second is None else ASKING)
    return sqlite3.SQLITE_OK if action in READING or shows else sqlite3.SQLITE_DENY


def is_deferred(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("deferred"))


def _sqlite_events(engine: Engine, clock: Callable[[], float]) -> None:
    @event.listens_for(engine, "connect")
    def configure(driver: Any, record: Any) -> None:
        record.info["clock"] = clock
        driver.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT * 1000)}")
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("PRAGMA synchronous=NORMAL")
        driver.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if is_deferred(connection):  # by the driver itself, for it cannot fail: Core takes longer than a short read
            driver: Any = connection.connection.driver_connection
            driver.execute("BEGIN")
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _postgres_events(engine: Engine, clock: Callable[[], float]) -> None:
    @event.listens_for(engine, "connect")
    def configure(driver: Any, record: Any) -> None:
        record.info["clock"] = clock

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if not is_deferred(connection):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({POSTGRES_LOCK}), pg_notify('{CHANNEL}', '')")
