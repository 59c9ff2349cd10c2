"""Transcripts: one row a message, in order, never rewritten; and the parts of a turn that is not finished.

1. `append` is one transaction: the fence is checked, messages get their `seq`, parts that they supersede go, deliveries
   that they hold are consumed. So a notification is consumed exactly when it is in the transcript.
2. A message that is stored already is left as it is: storing twice after a doubtful end is safe.
3. A part is on disk before what it causes is done. A later state of the same part replaces the earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, delete, select, update

from tasks import leases, outbox
from tasks.errors import NotFound
from tasks.hot import Hot, insert_all
from tasks.models import agents, messages, sessions
from tasks.models import steps as steps_table
from tasks.records import MessageRecord, StepRecord

_INSERT = insert_all(messages)
# Plain equality, row by row: rows are few, and a list in a statement costs more than the statement.
_KNOWN = Hot(select(messages.c.seq).where(messages.c.agent_id == bindparam("agent"), messages.c.id == bindparam("message")))
_SESSION_FENCE = select(sessions.c.fence).where(sessions.c.id == bindparam("session")).scalar_subquery()
_TAKE_SEQ = Hot(
    update(agents)
    .where(agents.c.id == bindparam("agent"), bindparam("fence", type_=Integer) == _SESSION_FENCE)
    .values(next_seq=agents.c.next_seq + bindparam("count", type_=Integer))
    .returning(agents.c.next_seq)
)
_DROP_STEPS = Hot(
    delete(steps_table).where(steps_table.c.agent_id == bindparam("agent"), steps_table.c.message_id == bindparam("message"))
)
_STEP_AGAIN = Hot(
    update(steps_table)
    .where(
        steps_table.c.agent_id == bindparam("agent"),
        steps_table.c.message_id == bindparam("message"),
        steps_table.c.kind == bindparam("of_kind"),
        steps_table.c.part == bindparam("of_part"),
    )
    .values(content=bindparam("content"), at=bindparam("at"))
)
_STEP = insert_all(steps_table, without="id")


def append(
    conn: Connection,
    agent_id: str,
    rows: Sequence[MessageRecord],
    *,
    session_id: str,
    fence: int,
    consumed: Sequence[str] = (),
) -> None:
    """Store `rows` at the end of the transcript; `consumed` are ids of the deliveries that the first of them holds.
    Raises `Fenced`, `NotFound`."""
    known = {row.id for row in rows if _KNOWN.number(conn, agent=agent_id, message=row.id) is not None}
    fresh = list({row.id: row for row in rows if row.id not in known}.values())
    if fresh:
        first = _take_seq(conn, agent_id, len(fresh), session_id, fence)
        for n, row in enumerate(fresh):
            _INSERT.run(conn, **_row(agent_id, first + n, row))
    else:
        leases.check(conn, session_id, fence)
    for row in rows:
        _DROP_STEPS.run(conn, agent=agent_id, message=row.id)
    if consumed:
        seq = _KNOWN.number(conn, agent=agent_id, message=rows[0].id) if rows else None
        outbox.consume(conn, agent_id, consumed, seq)


def _take_seq(conn: Connection, agent_id: str, count: int, session_id: str, fence: int) -> int:
    """The first of `count` places in the transcript; the row is ours until the transaction ends."""
    after = _TAKE_SEQ.number(conn, agent=agent_id, count=count, session=session_id, fence=fence)
    if after is None:
        leases.check(conn, session_id, fence)
        raise NotFound(f"no agent {agent_id}")
    return after - count


def _row(agent_id: str, seq: int, record: MessageRecord) -> dict[str, Any]:
    return {
        "agent_id": agent_id,
        "seq": seq,
        "id": record.id,
        "task_id": record.task_id,
        "role": record.role,
        "kind": record.kind,
        "meta": record.meta,
        "content": record.content,
        "extra": record.extra,
        "at": record.at,
    }


def step(conn: Connection, agent_id: str, record: StepRecord, *, session_id: str, fence: int) -> None:
    """Store a part of an unfinished turn; of a message that is stored already, nothing. Raises `Fenced`."""
    leases.check(conn, session_id, fence)
    if _KNOWN.number(conn, agent=agent_id, message=record.message_id) is not None:
        return
    part = {"agent": agent_id, "message": record.message_id, "of_kind": record.kind, "of_part": record.part}
    if _STEP_AGAIN.run(conn, **part, content=record.content, at=record.at).rowcount:
        return
    row = {name: getattr(record, name) for name in ("message_id", "kind", "part", "content", "model", "at")}
    _STEP.run(conn, **row, agent_id=agent_id)


def load(conn: Connection, agent_id: str, from_seq: int = 0, *, limit: int | None = None) -> list[MessageRecord]:
    """Messages from `from_seq` on, in order."""
    mine = (messages.c.agent_id == agent_id) & (messages.c.seq >= from_seq)
    query = select(messages).where(mine).order_by(messages.c.seq).limit(limit)
    return [MessageRecord(**row._mapping) for row in conn.execute(query)]


def tail(conn: Connection, agent_id: str, count: int) -> list[MessageRecord]:
    """The last `count` messages, in order."""
    query = select(messages).where(messages.c.agent_id == agent_id).order_by(messages.c.seq.desc()).limit(count)
    return [MessageRecord(**row._mapping) for row in reversed(conn.execute(query).all())]


def steps(conn: Connection, agent_id: str) -> list[StepRecord]:
    """The parts of the unfinished turn, oldest first."""
    columns = (
        steps_table.c.kind,
        steps_table.c.message_id,
        steps_table.c.content,
        steps_table.c.part,
        steps_table.c.model,
        steps_table.c.at,
    )
    query = select(*columns).where(steps_table.c.agent_id == agent_id).order_by(steps_table.c.id)
    return [StepRecord(**row._mapping) for row in conn.execute(query)]
