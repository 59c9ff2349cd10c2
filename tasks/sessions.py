"""Sessions: one coordinator conversation with its tasks. Ownership is in `leases.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, insert, literal, select, update

from tasks import agents, events, leases, outbox, registry
from tasks.db import now_of
from tasks.errors import Ambiguous, NotFound, Owned
from tasks.ids import new_session_id
from tasks.models import agents as agents_table
from tasks.models import messages, steps
from tasks.models import sessions as table
from tasks.records import AgentRecord, SessionRecord, SessionStatus


def create(
    conn: Connection,
    *,
    id: str | None = None,
    goal: str,
    cwd: str,
    model: str | None,
    options: Mapping[str, Any],
    parent_id: str | None = None,
    title: str | None = None,
) -> SessionRecord:
    """A new open session that nobody owns yet, with its coordinator's agent. `id` None draws one; one that exists
    raises the database's `IntegrityError`."""
    now = now_of(conn)
    session_id = id or _unused_id(conn)
    row = {"parent_id": parent_id, "goal": goal, "cwd": cwd, "model": model, "options": options, "title": title}
    stamp = {"status": SessionStatus.OPEN, "created_at": now, "updated_at": now, "fence": 0}
    conn.execute(insert(table), row | stamp | {"id": session_id})
    agents.create(conn, AgentRecord(id=session_id, session_id=session_id, model=model, cwd=cwd, is_coordinator=True))
    events.add(conn, session_id, None, "session_created", {"goal": goal})
    return get(conn, session_id)


def _unused_id(conn: Connection) -> str:
    while find(conn, id := new_session_id()) is not None:
        pass
    return id


def find(conn: Connection, session_id: str) -> SessionRecord | None:
    row = conn.execute(select(table).where(table.c.id == session_id)).first()
    return None if row is None else SessionRecord.from_row(row)


def get(conn: Connection, session_id: str) -> SessionRecord:
    """Raises `NotFound`."""
    if (session := find(conn, session_id)) is None:
        raise NotFound(f"no session {session_id}")
    return session


def resolve(conn: Connection, ref: str) -> SessionRecord:
    """The session with this id, else with this title, else whose id alone begins so. Raises `NotFound`, `Ambiguous`."""
    ways = (table.c.id == ref, table.c.title == ref, func.substr(table.c.id, 1, len(ref)) == ref) if ref else ()
    for fits in ways:
        found = [SessionRecord.from_row(row) for row in conn.execute(select(table).where(fits).order_by(table.c.created_at))]
        if len(found) > 1:
            raise Ambiguous(ref, [session.id for session in found])
        if found:
            return found[0]
    raise NotFound(f"no session {ref!r}")


def list_sessions(conn: Connection, *, status: SessionStatus | None = None, limit: int | None = None) -> list[SessionRecord]:
    """Sessions, newest first."""
    query = select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
    if status is not None:
        query = query.where(table.c.status == status)
    return [SessionRecord.from_row(row) for row in conn.execute(query)]


def update_details(
    conn: Connection,
    session_id: str,
    *,
    title: str | None = None,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Change what a session is called or runs with; None leaves a field as it is. It also counts as a sign of use."""
    given = {"title": title, "model": model, "options": options}
    known = {name: value for name, value in given.items() if value is not None}
    conn.execute(update(table).where(table.c.id == session_id).values(updated_at=now_of(conn), **known))


def end(
    conn: Connection,
    session_id: str,
    fence: int,
    status: SessionStatus = SessionStatus.ENDED,
    reason: str | None = None,
) -> None:
    """End a session and its tasks, and give its lease back. Raises `Fenced`; a `ValueError` for an unknown status."""
    leases.check(conn, session_id, fence)
    registry.kill_all(conn, session_id, by="the end of the session", notify=False, end_reason="session_ended")
    now = now_of(conn)
    ended = {"status": SessionStatus(status), "end_reason": reason, "ended_at": now, "updated_at": now}
    conn.execute(update(table).where(table.c.id == session_id).values(**ended))
    leases.release(conn, session_id, fence)
    events.add(conn, session_id, None, "session_ended", {"reason": reason})


def end_if_idle(conn: Connection, session_id: str, fence: int, reason: str) -> bool:
    """End a session in which nothing lives and for whose own agent nothing waits; False, with nothing changed, if
    something does. Raises `Fenced`."""
    leases.check(conn, session_id, fence)
    if outbox.waiting(conn, session_id) or registry.live(conn, session_id):
        return False
    end(conn, session_id, fence, reason=reason)
    return True


def reopen(conn: Connection, session_id: str, fence: int) -> None:
    """Make an ended session open again, to go on with it. Raises `Fenced`."""
    leases.check(conn, session_id, fence)
    again = {"status": SessionStatus.OPEN, "end_reason": None, "ended_at": None, "updated_at": now_of(conn)}
    ended = (table.c.id == session_id) & (table.c.status == SessionStatus.ENDED)
    if conn.execute(update(table).where(ended).values(**again)).rowcount:
        events.add(conn, session_id, None, "session_reopened")


def owner_gone(session: SessionRecord, now: float) -> bool:
    """Whether nobody drives the session any more; see `leases.is_gone`."""
    return leases.is_gone(session.owner, session.lease_expires_at, now, leases.this_host())


def remove(conn: Connection, session_id: str) -> None:
    """Delete a session with all that belongs to it. Raises `NotFound`, `Owned` while a process drives it."""
    session = get(conn, session_id)
    if not owner_gone(session, now_of(conn)):
        raise Owned(session_id, session.owner)
    conn.execute(delete(table).where(table.c.id == session_id))


def fork(conn: Connection, session_id: str, *, id: str | None = None) -> SessionRecord:
    """A new session that begins with the coordinator's conversation of another; its tasks stay with the origin."""
    origin = get(conn, session_id)
    new = create(
        conn,
        id=id,
        goal=origin.goal,
        cwd=origin.cwd,
        model=origin.model,
        options=origin.options,
        parent_id=origin.id,
        title=origin.title and f"{origin.title} (fork)",
    )
    for copied in (messages, steps):
        _copy_rows(conn, copied, origin.id, new.id)
    next_seq = select(agents_table.c.next_seq).where(agents_table.c.id == origin.id).scalar_subquery()
    conn.execute(update(agents_table).where(agents_table.c.id == new.id).values(next_seq=next_seq))
    events.add(conn, new.id, None, "session_forked", {"from": origin.id})
    return new


def _copy_rows(conn: Connection, copied: Any, agent_id: str, to: str) -> None:
    """Copy an agent's rows of one table; the numbers of steps are given anew."""
    names = [column.name for column in copied.c if not (copied is steps and column.name == "id")]
    columns = [literal(to) if name == "agent_id" else copied.c[name] for name in names]
    query = select(*columns).where(copied.c.agent_id == agent_id)
    conn.execute(insert(copied).from_select(names, query.order_by(*copied.primary_key.columns)))
