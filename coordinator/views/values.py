"""Tasks and sessions as plain values: the one source for the screen, `--json` and the result object.

Times are ISO 8601 UTC text or None, durations whole milliseconds. The fields are those of the README's tables; a field
is added here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.records import ApprovalRecord, SessionRecord, TaskRecord

ORDER = {
    status: rank
    for rank, status in enumerate(("waiting", "running", "pending", "interrupted", "failed", "killed", "completed"))
}


def iso(seconds: float | None) -> str | None:
    """Seconds since the epoch as `2026-01-31T12:00:00.000Z`."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(start: float | None, end: float | None) -> int | None:
    return None if start is None or end is None else max(0, round((end - start) * 1000))


def task_json(task: TaskRecord, shown_status: str, now: float, needs_approval: str | None = None) -> dict[str, Any]:
    """One task as in `tasks list --json`. `shown_status` is the status, or `interrupted` where the owner is gone;
    `needs_approval` the oldest of its calls that wait for a person."""
    return {
        "id": task.id,
        "agent_id": task.agent_id,
        "session_id": task.session_id,
        "parent_id": task.parent_id,
        "type": str(task.type),
        "status": shown_status,
        "description": task.description,
        "name": task.name,
        "agent": task.definition,
        "model": task.model,
        "created_at": iso(task.created_at),
        "started_at": iso(task.started_at),
        "ended_at": iso(task.ended_at),
        "duration_ms": milliseconds(task.started_at, task.ended_at or now),
        "tool_uses": task.tool_uses,
        "input_tokens": task.input_tokens,
        "output_tokens": task.output_tokens,
        "total_tokens": task.total_tokens,
        "cost_usd": task.cost_usd,
        "last_activity": task.activities[-1] if task.activities else None,
        "idle_ms": milliseconds(task.last_activity_at, now) if shown_status == "running" else None,
        "attempt": task.attempt,
        "end_reason": task.end_reason,
        "error": task.error,
        "needs_approval": needs_approval,
    }


def state(task: Mapping[str, Any]) -> str:
    """The status, or that the task waits for a person."""
    return "waiting" if task.get("needs_approval") and task["status"] == "running" else str(task["status"])


def in_order(tasks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What waits for a person first, then what runs, then what ended; newest first within each."""
    newest = sorted(tasks, key=lambda task: str(task["created_at"]), reverse=True)
    return sorted(newest, key=lambda task: ORDER.get(state(task), 9))


def task_detail_json(task: TaskRecord, shown_status: str, now: float, needs_approval: str | None = None) -> dict[str, Any]:
    """One task as in `tasks show ID --json`."""
    return task_json(task, shown_status, now, needs_approval) | {
        "prompt": task.prompt,
        "result": task.result,
        "worktree": task.worktree,
        "branch": task.branch,
        "activities": list(task.activities),
        "output_file": task.output_file,
    }


def session_json(session: SessionRecord) -> dict[str, Any]:
    """One session as in `sessions list --json`."""
    return {
        "id": session.id,
        "title": session.title,
        "goal": session.goal,
        "status": session.status,
        "end_reason": session.end_reason,
        "parent_id": session.parent_id,
        "cwd": session.cwd,
        "model": session.model,
        "created_at": iso(session.created_at),
        "updated_at": iso(session.updated_at),
        "ended_at": iso(session.ended_at),
    }


def approval_json(approval: ApprovalRecord, agent: str) -> dict[str, Any]:
    """One waiting call as in `inbox --json`. `agent` is what its agent is called."""
    return {
        "id": approval.id,
        "session_id": approval.session_id,
        "task_id": approval.task_id,
        "agent": agent,
        "tool": approval.tool,
        "input": dict(approval.input),
        "shown": approval.shown,
        "reason": approval.reason,
        "suggested_rule": approval.suggested_rule,
        "asked_at": iso(approval.asked_at),
    }
