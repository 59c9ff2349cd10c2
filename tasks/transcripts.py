"""Transcripts: one row a message, in order, never rewritten; and the parts of a turn that is not finished.

1. `append` is one transaction: the fence is checked, messages get their `seq`, parts that they supersede go, deliveries
   that they hold are consumed. So a notification is consumed exactly when it is in the transcript.
2. A message that is stored already is left as it is: storing twice after a doubtful end is safe.
3. A part is on disk before what it causes is done. A later state of the same part replaces the earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from tasks import leases, outbox
from tasks.errors import NotFound
from tasks.models import agents, messages
from tasks.models import steps as steps_table
from tasks.records import MessageRecord, StepRecord

_INSERT = insert(messages)
_TAKE_SEQ = (
    update(agents)
    .where(agents.c.id == bindparam("agent"))
    .values(next_seq=agents.c.next_seq + bindparam("count"))
    .returning(agents.c.next_seq)
)
_KNOWN = select(messages.c.id).where(
    messages.c.agent_id == bindparam("agent"), messages.c.id.in_(bindparam("ids", expanding=True))
)
_DROP_STEPS = delete(steps_table).where(
    steps_table.c.agent_id == bindparam("agent"), steps_table.c.message_id.in_(bindparam("ids", expanding=True))
)
_STEP_AGAIN = (
    update(steps_table)
    .where(
        steps_table.c.agent_id == bindparam("agent"),
        steps_table.c.message_id == bindparam("message"),
        steps_table.c.kind == bindparam("of_kind"),
        steps_table.c.part == bindparam("of_part"),
    )
    .values(content=bindparam("content"), at=bindparam("at"))
)
_STEP = insert(steps_table).inline()


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
    leases.check(conn, session_id, fence)
    ids = [row.id for row in rows]
    known = set(conn.scalars(_KNOWN, {"agent": agent_id, "ids": ids})) if ids else set()
    fresh = list({row.id: row for row in rows if row.id not in known}.values())
    if fresh:
        first = _take_seq(conn, agent_id, len(fresh))
        conn.execute(_INSERT, [_row(agent_id, first + n, row) for n, row in enumerate(fresh)])
    if ids:
        conn.execute(_DROP_STEPS, {"agent": agent_id, "ids": ids})
    if consumed:
        outbox.consume(conn, agent_id, consumed, _seq_of(conn, agent_id, ids[0]) if ids else None)


def _take_seq(conn: Connection, agent_id: str, count: int) -> int:
    after = conn.scalar(_TAKE_SEQ, {"agent": agent_id, "count": count})
    if after is None:
        raise NotFound(f"no agent {agent_id}")
    return int(after) - count


def _row(agent_id: str, seq: int, record: MessageRecord) -> dict[str, object]:
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


def _seq_of(conn: Connection, agent_id: str, message_id: str) -> int | None:
    return conn.scalar(select(messages.c.seq).where(messages.c.agent_id == agent_id, messages.c.id == message_id))


def step(conn: Connection, agent_id: str, record: StepRecord, *, session_id: str, fence: int) -> None:
    """Store a part of an unfinished turn; of a message that is stored already, nothing. Raises `Fenced`."""
    leases.check(conn, session_id, fence)
    if conn.scalar(_KNOWN, {"agent": agent_id, "ids": [record.message_id]}) is not None:
        return
    part = {"agent": agent_id, "message": record.message_id, "of_kind": record.kind, "of_part": record.part}
    if conn.execute(_STEP_AGAIN, part | {"content": record.content, "at": record.at}).rowcount:
        return
    row = {name: getattr(record, name) for name in ("message_id", "kind", "part", "content", "model", "at")}
    conn.execute(_STEP, row | {"agent_id": agent_id})


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
    columns = (steps_table.c.kind, steps_table.c.message_id, steps_table.c.content, steps_table.c.part, steps_table.c.model, steps_table.c.at)
    query = select(*columns).where(steps_table.c.agent_id == agent_id).order_by(steps_table.c.id)
    return [StepRecord(**row._mapping) for row in conn.execute(query)]
