"""What happened, in order: a row an event, written in the transaction of what it tells.

`kind` is a word, `data` what it needs. The registry writes `task_created`, `task_running`, `task_completed`,
`task_failed`, `task_killed`, `task_stop_requested`; sessions write `session_created`, `session_ended`,
`session_reopened`, `session_forked`; others may write their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, select

from tasks.db import now_of
from tasks.hot import insert_all
from tasks.models import events
from tasks.records import EventRecord

_ADD = insert_all(events, without="id")


def add(conn: Connection, session_id: str, task_id: str | None, kind: str, data: Mapping[str, Any] | None = None) -> None:
    _ADD.run(conn, session_id=session_id, task_id=task_id, kind=kind, data=data or {}, at=now_of(conn))


def since(
    conn: Connection, id: int = 0, *, session_id: str | None = None, task_id: str | None = None, limit: int = 1000
) -> list[EventRecord]:
    """Events after `id`, oldest first, at most `limit`."""
    query = select(events).where(events.c.id > id).order_by(events.c.id).limit(limit)
    if session_id is not None:
        query = query.where(events.c.session_id == session_id)
    if task_id is not None:
        query = query.where(events.c.task_id == task_id)
    return [EventRecord(*row) for row in conn.execute(query)]


def of_kind(conn: Connection, session_id: str, kind: str) -> list[EventRecord]:
    """All events of one kind in a session, oldest first."""
    query = select(events).where(events.c.session_id == session_id, events.c.kind == kind).order_by(events.c.id)
    return [EventRecord(*row) for row in conn.execute(query)]


def last_id(conn: Connection) -> int:
    """The id of the newest event, 0 if there is none: where following begins."""
    return conn.scalar(select(func.max(events.c.id))) or 0
