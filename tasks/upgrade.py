"""Bringing a database to the newest schema when it is opened, or refusing it in one sentence.

1. A database that is current is opened without a lock and without Alembic.
2. Otherwise a file lock beside it is taken (six first starts at once all succeed) and the look is repeated inside.
3. A new file is made complete under another name and then moved into its place: an empty or half-made file under the
   real name is never ours, so it is refused as damaged, and never replaced by a fresh one. What stands in it is what
   the revisions make (`migrations/head.sql`, written by them), without the third of a second that running them takes.
4. An older schema is copied first (`<db>.backup-<revision>-<time>`), then changed in one transaction: all or nothing.
5. A newer schema is refused; nothing is written.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tasks.connection import Pool
from tasks.engine import Place, connect_sqlite
from tasks.errors import DatabaseError
from tasks.explain import code_of, explain

HEAD_REVISION = "0008"
LOCK_WAIT = 120.0  # seconds: a migration of a large file takes a while


def prepare_sqlite(path: Path, clock: Callable[[], float]) -> None:
    """Make sure that `path` is a database of the newest schema. Raises `DatabaseError`."""
    if stored_revision(path) == HEAD_REVISION:
        return
    with _file_lock(path):
        revision = stored_revision(path)
        if revision is None:
            _create(path)
        elif revision != HEAD_REVISION:
            _upgrade(path, revision, clock)


def prepare_postgres(pool: Pool, place: Place) -> None:
    """The same for a server. An empty database there is usual. Raises `DatabaseError`, and what the driver raises."""
    with pool.connection() as connection, connection.transaction(reading=True):
        table = connection.value("SELECT to_regclass('alembic_version')")
        revision = connection.value("SELECT version_num FROM alembic_version") if table else None
    if revision == HEAD_REVISION:
        return
    if revision is not None:
        _refuse_newer(revision, place.name)
    from tasks import migrating

    migrating.migrate_server(place)  # takes the lock that writers take, and looks again


def stored_revision(path: Path) -> str | None:
    """The schema's revision in the file; None if there is no file. Raises `DatabaseError` for anything that is not a
    sound database of ours, of this revision or an older one. Writes nothing."""
    try:
        size = path.stat().st_size if path.exists() else None
    except OSError as error:
        raise DatabaseError(f"the database {path} cannot be opened: {reason_of(error)}", exit_code=2) from None
    if size is None:
        _refuse_orphaned_log(path)
        return None
    if not path.is_file():
        raise DatabaseError(f"the database {path} is not a file", exit_code=2)
    if size == 0:
        raise DatabaseError(
            f"the database {path} is empty (0 bytes): it is damaged or was never one; put a backup in its place, "
            "or remove it to begin anew",
            exit_code=2,
        )
    return _read_revision(path)


def _read_revision(path: Path) -> str:
    try:
        with closing(connect_sqlite(path)) as driver:
            _refuse_truncated(path, driver)
            tables = {row[0] for row in driver.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            rows = driver.execute("SELECT version_num FROM alembic_version").fetchall() if "alembic_version" in tables else []
    except sqlite3.Error as error:
        raise explain(error, str(path)) from None
    if len(rows) != 1:
        raise DatabaseError(
            f"the database {path} is not one of this program (it names no revision); name another file", exit_code=2
        )
    _refuse_newer(rows[0][0], str(path))
    return str(rows[0][0])


def _refuse_newer(revision: str, name: str) -> None:
    if not (revision.isdigit() and revision <= HEAD_REVISION):
        raise DatabaseError(
            f"the database {name} was made by a newer version of this program (schema {revision}, this one knows "
            f"{HEAD_REVISION}): use that version, or another database; nothing was changed",
            exit_code=2,
        )


def _refuse_orphaned_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise DatabaseError(
            f"the database {path} is missing, but its write-ahead log {log.name} is there: put the database back, "
            "or remove the log to begin anew",
            exit_code=2,
        )


def _refuse_truncated(path: Path, driver: sqlite3.Connection) -> None:
    """The header tells how many pages there are. A write-ahead log may still hold some of them, so the suspicion is
    only a reason for a thorough look. The file is never opened but by SQLite: closing any other descriptor of it
    would drop every lock this process holds on it, and other processes would take its log away."""
    (page,), (pages,) = (driver.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "page_count"))
    size = path.stat().st_size
    if size >= page * pages:
        return
    found = driver.execute("PRAGMA quick_check(1)").fetchall()
    if found != [("ok",)]:
        raise DatabaseError(f"the database {path} is damaged (cut off at {size} bytes); put a backup in its place")


def _create(path: Path) -> None:
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        if _write_head_schema(fresh) != HEAD_REVISION:
            _migrate(fresh)
        os.replace(fresh, path)
    except (sqlite3.Error, OSError) as error:
        raise _cannot_make(path, error) from None
    finally:
        for leftover in (fresh, Path(f"{fresh}-wal"), Path(f"{fresh}-shm"), Path(f"{fresh}-journal")):
            leftover.unlink(missing_ok=True)


def _write_head_schema(path: Path) -> str:
    """Make the file `path` out of what the revisions left behind; the revision that it is of."""
    import pkgutil

    script = pkgutil.get_data("migrations", "head.sql")
    assert script is not None
    with closing(connect_sqlite(path, create=True)) as driver:
        driver.execute("PRAGMA journal_mode=WAL")
        driver.executescript(f"BEGIN;\n{script.decode()}\nCOMMIT;")
        return str(driver.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def _cannot_make(path: Path, error: Exception) -> DatabaseError:
    if isinstance(error, OSError):
        return DatabaseError(f"the database {path} cannot be made: {reason_of(error)}", exit_code=2)
    return explain(error, str(path))


def _upgrade(path: Path, revision: str, clock: Callable[[], float]) -> None:
    try:
        copy = backup(path, _backup_name(path, revision, clock()))
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(f"no backup of {path} could be made, so it was not upgraded: {reason_of(error)}") from None
    try:
        _migrate(path)
    except Exception as error:  # whatever a revision raises: the transaction is rolled back, the person is told
        raise DatabaseError(
            f"upgrading {path} from schema {revision} to {HEAD_REVISION} failed ({reason_of(error)}); "
            f"the file is as it was, and a copy of it is {copy}"
        ) from error


def _backup_name(path: Path, revision: str, now: float) -> Path:
    from datetime import UTC, datetime

    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return path.with_name(f"{path.name}.backup-{revision}-{stamp}")


def backup(path: Path, target: Path) -> Path:
    """Copy the database with all that is committed, the write-ahead log's content included, through SQLite. An
    unfinished copy does not stay. Raises `sqlite3.Error` or `OSError`."""
    part = target.with_name(target.name + ".part")
    try:
        with closing(connect_sqlite(path)) as source, closing(connect_sqlite(part, create=True)) as copy:
            source.backup(copy)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _migrate(path: Path) -> None:
    from tasks import migrating

    migrating.migrate_sqlite(path)


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    name = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseError(f"the database {path} cannot be made or upgraded: {reason_of(error)}", exit_code=2) from None
    try:
        _lock(handle, name)
        yield
    finally:
        os.close(handle)  # gives the lock back, as does the end of the process


def _lock(handle: int, name: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DatabaseError(f"another process has held {name} for {LOCK_WAIT:.0f} s; end it and try again") from None
            time.sleep(0.02)


def reason_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if code_of(error):
        return str(explain(error, "file")).removeprefix("the database file ")
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
