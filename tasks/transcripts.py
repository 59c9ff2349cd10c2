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

from tasks import leases, outbox, registry
from tasks.connection import Connection
from tasks.errors import NotFound
from tasks.records import Attempt, MessageRecord, StepRecord
from tasks.rows import MESSAGE, STEP

# Plain equality, row by row: rows are few, and a list in a statement costs more than the statement.
_KNOWN = "SELECT seq FROM messages WHERE agent_id = :agent AND id = :message"
_OWNED = ":fence = (SELECT fence FROM sessions WHERE id = :session)"
_TAKE_SEQ = f"UPDATE agents SET next_seq = next_seq + :count WHERE id = :agent AND {_OWNED}"
_TAKEN = " RETURNING next_seq"
_DROP_STEPS = "DELETE FROM steps WHERE agent_id = :agent AND message_id = :message"
_STEP_AGAIN = (
    "UPDATE steps SET content = :content, at = :at "
    f"WHERE agent_id = :agent AND message_id = :message AND kind = :of_kind AND part = :of_part AND {_OWNED}"
)
# The insert of a part, of a message that is not stored yet.
_STEP = (
    "INSERT INTO steps (agent_id, message_id, kind, part, content, model, at) "
    "SELECT :agent, :message, :of_kind, :of_part, :content, :model, :at "
    f"WHERE NOT EXISTS ({_KNOWN}) AND {_OWNED}"
)
# A run's writes: the same under the condition that it may write.
_OF_RUN = f" AND EXISTS ({registry.MAY_WRITE})"
_LOAD = f"SELECT {MESSAGE.columns} FROM messages WHERE agent_id = :agent AND seq >= :from_seq ORDER BY seq"
_TAIL = f"SELECT {MESSAGE.columns} FROM messages WHERE agent_id = :agent ORDER BY seq DESC LIMIT :limit"
_STEPS = f"SELECT {STEP.columns} FROM steps WHERE agent_id = :agent ORDER BY id"


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
    known = {row.id for row in rows if conn.row(_KNOWN, agent=agent_id, message=row.id) is not None}
    fresh = list({row.id: row for row in rows if row.id not in known}.values())
    if fresh:
        first = _take_seq(conn, agent_id, len(fresh), session_id, fence, run)
        for n, row in enumerate(fresh):
            conn.insert("messages", _row(agent_id, first + n, row))
    else:
        _check(conn, session_id, fence, run)
    for row in rows:
        conn.execute(_DROP_STEPS, agent=agent_id, message=row.id)
    if consumed:
        seq = conn.value(_KNOWN, agent=agent_id, message=rows[0].id) if rows else None
        outbox.consume(conn, agent_id, consumed, seq)


def _take_seq(conn: Connection, agent_id: str, count: int, session_id: str, fence: int, run: Attempt | None) -> int:
    """The first of `count` places in the transcript; the row is ours until the transaction ends."""
    statement = f"{_TAKE_SEQ}{_TAKEN}" if run is None else f"{_TAKE_SEQ}{_OF_RUN}{_TAKEN}"
    after = conn.value(statement, agent=agent_id, count=count, session=session_id, fence=fence, **_of(run))
    if after is None:
        _check(conn, session_id, fence, run)
        raise NotFound(f"no agent {agent_id}")
    return int(after) - count


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
    guard = "" if run is None else _OF_RUN
    part: dict[str, Any] = {"agent": agent_id, "message": record.message_id, "of_kind": record.kind, "of_part": record.part}
    part |= {"content": record.content, "at": record.at, "session": session_id, "fence": fence} | _of(run)
    if not conn.changed(f"{_STEP_AGAIN}{guard}", **part) and not conn.changed(f"{_STEP}{guard}", **part, model=record.model):
        _check(conn, session_id, fence, run)  # else the whole message is stored: nothing is to be added


def load(conn: Connection, agent_id: str, from_seq: int = 0, *, limit: int | None = None) -> list[MessageRecord]:
    """Messages from `from_seq` on, in order."""
    if limit is None:
        return [MESSAGE(row) for row in conn.rows(_LOAD, agent=agent_id, from_seq=from_seq)]
    return [MESSAGE(row) for row in conn.rows(f"{_LOAD} LIMIT :limit", agent=agent_id, from_seq=from_seq, limit=limit)]


def tail(conn: Connection, agent_id: str, count: int) -> list[MessageRecord]:
    """The last `count` messages, in order."""
    return [MESSAGE(row) for row in reversed(conn.rows(_TAIL, agent=agent_id, limit=count))]


def steps(conn: Connection, agent_id: str) -> list[StepRecord]:
    """The parts of the unfinished turn, oldest first."""
    return [STEP(row) for row in conn.rows(_STEPS, agent=agent_id)]
