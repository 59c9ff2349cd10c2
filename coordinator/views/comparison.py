"""Two sessions side by side: a fork and its origin, or two tries at one goal."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.views.shown import Shown, result_of, shown_sessions, shown_tasks
from tasks import registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import SessionRecord
from tasks.registry import TaskFilter

FIELDS = ("goal", "model", "status", "end_reason", "tasks", "failed", "tool_uses", "total_tokens", "cost_usd", "duration_ms")


def compare(database: Database, one: SessionRecord, other: SessionRecord, now: float) -> dict[str, Any]:
    """`sessions` (each as in `sessions show --json`, with sums), `tasks` (pairs of the same name or description, either
    side None) and `result_diff`, the lines of a unified diff from the first result to the second."""
    both = [_summary(database, session, now) for session in (one, other)]
    pairs = _pairs(both[0].pop("task_list"), both[1].pop("task_list"))
    return {"sessions": both, "tasks": pairs, "result_diff": _diff(*both)}


def _summary(database: Database, session: SessionRecord, now: float) -> Shown:
    def read(conn: Connection) -> tuple[list[Shown], str | None]:
        tasks = registry.list_tasks(conn, TaskFilter(session_id=session.id, ended_sessions=True, texts=False))
        return shown_tasks(conn, tasks, now), result_of(conn, sessions.get(conn, session.id))

    tasks, result = database.read(read)
    (values,) = shown_sessions(database, [session], now)
    end = session.ended_at or (session.updated_at if sessions.owner_gone(session, now) else now)
    return values | {
        "failed": sum(task["status"] in ("failed", "killed") for task in tasks),
        "tool_uses": sum(task["tool_uses"] for task in tasks),
        "total_tokens": sum(task["total_tokens"] for task in tasks),
        "duration_ms": max(0, round((end - session.created_at) * 1000)),
        "result": result,
        "task_list": tasks,
    }


def _pairs(one: Sequence[Shown], other: Sequence[Shown]) -> list[dict[str, Any]]:
    left = list(other)
    pairs = []
    for task in one:
        match = next((each for each in left if _same(task, each)), None)
        if match is not None:
            left.remove(match)
        pairs.append({"a": _of(task), "b": match and _of(match)})
    return [*pairs, *({"a": None, "b": _of(task)} for task in left)]


def _same(task: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if task["name"] or other["name"]:
        return bool(task["name"] == other["name"])
    return bool((task["description"], task["agent"]) == (other["description"], other["agent"]))


def _of(task: Shown) -> Shown:
    kept = ("id", "type", "name", "description", "agent", "status", "duration_ms", "tool_uses", "total_tokens", "cost_usd")
    return {name: task[name] for name in kept}


def _diff(one: Shown, other: Shown) -> list[str]:
    before, after = ((session["result"] or "").splitlines() for session in (one, other))
    return list(difflib.unified_diff(before, after, one["id"], other["id"], lineterm=""))
