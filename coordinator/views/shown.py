"""Rows of the store as the documented objects, in a snapshot of the caller's: for the command line and the page alike.

A task whose owner is gone is shown as `interrupted`, unless a living node runs it; that is worked out here for everybody, from
the lease of its session and the heartbeats of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import orjson

from coordinator.views.values import approval_json, in_order, session_json, task_detail_json, task_json
from tasks import agents, approvals, nodes, registry, sessions, transcripts
from tasks.connection import Connection, among
from tasks.db import Database
from tasks.nodes import NodeRecord, NodeStatus
from tasks.records import ApprovalRecord, SessionRecord, SessionStatus, TaskRecord
from tasks.registry import TaskFilter
from tasks.states import LIVE, TERMINAL, TaskStatus
from worker_agent.structs import replace

Shown = dict[str, Any]
CLUSTER = "cluster"  # the `--backend` whose workers are on nodes
DAY = 86_400.0  # seconds
NAMED_AT_MOST = 200  # sessions that a statement names; of more, all are summed
SUMS = ("id", "tasks", "live_tasks", "cost_usd")  # of `v_sessions`
LAST_ROWS = 100  # of a transcript, among which its last answer stands


class Owners:
    """Who runs what: whether the owner of a session is gone, and where its workers are on nodes, whether a living one runs a task:
    that goes on without the owner. Each session is asked for once, the nodes too."""

    def __init__(self, conn: Connection, now: float) -> None:
        self._conn = conn
        self._now = conn.time_of(now)
        self._sessions: dict[str, SessionRecord] = {}
        self._nodes: list[NodeRecord] | None = None

    def gone(self, session_id: str) -> bool:
        return sessions.owner_gone(self._session(session_id), self._now)

    def reaches_nobody(self, task: TaskRecord) -> bool:
        """Whether what is said to the task now waits for `resume`: no living process drives its session, and no node runs it."""
        return self.gone(task.session_id) and not (task.is_live and self._runs_on(task, alive=True))

    def forgotten(self, session_id: str) -> bool:
        """Whether nobody has driven the session for a day: it can be resumed, but nobody seems to be about to."""
        session = self._session(session_id)
        return self.gone(session_id) and max(session.updated_at, session.heartbeat_at or 0.0) < self._now - DAY

    def _session(self, session_id: str) -> SessionRecord:
        if session_id not in self._sessions:
            self._sessions[session_id] = sessions.get(self._conn, session_id)
        return self._sessions[session_id]

    def status(self, task: TaskRecord) -> str:
        return self.seen(task)[1]

    def seen(self, task: TaskRecord) -> tuple[TaskRecord, str]:
        """The task as a person sees it, and its status: what a node ran that is dead waits for another."""
        if not task.is_live or self._runs_on(task, alive=True):
            return task, str(task.status)
        if self.gone(task.session_id):
            return task, registry.shown_status(task, True)
        if task.status is TaskStatus.RUNNING and (dead := self._runs_on(task, alive=False)):
            why = f"waits for a node: {dead[0]}, which ran it, is dead"
            return replace(task, activities=(*task.activities, why)), str(TaskStatus.PENDING)
        return task, str(task.status)

    def _runs_on(self, task: TaskRecord, *, alive: bool) -> list[str]:
        """The living nodes, or the dead ones, that say or said last that they run it; a shell command is where its worker is."""
        if self._session(task.session_id).options.get("backend") != CLUSTER:
            return []
        self._nodes = nodes.list_nodes(self._conn) if self._nodes is None else self._nodes
        id = task.id if task.reports else task.parent_id
        return [one.name for one in self._nodes if id in one.running and (one.status is not NodeStatus.DEAD) is alive]


def shown_tasks(conn: Connection, tasks: Iterable[TaskRecord], now: float, *, detail: bool = False) -> list[Shown]:
    owners, waits = Owners(conn, now), waiting_by_task(conn)
    make: Callable[[TaskRecord, str, float, str | None], Shown] = task_detail_json if detail else task_json
    return [make(*owners.seen(task), now, waits.get(task.id)) for task in tasks]


def listed_tasks(
    conn: Connection,
    now: float,
    *,
    session_id: str | None = None,
    everything: bool = False,
    statuses: Sequence[str] = (),
    limit: int | None = None,
) -> list[Mapping[str, Any]]:
    """What `tasks list --json` gives: what runs first, at most `limit`. `interrupted` is derived, so a filter by status
    looks at what is shown."""
    owners, everything = Owners(conn, now), everything or session_id is not None
    wanted = TaskFilter(session_id=session_id, ended_sessions=everything, texts=False)
    tasks = _page(conn, wanted, limit) if limit is not None and everything else registry.list_tasks(conn, wanted)
    shown = (task for task in tasks if everything or not owners.forgotten(task.session_id))
    waits = waiting_by_task(conn)
    rows = [task_json(*owners.seen(task), now, waits.get(task.id)) for task in shown]
    return in_order(row for row in rows if not statuses or row["status"] in statuses)[:limit]


def _page(conn: Connection, wanted: TaskFilter, limit: int) -> list[TaskRecord]:
    """What lives, and of each way to end the newest: a page holds no more of them, whatever it is filtered by."""
    ended = [registry.newest(conn, replace(wanted, statuses=(state,)), limit) for state in sorted(TERMINAL)]
    return [*registry.list_tasks(conn, replace(wanted, statuses=sorted(LIVE))), *chain.from_iterable(ended)]


def waiting_by_task(conn: Connection) -> dict[str, str]:
    """For each task whose call waits for a person the oldest such call's id."""
    return {one.task_id: one.id for one in reversed(approvals.waiting(conn)) if one.task_id}


