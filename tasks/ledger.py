"""What model calls used: one row a response of the API, so that replay, resume and several blocks of one response are
counted once. Booking a response again replaces its figures: the last value wins."""

from __future__ import annotations

import uuid
from typing import Any

from msgspec import Struct

from tasks.connection import Connection
from tasks.db import now_of

_FIGURES = (
    "input_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "cache_read_tokens",
    "output_tokens",
    "cost_usd",
)
_AGAIN = f"UPDATE model_calls SET {', '.join(f'{name} = :{name}' for name in ('model', *_FIGURES))} WHERE response_id = :id"
_SUMS = ", ".join(f"coalesce(sum({name}), 0)" for name in _FIGURES)
DAY = 86_400.0  # seconds


class Totals(Struct, frozen=True, kw_only=True):
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
    if conn.changed(_AGAIN, id=id, **figures):
        return False
    whose = {"response_id": id, "session_id": session_id, "agent_id": agent_id, "task_id": task_id, "purpose": purpose}
    conn.insert("model_calls", figures | whose | {"at": now_of(conn) if at is None else at})
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
    wanted = {"session_id": session_id, "agent_id": agent_id, "task_id": task_id}
    fits = [f"{name} = :{name}" for name, value in wanted.items() if value is not None]
    fits += ["at >= :since"] if since is not None else []
    known = {name: value for name, value in (wanted | {"since": since}).items() if value is not None}
    query = f"SELECT {_key(by)}, count(*), count(cost_usd), {_SUMS} FROM model_calls"
    query += f" WHERE {' AND '.join(fits)}" if fits else ""
    query += " GROUP BY 1 ORDER BY 1" if by is not None else ""
    return [_totals(row, by) for row in conn.rows(query, **known)]


def total(conn: Connection, *, session_id: str | None = None) -> Totals:
    """The sums of one session, or of all."""
    return sums(conn, session_id=session_id)[0]


def _key(by: str | None) -> str:
    if by is None:
        return "''"
    return (
        f"floor(at / {DAY})"
        if by == "day"
        else {"session": "session_id", "agent": "agent_id", "task": "task_id", "model": "model"}[by]
    )


def _totals(row: tuple[Any, ...], by: str | None) -> Totals:
    from datetime import UTC, datetime

    key, calls, known, *figures = row
    name = datetime.fromtimestamp(float(key) * DAY, UTC).date().isoformat() if by == "day" else str(key or "")
    sums = dict(zip(_FIGURES, figures, strict=True))
    cost = float(sums.pop("cost_usd"))
    counts = {field: int(value) for field, value in sums.items()}
    return Totals(key=name, calls=calls, cost_usd=cost if known == calls else None, known_cost_usd=cost, **counts)
