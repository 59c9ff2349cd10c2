"""Process trees begun by a session or its tasks, on record so that another process can end them when the owner is gone.

A row is a claim about a pid at a start time on a host; whoever acts on it looks at the process table first.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from tasks.db import now_of
from tasks.leases import this_host
from tasks.models import processes as table
from tasks.records import ProcessRecord


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
    conn.execute(insert(table), row | {"session_id": session_id, "task_id": task_id, "added_at": now_of(conn)})


def remove(conn: Connection, pid: int, started_at: float, *, host: str | None = None) -> bool:
    """Forget a tree that has ended; False if it was not there."""
    same = (table.c.pid == pid) & (table.c.started_at == started_at) & (table.c.host == (host or this_host()))
    return conn.execute(delete(table).where(same)).rowcount == 1


def list_processes(conn: Connection, *, session_id: str | None = None, task_id: str | None = None) -> list[ProcessRecord]:
    """Trees on record, oldest first."""
    query = select(table).order_by(table.c.added_at, table.c.pid)
    if session_id is not None:
        query = query.where(table.c.session_id == session_id)
    if task_id is not None:
        query = query.where(table.c.task_id == task_id)
    return [ProcessRecord(*row) for row in conn.execute(query)]
