"""Calls that wait for a person's word, and what the person said.

1. A row waits from the transaction that asks until the one that answers; the first answer counts, a later one is told
   which that was.
2. An approval is for one call, once: whoever goes on with it takes it (`take`), and no other call can.
3. A run that takes over asks again. A call of the same agent with the same tool and input finds the question that an
   earlier owner left, answered meanwhile or not, and makes it its own; nothing that was not approved ever runs.
4. What waits is what can still be answered: of an open session and, for a worker, of a task that has not ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict

from tasks import events
from tasks.connection import Connection, among
from tasks.db import now_of
from tasks.errors import Ambiguous, NotFound
from tasks.ids import new_approval_id
from tasks.records import ApprovalRecord, ApprovalStatus, NewApproval, SessionStatus
from tasks.rows import APPROVAL
from tasks.states import LIVE

OPEN = (ApprovalStatus.WAITING, ApprovalStatus.APPROVED, ApprovalStatus.DENIED)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


_SELECT = f"SELECT {APPROVAL.columns} FROM approvals"
_OPEN = f"status IN ({_listed(OPEN)})"
_EARLIER = (
    f"{_SELECT} WHERE session_id = :session_id AND agent_id = :agent_id AND tool = :tool AND digest = :digest "
    f"AND fence < :fence AND {_OPEN} ORDER BY asked_at LIMIT 1"
)
_WAITING = (
    f"SELECT {APPROVAL.of('approvals')} FROM approvals JOIN sessions ON sessions.id = approvals.session_id "
    f"LEFT JOIN tasks ON tasks.id = approvals.task_id WHERE approvals.status = '{ApprovalStatus.WAITING}' "
    f"AND sessions.status = '{SessionStatus.OPEN}' "
    f"AND (approvals.task_id IS NULL OR tasks.status IN ({_listed(sorted(LIVE))}))"
)
_OLDEST_FIRST = " ORDER BY approvals.asked_at, approvals.id"
_OPEN_CALLS = f"SELECT tool_use_id FROM approvals WHERE agent_id = :agent_id AND {_OPEN}"
_GRANTED = "SELECT rule FROM approvals WHERE session_id = :session_id AND rule IS NOT NULL ORDER BY answered_at"


def ask(conn: Connection, new: NewApproval) -> ApprovalRecord:
    """The question as it stands now: a new one, or the same of an earlier owner, perhaps with its answer."""
    if (earlier := _left_by_an_earlier_owner(conn, new)) is not None:
        mine = {"fence": new.fence, "tool_use_id": new.tool_use_id, "task_id": new.task_id}
        conn.set("approvals", dict(mine), "id = :id", id=earlier.id)
        return get(conn, earlier.id)
    row = asdict(new)
    id = _unused_id(conn)
    conn.insert("approvals", row | {"id": id, "asked_at": now_of(conn), "status": ApprovalStatus.WAITING})
    events.add(conn, new.session_id, new.task_id, "approval_asked", {"id": id, "tool": new.tool})
    return get(conn, id)


def _left_by_an_earlier_owner(conn: Connection, new: NewApproval) -> ApprovalRecord | None:
    same = {name: getattr(new, name) for name in ("session_id", "agent_id", "tool", "digest", "fence")}
    row = conn.row(_EARLIER, **same)
    return None if row is None else APPROVAL(row)


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
    said = {"status": status, "answered_at": now_of(conn), "answered_by": by, "note": note, "rule": rule}
    first = conn.set("approvals", said, f"id = :id AND status = '{ApprovalStatus.WAITING}'", id=id) == 1
    record = get(conn, id)
    if first:
        events.add(conn, record.session_id, record.task_id, "approval_answered", {"id": id, "status": status, "by": by})
    return record, first


def take(conn: Connection, id: str, fence: int) -> bool:
    """Go on with an approved call; False if it is not this run's, or was taken already."""
    return _settle(conn, id, fence, ApprovalStatus.APPROVED, ApprovalStatus.TAKEN)


def withdraw(conn: Connection, id: str, fence: int) -> bool:
    """The call waits no longer; False if it was answered, or a later owner asks it now."""
    return _settle(conn, id, fence, ApprovalStatus.WAITING, ApprovalStatus.WITHDRAWN)


def _settle(conn: Connection, id: str, fence: int, before: ApprovalStatus, after: ApprovalStatus) -> bool:
    mine = "id = :id AND fence = :of_fence AND status = :before"
    return conn.set("approvals", {"status": after}, mine, id=id, of_fence=fence, before=before) == 1


def waiting(conn: Connection, *, session_id: str | None = None) -> list[ApprovalRecord]:
    """What waits for a person, oldest first (rule 4)."""
    if session_id is None:
        return [APPROVAL(row) for row in conn.rows(f"{_WAITING}{_OLDEST_FIRST}")]
    within = f"{_WAITING} AND approvals.session_id = :session_id{_OLDEST_FIRST}"
    return [APPROVAL(row) for row in conn.rows(within, session_id=session_id)]


def open_calls(conn: Connection, agent_id: str) -> frozenset[str]:
    """The ids of the agent's tool calls that waited, or were answered, and never went on."""
    return frozenset(id for (id,) in conn.rows(_OPEN_CALLS, agent_id=agent_id))


def granted(conn: Connection, session_id: str) -> list[str]:
    """The rules that a person gave this session with their answers, oldest first."""
    return list(dict.fromkeys(rule for (rule,) in conn.rows(_GRANTED, session_id=session_id)))


def get(conn: Connection, id: str) -> ApprovalRecord:
    """Raises `NotFound`."""
    if (record := _find(conn, id)) is None:
        raise NotFound(f"nothing asks under {id!r}")
    return record


def _find(conn: Connection, id: str) -> ApprovalRecord | None:
    row = conn.row(f"{_SELECT} WHERE id = :id", id=id)
    return None if row is None else APPROVAL(row)


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
    found = [APPROVAL(row) for row in conn.rows(f"{_SELECT} WHERE {conn.begins('id')} ORDER BY asked_at", ref=ref)]
    if len(found) > 1:
        raise Ambiguous(ref, [record.id for record in found])
    if not found:
        raise NotFound(f"nothing asks under {ref!r}")
    return found


def by_id(conn: Connection, ids: Sequence[str]) -> list[ApprovalRecord]:
    """The questions with these ids, as they stand now, in no order; one that is gone is left out."""
    named, values = among("id", ids)
    return [APPROVAL(row) for row in conn.rows(f"{_SELECT} WHERE {named}", **values)]
