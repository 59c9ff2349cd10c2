"""What agents must still read: notifications of ended tasks, and messages sent to them.

1. A delivery waits from the transaction that made it until the transaction that stores the recipient's message holding
   it (`transcripts.append(consumed=…)`): each exactly once, through crash, compaction and resume.
2. A notification's text is made from its task when it is read, so that it can never tell of another task, and a partial
   result that came after a kill is in it.
3. What can never be read goes back as undelivered, with the reason; a notification is given to the coordinator instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from tasks import notifications
from tasks.db import now_of
from tasks.hot import Hot, insert_all
from tasks.models import deliveries as table
from tasks.models import tasks
from tasks.records import Delivery, DeliveryKind, DeliveryStatus, TaskRecord

_INSERT = insert_all(table, without="position")
_WAITING = (
    select(table)
    .where(table.c.agent_id == bindparam("agent_id"), table.c.status == DeliveryStatus.WAITING)
    .order_by(table.c.position)
)
_ANY_WAITING = Hot(
    select(table.c.position).where(table.c.agent_id == bindparam("agent_id"), table.c.status == DeliveryStatus.WAITING).limit(1)
)


def send(conn: Connection, *, session_id: str, agent_id: str, body: str, sender: str | None) -> Delivery:
    """Queue a message for an agent. Whether anybody will read it is the caller's to know (`agents.resolve`)."""
    id = f"m{uuid.uuid4().hex}"
    _insert(conn, id=id, kind=DeliveryKind.MESSAGE, session_id=session_id, agent_id=agent_id, body=body, sender=sender)
    return deliveries(conn, ids=[id])[0]


def notify(conn: Connection, task: TaskRecord, agent_id: str) -> None:
    """Queue the notification of `task`'s end for an agent. Part of the transaction that ends the task."""
    _insert(
        conn,
        id=notification_id(task.id),
        kind=DeliveryKind.NOTIFICATION,
        session_id=task.session_id,
        agent_id=agent_id,
        task_id=task.id,
        sender=task.agent_id,
    )


def notification_id(task_id: str) -> str:
    return f"n{task_id}"


def _insert(conn: Connection, **values: object) -> None:
    row = {"task_id": None, "sender": None, "body": None, "why": None, "consumed_seq": None, "settled_at": None}
    _INSERT.run(conn, **(row | values | {"status": DeliveryStatus.WAITING, "created_at": now_of(conn)}))


def waiting(conn: Connection, agent_id: str) -> list[Delivery]:
    """What the agent must read, oldest first."""
    if _ANY_WAITING.number(conn, agent_id=agent_id) is None:
        return []
    return _records(conn, conn.execute(_WAITING, {"agent_id": agent_id}).all())


def deliveries(
    conn: Connection,
    *,
    session_id: str | None = None,
    agent_id: str | None = None,
    kind: DeliveryKind | None = None,
    status: DeliveryStatus | None = None,
    ids: Sequence[str] | None = None,
) -> list[Delivery]:
    """All deliveries that fit, oldest first."""
    query = select(table).order_by(table.c.position)
    wanted = {"session_id": session_id, "agent_id": agent_id, "kind": kind, "status": status}
    for column, value in wanted.items():
        if value is not None:
            query = query.where(table.c[column] == value)
    if ids is not None:
        query = query.where(table.c.id.in_(ids))
    return _records(conn, conn.execute(query).all())


def consume(conn: Connection, agent_id: str, ids: Sequence[str], seq: int | None) -> None:
    """Mark deliveries of `agent_id` as held by its message `seq`; what was settled before stays as it was."""
    mine = (table.c.id.in_(ids)) & (table.c.agent_id == agent_id) & (table.c.status == DeliveryStatus.WAITING)
    settled = {"status": DeliveryStatus.CONSUMED, "consumed_seq": seq, "settled_at": now_of(conn)}
    conn.execute(update(table).where(mine).values(**settled))
    ended = select(table.c.task_id).where(table.c.id.in_(ids), table.c.kind == DeliveryKind.NOTIFICATION)
    conn.execute(update(tasks).where(tasks.c.id.in_(ended)).values(notified=True))


def return_undelivered(conn: Connection, agent_id: str, why: str) -> list[Delivery]:
    """Take back the messages that wait for an agent; the answer lists them, with `why` in them."""
    found = [d.id for d in waiting(conn, agent_id) if d.kind is DeliveryKind.MESSAGE]
    if not found:
        return []
    settled = {"status": DeliveryStatus.UNDELIVERED, "why": why, "settled_at": now_of(conn)}
    conn.execute(update(table).where(table.c.id.in_(found)).values(**settled))
    return deliveries(conn, ids=found)


def redirect_notifications(conn: Connection, agent_id: str, to: str) -> None:
    """Give the notifications that wait for an agent to another: its own runs are over."""
    if _ANY_WAITING.number(conn, agent_id=agent_id) is None:
        return
    mine = (table.c.agent_id == agent_id) & (table.c.status == DeliveryStatus.WAITING)
    conn.execute(update(table).where(mine, table.c.kind == DeliveryKind.NOTIFICATION).values(agent_id=to))


def _records(conn: Connection, rows: Sequence[Sequence[object]]) -> list[Delivery]:
    found = [dict(zip(table.c.keys(), row, strict=True)) for row in rows]
    ended = {row["task_id"] for row in found if row["kind"] == DeliveryKind.NOTIFICATION}
    query = select(tasks).where(tasks.c.id.in_(ended))
    by_id = {row[0]: TaskRecord.from_row(row) for row in conn.execute(query)} if ended else {}
    return [_record(row, by_id.get(row["task_id"])) for row in found]


def _record(row: dict[str, Any], task: TaskRecord | None) -> Delivery:
    kind, status = DeliveryKind(row.pop("kind")), DeliveryStatus(row.pop("status"))
    body = notifications.render(notifications.from_task(task)) if task is not None else row["body"] or ""
    return Delivery(kind=kind, status=status, **(row | {"body": body}))
