"""What was spent, summed. One row a model response lies in the view `v_cost`."""

from __future__ import annotations

from typing import Any

from tasks.db import Database

KEYS = {"session": "session_id", "task": "task_id", "agent": "agent_id", "model": "model", "day": "day", "purpose": "purpose"}


def sums(database: Database, by: str, session_id: str | None = None) -> list[dict[str, Any]]:
    """Sums over one of `KEYS`, the newest first; of one session where it is named. A sum that holds an unknown price is
    None."""
    where = f"WHERE session_id = '{session_id}'" if session_id else ""
    names, rows = database.query(_statement(KEYS[by], by, where))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _statement(key: str, name: str, where: str) -> str:
    return f"""
        SELECT {key} AS {name}, count(*) AS calls, sum(input_tokens) AS input_tokens,
               sum(cache_write_5m_tokens + cache_write_1h_tokens) AS cache_write_tokens,
               sum(cache_read_tokens) AS cache_read_tokens, sum(output_tokens) AS output_tokens,
               CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END AS cost_usd
        FROM v_cost {where} GROUP BY {key} ORDER BY max(at) DESC"""
