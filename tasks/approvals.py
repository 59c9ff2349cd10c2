"""Calls that wait for a person's word, and what the person said.

1. A row waits from the transaction that asks until the one that answers; the first answer counts, a later one is told
   which that was.
2. An approval is for one call, once: whoever goes on with it takes it (`take`), and no other call can.
3. A run that takes over asks again. A call of the same agent with the same tool and input finds the question that an
   earlier owner left, answered meanwhile or not, and makes it its own; nothing that was not approved ever runs.
4. What waits is what can still be answered: of an open session and, for a worker, of a task that has not ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, func, insert, or_, select, update

from tasks import events
from tasks.db import now_of
from tasks.errors import Ambiguous, NotFound
from tasks.ids import new_approval_id
from tasks.models import approvals as table
from tasks.models import sessions, tasks
from tasks.records import ApprovalRecord, ApprovalStatus, NewApproval, SessionStatus
from tasks.states import LIVE

OPEN = (ApprovalStatus.WAITING, ApprovalStatus.APPROVED, ApprovalStatus.DENIED)


def ask(conn: Connection, new: NewApproval) -> ApprovalRecord:
    """The question as it stands now: a new one, or the same of an earlier owner, perhaps with its answer."""
    if (earlier := _left_by_an_earlier_owner(conn, new)) is not None:
        mine = {"fence": new.fence, "tool_use_id": new.tool_use_id, "task_id": new.task_id}
        conn.execute(update(table).where(table.c.id == earlier.id).values(**mine))
        return get(conn, earlier.id)
    row = {name: getattr(new, name) for name in NewApproval.__slots__}
    id = _unused_id(conn)
    conn.execute(insert(table), row | {"id": id, "asked_at": now_of(conn), "status": ApprovalStatus.WAITING})
    events.add(conn, new.session_id, new.task_id, "approval_asked", {"id": id, "tool": new.tool})
    return get(conn, id)


def _left_by_an_earlier_owner(conn: Connection, new: NewApproval) -> ApprovalRecord | None:
    same = and_(
        table.c.session_id == new.session_id,
        table.c.agent_id == new.agent_id,
        table.c.tool == new.tool,
        table.c.digest == new.digest,
        table.c.fence < new.fence,
        table.c.status.in_(OPEN),
    )
    row = conn.execute(select(table).where(same).order_by(table.c.asked_at).limit(1)).first()
    return None if row is None else ApprovalRecord.from_row(row)


def _unused_id(conn: Connection) -> str:
    while _find(conn, id := new_approval_id()) is not None:
        pass
    return id


def answer(
    conn: Connection, id: str, *, approve: bool, by: str, note: str | None = None, rule: str | None = None
) -> tuple[ApprovalRecord, bool]:
    """Answer a question; the record as it stands then, and whether this was the answer (False: it had one, or does not
    wait any more). Raises `NotFound`."""
    record = get(conn, id)
    if all(id != other.id for other in waiting(conn, session_id=record.session_id)):
        return record, False
    status = ApprovalStatus.APPROVED if approve else ApprovalStatus.DENIED
    waits = and_(table.c.id == id, table.c.status == ApprovalStatus.WAITING)
    said = {"status": status, "answered_at": now_of(conn), "answered_by": by, "note": note, "rule": rule}
    first = conn.execute(update(table).where(waits).values(**said)).rowcount == 1
    record = get(conn, id)
    if first:
        events.add(conn, record.session_id, record.task_id, "approval_answered", {"id": id, "status": status, "by": by})
    return record, first


def take(conn: Connection, id: str, fence: int) -> bool:
    """Go on with an approved call; False if it is not this run's, or was taken already."""
    mine = and_(table.c.id == id, table.c.fence == fence, table.c.status == ApprovalStatus.APPROVED)
    return conn.execute(update(table).where(mine).values(status=ApprovalStatus.TAKEN)).rowcount == 1


def withdraw(conn: Connection, id: str, fence: int) -> bool:
    """The call waits no longer; False if it was answered, or a later owner asks it now."""
    waits = and_(table.c.id == id, table.c.fence == fence, table.c.status == ApprovalStatus.WAITING)
    return conn.execute(update(table).where(waits).values(status=ApprovalStatus.WITHDRAWN)).rowcount == 1


def waiting(conn: Connection, *, session_id: str | None = None) -> list[ApprovalRecord]:
    """What waits for a person, oldest first (rule 4)."""
    answerable = or_(table.c.task_id.is_(None), tasks.c.status.in_(sorted(LIVE)))
    query = (
        select(table)
        .join(sessions, sessions.c.id == table.c.session_id)
        .outerjoin(tasks, tasks.c.id == table.c.task_id)
        .where(table.c.status == ApprovalStatus.WAITING, sessions.c.status == SessionStatus.OPEN, answerable)
        .order_by(table.c.asked_at, table.c.id)
    )
    if session_id is not None:
        query = query.where(table.c.session_id == session_id)
    return [ApprovalRecord.from_row(row) for row in conn.execute(query)]


def open_calls(conn: Connection, agent_id: str) -> frozenset[str]:
    """The ids of the agent's tool calls that waited, or were answered, and never went on."""
    never_ran = and_(table.c.agent_id == agent_id, table.c.status.in_(OPEN))
    return frozenset(conn.execute(select(table.c.tool_use_id).where(never_ran)).scalars())


def granted(conn: Connection, session_id: str) -> list[str]:
    """The rules that a person gave this session with their answers, oldest first."""
    given = and_(table.c.session_id == session_id, table.c.rule.is_not(None))
    return list(dict.fromkeys(conn.execute(select(table.c.rule).where(given).order_by(table.c.answered_at)).scalars()))


def get(conn: Connection, id: str) -> ApprovalRecord:
    """Raises `NotFound`."""
    if (record := _find(conn, id)) is None:
        raise NotFound(f"nothing asks under {id!r}")
    return record


def _find(conn: Connection, id: str) -> ApprovalRecord | None:
    row = conn.execute(select(table).where(table.c.id == id)).first()
    return None if row is None else ApprovalRecord.from_row(row)


def resolve(conn: Connection, ref: str) -> list[ApprovalRecord]:
    """The question with this id, or whose id alone begins so; or all that wait of the task or session `ref` names so.
    Raises `NotFound`, `Ambiguous`."""
    if not ref:
        raise NotFound("nothing asks under ''")
    if (exact := _find(conn, ref)) is not None:
        return [exact]
    waits = waiting(conn)
    of_owner = [record for record in waits if ref in (record.task_id, record.agent_id, record.session_id)]
    if of_owner:
        return of_owner
    begins = func.substr(table.c.id, 1, len(ref)) == ref
    found = [ApprovalRecord.from_row(row) for row in conn.execute(select(table).where(begins).order_by(table.c.asked_at))]
    if len(found) > 1:
        raise Ambiguous(ref, [record.id for record in found])
    if not found:
        raise NotFound(f"nothing asks under {ref!r}")
    return found


def by_id(conn: Connection, ids: Sequence[str]) -> list[ApprovalRecord]:
    """The questions with these ids, as they stand now, in no order; one that is gone is left out."""
    rows = conn.execute(select(table).where(table.c.id.in_(ids))) if ids else ()
    return [ApprovalRecord.from_row(row) for row in rows]
