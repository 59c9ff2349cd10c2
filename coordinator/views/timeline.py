"""Who did what when, in one session: a lane for each agent's run, made from its stored messages.

Rules:

1. A message is stored when it is whole. So the time before an answer was the model's, the time between an answer with calls
   and their results the tools'; what of that a person was waited for stands in the approvals.
2. A task waits in the queue from its creation to its start. The session's own agent idles between an answer and the next
   message that it reads.
3. What is not over yet ends now. A run whose owner is gone ends with its last sign of life.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from coordinator.views.shown import Owners
from tasks import registry, sessions
from tasks.connection import Connection
from tasks.records import SessionRecord, TaskRecord
from tasks.registry import TaskFilter

_MESSAGES = "SELECT role, kind, at, task_id, content FROM messages WHERE agent_id = :agent_id ORDER BY seq"
_WAITS = "SELECT task_id, tool, asked_at, answered_at, status FROM approvals WHERE session_id = :session_id"

QUEUED, MODEL, TOOL, WAITING, IDLE = "queued", "model", "tool", "waiting", "idle"


class Segment(Struct, frozen=True):
    """From `start` to `end` a lane was busy with `kind`; `label` are the tools' names, or empty."""

    kind: str
    start: float
    end: float
    label: str = ""


class Lane(Struct, frozen=True):
    """`id` is a task's, or the session's for its own agent; `depth` is how deep it stands in the tree."""

    id: str
    parent_id: str | None
    depth: int
    name: str
    description: str
    status: str
    start: float
    end: float
    segments: tuple[Segment, ...]

    def to_json(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name != "segments"}
        return own | {"segments": [asdict(one) for one in self.segments]}


class _Row(Struct, frozen=True):
    role: str
    kind: str
    at: float
    task_id: str | None
    tools: tuple[str, ...]


def lanes(conn: Connection, session: SessionRecord, now: float, ended: dict[str, Lane] | None = None) -> list[Lane]:
    """The session's own agent first, then its tasks as the tree has them, the oldest first among brothers. `ended` keeps
    the lanes of ended tasks for the next call, by id: nothing of them changes any more."""
    ended = {} if ended is None else ended
    owners = Owners(conn, now)
    tasks = registry.list_tasks(conn, TaskFilter(session_id=session.id, ended_sessions=True, texts=False))
    gone = session.ended_at is None and sessions.owner_gone(session, now)
    last = max([session.heartbeat_at or session.created_at, session.updated_at]) if gone else now
    own = _rows(conn, session.id)
    waits = _waits(conn, session.id, now)
    end = session.ended_at or last
    first = Lane(
        session.id, None, 0, "coordinator", session.title or session.goal, "ended" if session.ended_at else "running",
        session.created_at, end, tuple(_segments(own, session.created_at, end, waits.get(None, []), has_ended=False)),
    )  # fmt: skip
    below = []
    for task, depth in in_tree(tasks, session.id):
        lane = ended.get(task.id) or _lane(conn, task, depth, owners, last, waits)
        if task.ended_at is not None:
            ended[task.id] = lane
        below.append(lane)
    return [first, *below]


def in_tree(tasks: Sequence[TaskRecord], root: str) -> list[tuple[TaskRecord, int]]:
    """Tasks below those that asked for them, with their depth; one whose parent is unknown stands at the top."""
    known = {task.id for task in tasks}
    below: dict[str, list[TaskRecord]] = {}
    for task in sorted(tasks, key=lambda task: task.created_at):
        parent = task.parent_id if task.parent_id in known else root
        below.setdefault(parent or root, []).append(task)
    found: list[tuple[TaskRecord, int]] = []
    open = [(task, 1) for task in reversed(below.get(root, []))]
    while open:
        task, depth = open.pop()
        found.append((task, depth))
        open += [(child, depth + 1) for child in reversed(below.get(task.id, []))]
    return found


def _lane(
    conn: Connection, task: TaskRecord, depth: int, owners: Owners, last: float, waits: dict[str | None, list[Segment]]
) -> Lane:
    end = task.ended_at or max(last, task.last_activity_at or task.created_at)
    begun = task.started_at or end
    rows = [row for row in _rows(conn, task.agent_id) if row.task_id == task.id] if task.reports else []
    queued = [Segment(QUEUED, task.created_at, begun)] if begun - task.created_at >= 0.001 else []
    busy = (
        _segments(rows, begun, end, waits.get(task.id, []), has_ended=task.ended_at is not None)
        if task.reports
        else [Segment(TOOL, begun, end, "Bash")]
    )
    name = task.name or task.definition or str(task.type)
    return Lane(
        task.id, task.parent_id, depth, name, task.description, owners.status(task), task.created_at, end, (*queued, *busy)
    )


def _segments(
    rows: Sequence[_Row], start: float, end: float, waits: Sequence[Segment], *, has_ended: bool
) -> Iterator[Segment]:
    before = start
    called: tuple[str, ...] = ()
    last: _Row | None = None
    for row in rows:
        at = min(max(row.at, before), end)
        if row.role == "assistant":
            yield from _one(MODEL, before, at)
        elif row.kind == "tool_results":
            yield from _cut(Segment(TOOL, before, at, ", ".join(called)), waits)
        elif last is not None and last.role == "assistant":
            yield from _one(IDLE, before, at)
        called = row.tools if row.role == "assistant" else called
        before, last = at, row
    if has_ended or end <= before:
        return
    if last is not None and last.role == "assistant":
        yield from _cut(Segment(TOOL, before, end, ", ".join(called)), waits) if last.tools else _one(IDLE, before, end)
    else:
        yield from _one(MODEL, before, end)


def _one(kind: str, start: float, end: float) -> Iterator[Segment]:
    if end > start:
        yield Segment(kind, start, end)


def _cut(tool: Segment, waits: Sequence[Segment]) -> Iterator[Segment]:
    """The time of tools, without that in which they waited for a person."""
    at = tool.start
    for wait in sorted(waits, key=lambda wait: wait.start):
        begin, stop = max(wait.start, at), min(wait.end, tool.end)
        if stop > begin:
            if begin > at:
                yield Segment(TOOL, at, begin, tool.label)
            yield Segment(WAITING, begin, stop, wait.label)
            at = stop
    if tool.end > at:
        yield Segment(TOOL, at, tool.end, tool.label)


def _rows(conn: Connection, agent_id: str) -> list[_Row]:
    return [
        _Row(role, kind, at, task_id, _tools(content) if role == "assistant" else ())
        for role, kind, at, task_id, content in conn.rows(_MESSAGES, agent_id=agent_id)
        if role in ("assistant", "user")
    ]


def _tools(content: str) -> tuple[str, ...]:
    return (
        tuple(block["name"] for block in orjson.loads(content) if block.get("type") == "tool_use")
        if "tool_use" in content
        else ()
    )


def _waits(conn: Connection, session_id: str, now: float) -> dict[str | None, list[Segment]]:
    found: dict[str | None, list[Segment]] = {}
    for task_id, tool, asked, answered, status in conn.rows(_WAITS, session_id=session_id):
        if answered is not None or status == "waiting":
            found.setdefault(task_id, []).append(Segment(WAITING, asked, answered or now, tool))
    return found