def shown_approvals(conn: Connection, found: Iterable[ApprovalRecord]) -> list[Shown]:
    return [approval_json(one, _called(conn, one.agent_id)) for one in found]


def _called(conn: Connection, agent_id: str) -> str:
    agent = agents.get(conn, agent_id)
    return "coordinator" if agent.is_coordinator else agent.name or agent.definition or agent.id


def shown_sessions(database: Database, found: Sequence[SessionRecord], now: float) -> list[Shown]:
    """Sessions as objects: what `session_json` says, and `driven` (a living process owns it), `state` in a word, `tasks`,
    `live_tasks`, `cost_usd`."""
    return database.read(lambda conn: sessions_in(conn, found, now))


def sessions_in(conn: Connection, found: Sequence[SessionRecord], now: float) -> list[Shown]:
    """The same, in a snapshot of the caller's."""
    named, ids = among("id", [one.id for one in found]) if len(found) <= NAMED_AT_MOST else ("1 = 1", {})
    rows = conn.rows(f"SELECT {', '.join(SUMS)} FROM v_sessions WHERE {named}", **ids)
    sums = {row[0]: dict(zip(SUMS[1:], row[1:], strict=True)) for row in rows}
    asking, resting, now = _asking(conn), _resting(conn, found), conn.time_of(now)
    shown = [session_json(one) | {"driven": not sessions.owner_gone(one, now)} | sums.get(one.id, {}) for one in found]
    return [one | {"state": session_state(one, one["id"] in asking, one["id"] in resting)} for one in shown]


def session_detail(database: Database, session: SessionRecord, now: float) -> Shown:
    """One session as in `sessions show --json`: with its result and its tasks."""
    (values,) = shown_sessions(database, [session], now)
    wanted = TaskFilter(session_id=session.id, texts=False)
    result, tasks = database.read(
        lambda conn: (result_of(conn, session), shown_tasks(conn, registry.list_tasks(conn, wanted), now))
    )
    return values | {"result": result, "tasks": tasks}


def session_state(session: Shown, asks: bool, rests: bool) -> str:
    """In a word or three, for a list. `asks`: a call of it waits for a person's word; `rests`: its agent has answered, and
    nothing follows by itself."""
    if session["status"] == SessionStatus.ENDED:
        return "done" if session["end_reason"] == "completed" else "failed"
    if asks:
        return "waiting for you"
    if session.get("live_tasks"):
        return "working" if session["driven"] else "stuck"
    return "working" if session["driven"] and not rests else "waiting for you"


def _asking(conn: Connection) -> frozenset[str]:
    return frozenset(one.session_id for one in approvals.waiting(conn))


def _resting(conn: Connection, found: Sequence[SessionRecord]) -> frozenset[str]:
    """The open sessions whose last message is an answer without calls. A run checks its answer yet, or ends."""
    checks = ("verify", "json_schema")
    chats = [one for one in found if one.status is SessionStatus.OPEN and not any(map(one.options.get, checks))]
    last = {one.id: transcripts.tail(conn, one.id, 1) for one in chats}
    return frozenset(id for id, rows in last.items() if rows and rows[0].kind == "answer" and not _calls(rows[0].content))


def _calls(content: str) -> bool:
    return any(block["type"] == "tool_use" for block in orjson.loads(content))


def result_of(conn: Connection, session: SessionRecord) -> str | None:
    """The last answer of a session that has ended: what its run printed. None while it has not, or without one."""
    if session.status is not SessionStatus.ENDED:
        return None
    rows = transcripts.tail(conn, session.id, LAST_ROWS)
    answer = next((row for row in reversed(rows) if row.kind == "answer"), None)
    if answer is None:
        return None
    return "".join(block["text"] for block in orjson.loads(answer.content) if block["type"] == "text") or None
