"""What model calls used: one row a response of the API, so that replay, resume and several blocks of one response are
counted once. Booking a response again replaces its figures: the last value wins."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, bindparam, cast, func, select, update

from tasks.db import now_of
from tasks.hot import Hot, insert_all
from tasks.models import model_calls as table

_FIGURES = (
    "input_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "cache_read_tokens",
    "output_tokens",
    "cost_usd",
)
_KEYS = {"session": table.c.session_id, "agent": table.c.agent_id, "task": table.c.task_id, "model": table.c.model}
_BOOK = insert_all(table)
_AGAIN = Hot(
    update(table)
    .where(table.c.response_id == bindparam("id"))
    .values({name: bindparam(name, type_=table.c[name].type) for name in ("model", *_FIGURES)})
)
DAY = 86_400.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over calls. `cost_usd` is None when the price of one of them is unknown; `known_cost_usd` leaves it out."""

    key: str = ""
    calls: int = 0
    input_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    known_cost_usd: float = 0.0


def book(
    conn: Connection,
    *,
    response_id: str | None,
    session_id: str,
    agent_id: str,
    task_id: str | None = None,
    model: str,
    input_tokens: int = 0,
    cache_write_5m_tokens: int = 0,
    cache_write_1h_tokens: int = 0,
    cache_read_tokens: int = 0,
    output_tokens: int = 0,
    cost_usd: float | None,
    purpose: str = "turn",
    at: float | None = None,
) -> bool:
    """Book one response; True if it was not booked before. A response without an id counts by itself."""
    figures = {
        "model": model,
        "input_tokens": input_tokens,
        "cache_write_5m_tokens": cache_write_5m_tokens,
        "cache_write_1h_tokens": cache_write_1h_tokens,
        "cache_read_tokens": cache_read_tokens,
        "output_tokens": output_tokens,
        "cost_usd": cost_usd,
    }
    id = response_id or f"none-{uuid.uuid4().hex}"
    if _AGAIN.run(conn, id=id, **figures).rowcount:
        return False
    whose = {"response_id": id, "session_id": session_id, "agent_id": agent_id, "task_id": task_id, "purpose": purpose}
    _BOOK.run(conn, **figures, **whose, at=now_of(conn) if at is None else at)
    return True


def sums(
    conn: Connection,
    by: str | None = None,
    *,
    session_id: str | None = None,
    agent_id: str | None = None,
    task_id: str | None = None,
    since: float | None = None,
) -> list[Totals]:
    """Totals by "session", "agent", "task", "model" or "day" (UTC, as `2026-12-31`), in the order of their keys;
    without `by` one for all of it."""
    key = _key(by)
    columns = [func.coalesce(func.sum(table.c[name]), 0).label(name) for name in _FIGURES]
    known = func.count(table.c.cost_usd)
    query = select(key.label("key"), func.count().label("calls"), known.label("known"), *columns).group_by(key).order_by(key)
    for column, value in ((table.c.session_id, session_id), (table.c.agent_id, agent_id), (table.c.task_id, task_id)):
        if value is not None:
            query = query.where(column == value)
    if since is not None:
        query = query.where(table.c.at >= since)
    found = [_totals(dict(row._mapping), by) for row in conn.execute(query)]
    return found if by is not None or found else [Totals()]


def total(conn: Connection, *, session_id: str | None = None) -> Totals:
    """The sums of one session, or of all."""
    return sums(conn, session_id=session_id)[0]


def _key(by: str | None) -> ColumnElement[Any]:
    if by is None:
        return cast("", Text)
    return func.floor(table.c.at / DAY) if by == "day" else _KEYS[by]


def _totals(row: dict[str, Any], by: str | None) -> Totals:
    from datetime import UTC, datetime

    cost, known = float(row.pop("cost_usd")), row.pop("known")
    key = row.pop("key")
    name = datetime.fromtimestamp(float(key) * DAY, UTC).date().isoformat() if by == "day" else str(key or "")
    counts = {field: int(value) for field, value in row.items()}
    return Totals(key=name, cost_usd=cost if known == row["calls"] else None, known_cost_usd=cost, **counts)
