"""Transcripts: one row a message, in order, never rewritten; and the parts of a turn that is not finished.

1. `append` is one transaction: the fence is checked, messages get their `seq`, parts that they supersede go, deliveries
   that they hold are consumed. So a notification is consumed exactly when it is in the transcript.
2. A writer is fenced twice, by the session's owner and by the attempt that writes. Both are conditions of the very
   statement that writes: what it changed is looked at, and only where that is nothing the reason is asked for.
3. A message that is stored already is left as it is: storing twice after a doubtful end is safe.
4. A part is on disk before what it causes is done. A later state of the same part replaces the earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, bindparam, delete, insert, select, update

from tasks import leases, outbox, registry
from tasks.errors import NotFound
from tasks.hot import Hot, insert_all
from tasks.models import agents, messages, sessions
from tasks.models import steps as steps_table
from tasks.records import Attempt, MessageRecord, StepRecord

_INSERT = insert_all(messages)
# Plain equality, row by row: rows are few, and a list in a statement costs more than the statement.
_KNOWN = Hot(select(messages.c.seq).where(messages.c.agent_id == bindparam("agent"), messages.c.id == bindparam("message")))
_SESSION_FENCE = select(sessions.c.fence).where(sessions.c.id == bindparam("session")).scalar_subquery()
_OWNED = bindparam("fence", type_=Integer) == _SESSION_FENCE
_SEQ_TAKEN = (
    update(agents)
    .where(agents.c.id == bindparam("agent"), _OWNED)
    .values(next_seq=agents.c.next_seq + bindparam("count", type_=Integer))
    .returning(agents.c.next_seq)
)
_TAKE_SEQ = Hot(_SEQ_TAKEN)
_TAKE_SEQ_OF_RUN = Hot(_SEQ_TAKEN.where(registry.MAY_WRITE))
_DROP_STEPS = Hot(
    delete(steps_table).where(steps_table.c.agent_id == bindparam("agent"), steps_table.c.message_id == bindparam("message"))
)
_AGAIN = (
    update(steps_table)
    .where(
        steps_table.c.agent_id == bindparam("agent"),
        steps_table.c.message_id == bindparam("message"),
        steps_table.c.kind == bindparam("of_kind"),
        steps_table.c.part == bindparam("of_part"),
        _OWNED,
    )
    .values(content=bindparam("content"), at=bindparam("at"))
)
_STEP_AGAIN = Hot(_AGAIN)
_STEP_AGAIN_OF_RUN = Hot(_AGAIN.where(registry.MAY_WRITE))
_IS_STORED = (
    select(messages.c.seq).where(messages.c.agent_id == bindparam("agent"), messages.c.id == bindparam("message")).exists()
)
_PART = (
    ("agent_id", "agent"), ("message_id", "message"), ("kind", "of_kind"), ("part", "of_part"), ("content", "content"),
    ("model", "model"), ("at", "at"),
)  # fmt: skip


def _inserted(*guards: ColumnElement[bool]) -> Hot:
    """The insert of a part, of a message that is not stored yet."""
    row = select(*(bindparam(value, type_=steps_table.c[name].type) for name, value in _PART)).where(~_IS_STORED, *guards)
    return Hot(insert(steps_table).inline().from_select([name for name, _ in _PART], row, include_defaults=False))


_STEP = _inserted(_OWNED)
_STEP_OF_RUN = _inserted(_OWNED, registry.MAY_WRITE)


def append(
    conn: Connection,
    agent_id: str,
    rows: Sequence[MessageRecord],
    *,
    session_id: str,
    fence: int,
    run: Attempt | None = None,
    consumed: Sequence[str] = (),
) -> None:
    """Store `rows` at the end of the transcript; `consumed` are ids of the deliveries that the first of them holds. `run`
    is the one that writes; one that was killed still writes how it was interrupted. Raises `Fenced`, `NotFound`."""
    known = {row.id for row in rows if _KNOWN.number(conn, agent=agent_id, message=row.id) is not None}
    fresh = list({row.id: row for row in rows if row.id not in known}.values())
    if fresh:
        first = _take_seq(conn, agent_id, len(fresh), session_id, fence, run)
        for n, row in enumerate(fresh):
            _INSERT.run(conn, **_row(agent_id, first + n, row))
    else:
        _check(conn, session_id, fence, run)
    for row in rows:
        _DROP_STEPS.run(conn, agent=agent_id, message=row.id)
    if consumed:
        seq = _KNOWN.number(conn, agent=agent_id, message=rows[0].id) if rows else None
        outbox.consume(conn, agent_id, consumed, seq)


def _take_seq(conn: Connection, agent_id: str, count: int, session_id: str, fence: int, run: Attempt | None) -> int:
    """The first of `count` places in the transcript; the row is ours until the transaction ends."""
    statement = _TAKE_SEQ if run is None else _TAKE_SEQ_OF_RUN
    after = statement.number(conn, agent=agent_id, count=count, session=session_id, fence=fence, **_of(run))
    if after is None:
        _check(conn, session_id, fence, run)
        raise NotFound(f"no agent {agent_id}")
    return after - count


def _of(run: Attempt | None) -> dict[str, Any]:
    """The parameters of `registry.MAY_WRITE`."""
    return {} if run is None else {"task_id": run.task_id, "of_attempt": run.number}


def _check(conn: Connection, session_id: str, fence: int, run: Attempt | None) -> None:
    """Raise `Fenced` unless the owner, and the run, may write."""
    leases.check(conn, session_id, fence)
    if run is not None:
        registry.check_run(conn, run, or_killed=True)


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


def step(
    conn: Connection, agent_id: str, record: StepRecord, *, session_id: str, fence: int, run: Attempt | None = None
) -> None:
    """Store a part of an unfinished turn; of a message that is stored already, nothing. Raises `Fenced`."""
    again, first = (_STEP_AGAIN, _STEP) if run is None else (_STEP_AGAIN_OF_RUN, _STEP_OF_RUN)
    part: dict[str, Any] = {"agent": agent_id, "message": record.message_id, "of_kind": record.kind, "of_part": record.part}
    part |= {"content": record.content, "at": record.at, "session": session_id, "fence": fence} | _of(run)
    if not again.run(conn, **part).rowcount and not first.run(conn, **part, model=record.model).rowcount:
        _check(conn, session_id, fence, run)  # else the whole message is stored: nothing is to be added


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
