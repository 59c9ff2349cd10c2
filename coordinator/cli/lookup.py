"""Finding the sessions and tasks that a command names; `views/shown.py` turns them into the documented objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.cli.context import Context
from coordinator.views import shown
from coordinator.views.shown import Shown
from tasks import registry, sessions
from tasks.errors import NotFound
from tasks.records import SessionRecord, TaskRecord

if TYPE_CHECKING:
    from tasks.connection import Connection


def find_session(cli: Context, ref: str) -> SessionRecord:
    """Raises `NotFound`, `Ambiguous`."""
    return cli.database.read(lambda conn: sessions.resolve(conn, ref))


def find_tasks(cli: Context, refs: Sequence[str], session: str | None = None) -> list[TaskRecord]:
    """One task for each of `refs`: an id, the unique beginning of one, or a name. Raises `NotFound`, `Ambiguous`."""

    def read(conn: Connection) -> list[TaskRecord]:
        within = sessions.resolve(conn, session).id if session else None
        return [registry.resolve(conn, ref, session_id=within) for ref in refs]

    return cli.database.read(read)


def find_any(cli: Context, refs: Sequence[str]) -> list[TaskRecord | SessionRecord]:
    """For each of `refs` the task it means, else the session. Raises `NotFound`, `Ambiguous`."""
    return cli.database.read(lambda conn: [_task_or_session(conn, ref) for ref in refs])


def _task_or_session(conn: Connection, ref: str) -> TaskRecord | SessionRecord:
    try:
        return registry.resolve(conn, ref)
    except NotFound as unknown:
        try:
            return sessions.resolve(conn, ref)
        except NotFound:
            raise unknown from None


def shown_sessions(cli: Context, found: Sequence[SessionRecord]) -> list[Shown]:
    return shown.shown_sessions(cli.database, found, cli.now())
