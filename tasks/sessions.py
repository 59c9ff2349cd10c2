"""Sessions: one coordinator conversation with its tasks. Ownership is in `leases.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks import agents, events, leases, outbox, registry
from tasks.connection import Connection
from tasks.db import now_of
from tasks.errors import Ambiguous, Exists, NotFound, Owned
from tasks.ids import new_session_id
from tasks.records import AgentRecord, SessionRecord, SessionStatus
from tasks.rows import SESSION

_SELECT = f"SELECT {SESSION.columns} FROM sessions"
_BY_ID = f"{_SELECT} WHERE id = :id"
# What a fork takes along: the whole conversation, the parts of its last turn (their numbers are given anew), its next place.
_COPIES = (
    "INSERT INTO messages (agent_id, seq, id, task_id, role, kind, meta, content, extra, at) "
    "SELECT :new, seq, id, task_id, role, kind, meta, content, extra, at FROM messages WHERE agent_id = :origin ORDER BY seq",
    "INSERT INTO steps (agent_id, message_id, kind, part, content, model, at) "
    "SELECT :new, message_id, kind, part, content, model, at FROM steps WHERE agent_id = :origin ORDER BY id",
    "UPDATE agents SET next_seq = (SELECT a.next_seq FROM agents a WHERE a.id = :origin) WHERE id = :new",
)


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
    """A new open session that nobody owns yet, with its coordinator's agent. `id` None draws one. Raises `Exists`."""
    if id is not None and find(conn, id) is not None:
        raise Exists(f"there is a session {id} already")
    now = now_of(conn)
    session_id = id or _unused_id(conn)
    row = {"parent_id": parent_id, "goal": goal, "cwd": cwd, "model": model, "options": options, "title": title}
    stamp = {"status": SessionStatus.OPEN, "created_at": now, "updated_at": now, "fence": 0}
    conn.insert("sessions", row | stamp | {"id": session_id})
    agents.create(conn, AgentRecord(id=session_id, session_id=session_id, model=model, cwd=cwd, is_coordinator=True))
    events.add(conn, session_id, None, "session_created", {"goal": goal})
    return get(conn, session_id)


def _unused_id(conn: Connection) -> str:
    while find(conn, id := new_session_id()) is not None:
        pass
    return id


def find(conn: Connection, session_id: str) -> SessionRecord | None:
    row = conn.row(_BY_ID, id=session_id)
    return None if row is None else SESSION(row)


def get(conn: Connection, session_id: str) -> SessionRecord:
    """Raises `NotFound`."""
    if (session := find(conn, session_id)) is None:
        raise NotFound(f"no session {session_id}")
    return session


def resolve(conn: Connection, ref: str) -> SessionRecord:
    """The session with this id, else with this title, else whose id alone begins so. Raises `NotFound`, `Ambiguous`."""
    for fits in ("id = :ref", "title = :ref", conn.begins("id")) if ref else ():
        found = [SESSION(row) for row in conn.rows(f"{_SELECT} WHERE {fits} ORDER BY created_at", ref=ref)]
        if len(found) > 1:
            raise Ambiguous(ref, [session.id for session in found])
        if found:
            return found[0]
    raise NotFound(f"no session {ref!r}")


def list_sessions(conn: Connection, *, status: SessionStatus | None = None, limit: int | None = None) -> list[SessionRecord]:
    """Sessions, newest first."""
    known = {name: value for name, value in (("status", status), ("limit", limit)) if value is not None}
    query = f"{_SELECT}{' WHERE status = :status' if status is not None else ''} ORDER BY created_at DESC, id"
    return [SESSION(row) for row in conn.rows(f"{query}{' LIMIT :limit' if limit is not None else ''}", **known)]


def update_details(
    conn: Connection,
    session_id: str,
    *,
    title: str | None = None,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    cwd: str | None = None,
) -> None:
    """Change what a session is called, runs with or stands in; None leaves a field as it is. It also counts as a sign of use."""
    given = {"title": title, "model": model, "options": options, "cwd": cwd}
    known = {name: value for name, value in given.items() if value is not None}
    conn.set("sessions", known | {"updated_at": now_of(conn)}, "id = :session_id", session_id=session_id)


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
    conn.set("sessions", ended, "id = :session_id", session_id=session_id)
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
    if conn.set("sessions", again, f"id = :session_id AND status = '{SessionStatus.ENDED}'", session_id=session_id):
        events.add(conn, session_id, None, "session_reopened")


def owner_gone(session: SessionRecord, now: float) -> bool:
    """Whether nobody drives the session any more; see `leases.is_gone`."""
    return leases.is_gone(session.owner, session.lease_expires_at, now, leases.this_host())


def remove(conn: Connection, session_id: str) -> None:
    """Delete a session with all that belongs to it. Raises `NotFound`, `Owned` while a process drives it."""
    session = get(conn, session_id)
    if not owner_gone(session, now_of(conn)):
        raise Owned(session_id, session.owner)
    conn.execute("DELETE FROM sessions WHERE id = :id", id=session_id)


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
    for statement in _COPIES:
        conn.execute(statement, new=new.id, origin=origin.id)
    events.add(conn, new.id, None, "session_forked", {"from": origin.id})
    return new
