"""What a driver's exception means, in one sentence that names the database and what to do. The only reader of codes."""

from __future__ import annotations

from tasks.errors import DatabaseError

BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_SQLITE = {
    "SQLITE_BUSY": "is busy: another process holds its write lock; try again, or end that process",
    "SQLITE_LOCKED": "is busy: another connection holds its write lock; try again",
    "SQLITE_CORRUPT": "is damaged (its pages do not fit together); put a backup in its place",
    "SQLITE_NOTADB": "is not an SQLite database; name another file, or put a backup in its place",
    "SQLITE_FULL": "cannot grow: the disk is full; free some space",
    "SQLITE_READONLY": "cannot be written: the file or its directory is read-only",
    "SQLITE_CANTOPEN": "cannot be opened: the directory is missing, read-only, or not ours",
    "SQLITE_AUTH": "is only read by this command: the statement would do more than that, so it was not run",
    "SQLITE_PERM": "cannot be opened: permission denied",
    "SQLITE_IOERR": "cannot be read or written: the disk or its limits gave an error",
}
_UNUSABLE = ("SQLITE_AUTH", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_PERM")


def _cause(error: BaseException) -> BaseException:
    """The driver's own, where what runs the revisions has wrapped it."""
    return getattr(error, "orig", None) or error


def code_of(error: BaseException) -> str:
    """SQLite's name of the primary error code, as far as the driver tells one ("SQLITE_BUSY"), else ""."""
    cause = _cause(error)
    name = getattr(cause, "sqlite_errorname", None) or ""
    return "_".join(name.split("_")[:2])


def is_busy(error: BaseException) -> bool:
    return code_of(error) in BUSY


def explain(error: BaseException, name: str) -> DatabaseError:
    """The `DatabaseError` that says what `error` means for the database `name`."""
    code = code_of(error)
    if code in _SQLITE:
        return DatabaseError(f"the database {name} {_SQLITE[code]}", exit_code=2 if code in _UNUSABLE else 1)
    cause = _cause(error)
    first_line = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    return DatabaseError(f"the database {name} gave an error: {first_line}")
