"""Process trees begun by a session or its tasks, on record so that another process can end them when the owner is gone.

A row is a claim about a pid at a start time on a host; whoever acts on it looks at the process table first.
"""

from __future__ import annotations

from tasks.connection import Connection
from tasks.db import now_of
from tasks.leases import this_host
from tasks.records import ProcessRecord
from tasks.rows import PROCESS


def add(
    conn: Connection,
    *,
    session_id: str,
    task_id: str | None,
    pid: int,
    started_at: float,
    marker: str,
    command: str | None = None,
    host: str | None = None,
) -> None:
    """Record a tree by its first process. `host` None is this one; recording the same again replaces it."""
    where = host or this_host()
    remove(conn, pid, started_at, host=where)
    row = {"pid": pid, "started_at": started_at, "host": where, "marker": marker, "command": command}
    conn.insert("processes", row | {"session_id": session_id, "task_id": task_id, "added_at": now_of(conn)})


def remove(conn: Connection, pid: int, started_at: float, *, host: str | None = None) -> bool:
    """Forget a tree that has ended; False if it was not there."""
    same = "DELETE FROM processes WHERE pid = :pid AND started_at = :started_at AND host = :host"
    return conn.changed(same, pid=pid, started_at=started_at, host=host or this_host()) == 1


def list_processes(conn: Connection, *, session_id: str | None = None, task_id: str | None = None) -> list[ProcessRecord]:
    """Trees on record, oldest first."""
    wanted = {name: value for name, value in (("session_id", session_id), ("task_id", task_id)) if value is not None}
    fits = " AND ".join(f"{name} = :{name}" for name in wanted) or "1 = 1"
    query = f"SELECT {PROCESS.columns} FROM processes WHERE {fits} ORDER BY added_at, pid"
    return [PROCESS(row) for row in conn.rows(query, **wanted)]
