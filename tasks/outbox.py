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

from tasks import notifications
from tasks.connection import Connection, among
from tasks.db import now_of
from tasks.records import Delivery, DeliveryKind, DeliveryStatus, TaskRecord
from tasks.rows import DELIVERY, TASK

_WAITS = f"agent_id = :agent_id AND status = '{DeliveryStatus.WAITING}'"
_ANY_WAITING = f"SELECT position FROM deliveries WHERE {_WAITS} LIMIT 1"
_WAITING = f"SELECT {DELIVERY.columns} FROM deliveries WHERE {_WAITS} ORDER BY position"
_REDIRECT = f"UPDATE deliveries SET agent_id = :to WHERE {_WAITS} AND kind = '{DeliveryKind.NOTIFICATION}'"


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
    conn.insert("deliveries", row | values | {"status": DeliveryStatus.WAITING, "created_at": now_of(conn)})


def waiting(conn: Connection, agent_id: str) -> list[Delivery]:
    """What the agent must read, oldest first."""
    return _records(conn, conn.rows(_WAITING, agent_id=agent_id))


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
    wanted = {"session_id": session_id, "agent_id": agent_id, "kind": kind, "status": status}
    known: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    fits = [f"{name} = :{name}" for name in known]
    if ids is not None:
        named, values = among("id", ids)
        fits, known = [*fits, named], known | values
    query = f"SELECT {DELIVERY.columns} FROM deliveries WHERE {' AND '.join(fits) or '1 = 1'} ORDER BY position"
    return _records(conn, conn.rows(query, **known))


def consume(conn: Connection, agent_id: str, ids: Sequence[str], seq: int | None) -> None:
    """Mark deliveries of `agent_id` as held by its message `seq`; what was settled before stays as it was."""
    named, values = among("id", ids)
    settled = {"status": DeliveryStatus.CONSUMED, "consumed_seq": seq, "settled_at": now_of(conn)}
    mine = f"{named} AND agent_id = :agent_id AND status = '{DeliveryStatus.WAITING}'"
    conn.set("deliveries", settled, mine, agent_id=agent_id, **values)
    ended = f"SELECT task_id FROM deliveries WHERE {named} AND kind = '{DeliveryKind.NOTIFICATION}'"
    conn.set("tasks", {"notified": True}, f"id IN ({ended})", **values)


def return_undelivered(conn: Connection, agent_id: str, why: str) -> list[Delivery]:
    """Take back the messages that wait for an agent; the answer lists them, with `why` in them."""
    found = [d.id for d in waiting(conn, agent_id) if d.kind is DeliveryKind.MESSAGE]
    if not found:
        return []
    settled = {"status": DeliveryStatus.UNDELIVERED, "why": why, "settled_at": now_of(conn)}
    named, values = among("id", found)
    conn.set("deliveries", settled, named, **values)
    return deliveries(conn, ids=found)


def redirect_notifications(conn: Connection, agent_id: str, to: str) -> None:
    """Give the notifications that wait for an agent to another: its own runs are over."""
    if conn.row(_ANY_WAITING, agent_id=agent_id) is not None:
        conn.execute(_REDIRECT, agent_id=agent_id, to=to)


def _records(conn: Connection, rows: Sequence[Sequence[object]]) -> list[Delivery]:
    found = [DELIVERY(row) for row in rows]
    ended = {row["task_id"] for row in found if row["kind"] == DeliveryKind.NOTIFICATION}
    named, values = among("id", ended)
    by_id = (
        {row[0]: TASK(row) for row in conn.rows(f"SELECT {TASK.columns} FROM tasks WHERE {named}", **values)} if ended else {}
    )
    return [_record(row, by_id.get(row["task_id"])) for row in found]


def _record(row: dict[str, Any], task: TaskRecord | None) -> Delivery:
    body = notifications.render(notifications.from_task(task)) if task is not None else row["body"] or ""
    return Delivery(**(row | {"body": body}))
