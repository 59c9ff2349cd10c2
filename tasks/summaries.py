"""Summaries that stand for spans of a transcript in the view that is sent. The transcript stays whole.

A summary is staged when it is made and committed when the view begins to use it; spans of one agent never overlap.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from tasks.db import now_of
from tasks.models import summaries as table
from tasks.records import SummaryRecord


def stage(conn: Connection, agent_id: str, id: str, *, from_seq: int, to_seq: int, text: str) -> bool:
    """Store a summary of the messages `from_seq` to `to_seq`, both included; False if another covers one of them."""
    overlaps = (table.c.agent_id == agent_id) & (table.c.from_seq <= to_seq) & (table.c.to_seq >= from_seq)
    if conn.execute(select(table.c.id).where(overlaps).limit(1)).first() is not None:
        return False
    row = {"agent_id": agent_id, "id": id, "from_seq": from_seq, "to_seq": to_seq, "text": text}
    conn.execute(insert(table), row | {"state": "staged", "created_at": now_of(conn)})
    return True


def commit(conn: Connection, agent_id: str, id: str) -> bool:
    """The view uses it from now on; False if it is not staged."""
    staged = (table.c.agent_id == agent_id) & (table.c.id == id) & (table.c.state == "staged")
    return conn.execute(update(table).where(staged).values(state="committed")).rowcount == 1


def drop_staged(conn: Connection, agent_id: str) -> int:
    """Forget what was staged and never used; how many there were."""
    staged = (table.c.agent_id == agent_id) & (table.c.state == "staged")
    return conn.execute(delete(table).where(staged)).rowcount


def list_summaries(conn: Connection, agent_id: str) -> list[SummaryRecord]:
    """The summaries of an agent in the order of their spans."""
    query = select(table).where(table.c.agent_id == agent_id).order_by(table.c.from_seq)
    return [SummaryRecord(*row) for row in conn.execute(query)]
