"""Which session is run: an earlier one, a copy of it, or a new one."""

from __future__ import annotations

from pathlib import Path

from coordinator.options import RunOptions
from tasks import sessions
from tasks.connection import Connection
from tasks.errors import Exists
from tasks.records import SessionRecord
from worker_agent.errors import ConfigError
from worker_agent.structs import replace


def earlier_session(conn: Connection, options: RunOptions) -> SessionRecord | None:
    """The session to go on with, or to copy; None for a new one. Raises `NotFound`, `Ambiguous`, `ConfigError`."""
    if options.resume is not None:
        return sessions.resolve(conn, options.resume)
    if not options.continue_last:
        return None
    here = str(options.cwd.absolute())
    earlier = next((session for session in sessions.list_sessions(conn) if session.cwd == here), None)
    if earlier is None:
        raise ConfigError(f"there is no earlier session in {here}")
    return earlier


def is_moved(earlier: SessionRecord) -> bool:
    """Whether the session's directory was another machine's, and is not needed: its work goes by git."""
    return earlier.options.get("base") is not None and not Path(earlier.cwd).is_dir()


def choose_session(
    conn: Connection, options: RunOptions, model: str, earlier: SessionRecord | None, session_id: str
) -> SessionRecord:
    """The session to run: `earlier`, a copy of it, or a new one; `session_id` is what a session that is made is called.
    Raises `ConfigError`."""
    try:
        if earlier is not None:
            return replace(sessions.fork(conn, earlier.id, id=session_id), cwd=earlier.cwd) if options.fork_session else earlier
        if not options.prompt and not options.interactive:
            raise ConfigError("there is no prompt")
        return sessions.create(
            conn,
            id=session_id,
            goal=options.prompt or "",
            cwd=str(options.cwd.absolute()),
            model=model,
            options=options.stored(),
            title=_title(options.prompt),
        )
    except Exists:
        raise ConfigError(f"there is a session {session_id} already; --resume goes on with it") from None


def _title(prompt: str | None) -> str | None:
    first = (prompt or "").strip().splitlines()
    return first[0][:80] if first else None


def keep_fences(conn: Connection, record: SessionRecord, options: RunOptions) -> None:
    """What limits a session holds for every later run of it, too; so does where it stands, if it moved to another machine."""
    where = {name: value for name in ("workspace", "remote", "base") if (value := getattr(options, name)) is not None}
    if (fenced := options.fenced(record.options, Path(record.cwd)) | where) != record.options:
        sessions.update_details(conn, record.id, options=fenced)
    if sessions.get(conn, record.id).cwd != record.cwd:
        sessions.update_details(conn, record.id, cwd=record.cwd)
