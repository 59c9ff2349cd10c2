"""What happened, in order: a row an event, written in the transaction of what it tells.

`kind` is a word, `data` what it needs. The registry writes `task_created`, `task_running`, `task_completed`,
`task_failed`, `task_killed`, `task_stop_requested`; sessions write `session_created`, `session_ended`,
`session_reopened`, `session_forked`; others may write their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.connection import Connection
from tasks.db import now_of
from tasks.records import EventRecord
from tasks.rows import EVENT

_ADD = "INSERT INTO events (session_id, task_id, kind, data, at) VALUES (:session_id, :task_id, :kind, :data, :at)"
_OF_KIND = f"SELECT {EVENT.columns} FROM events WHERE session_id = :session_id AND kind = :kind ORDER BY id"


def add(conn: Connection, session_id: str, task_id: str | None, kind: str, data: Mapping[str, Any] | None = None) -> None:
    conn.execute(_ADD, session_id=session_id, task_id=task_id, kind=kind, data=data or {}, at=now_of(conn))


def since(
    conn: Connection, id: int = 0, *, session_id: str | None = None, task_id: str | None = None, limit: int = 1000
) -> list[EventRecord]:
    """Events after `id`, oldest first, at most `limit`."""
    wanted = {name: value for name, value in (("session_id", session_id), ("task_id", task_id)) if value is not None}
    fits = "".join(f" AND {name} = :{name}" for name in wanted)
    query = f"SELECT {EVENT.columns} FROM events WHERE id > :id{fits} ORDER BY id LIMIT :limit"
    return [EVENT(row) for row in conn.rows(query, id=id, limit=limit, **wanted)]


def of_kind(conn: Connection, session_id: str, kind: str) -> list[EventRecord]:
    """All events of one kind in a session, oldest first."""
    return [EVENT(row) for row in conn.rows(_OF_KIND, session_id=session_id, kind=kind)]


def last_id(conn: Connection) -> int:
    """The id of the newest event, 0 if there is none: where following begins."""
    return conn.value("SELECT max(id) FROM events") or 0
