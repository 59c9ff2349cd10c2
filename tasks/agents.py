"""Agents: conversations that outlive their runs. An agent's id is the id of its first task; the coordinator's is the
session's. Its name, its id and every id of its tasks address it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tasks.connection import Connection
from tasks.db import now_of
from tasks.errors import Ambiguous, NameTaken, NotFound
from tasks.records import AgentRecord, TaskRecord
from tasks.rows import AGENT, TASK
from tasks.states import LIVE

_FIND = f"SELECT {AGENT.columns} FROM agents WHERE id = :id"
_NAMED = "SELECT id FROM agents WHERE session_id = :session_id AND name = :name"
_OF_SESSION = f"SELECT {AGENT.columns} FROM agents WHERE session_id = :session_id ORDER BY created_at, id"
_LATEST = f"SELECT {TASK.columns} FROM tasks WHERE agent_id = :agent_id ORDER BY created_at DESC, id LIMIT 1"
_RUNS = "SELECT agents.id, tasks.id, tasks.status FROM agents LEFT JOIN tasks ON tasks.agent_id = agents.id WHERE "


def create(conn: Connection, agent: AgentRecord) -> AgentRecord:
    """Store an agent; storing the same id again gives what is there. Raises `NameTaken`."""
    if (known := find(conn, agent.id)) is not None:
        return known
    if agent.name is not None and conn.row(_NAMED, session_id=agent.session_id, name=agent.name):
        raise NameTaken(f"an agent of this session is called {agent.name!r} already")
    created_at = now_of(conn) if agent.created_at is None else agent.created_at
    row = {name: getattr(agent, name) for name in ("id", "session_id", "name", "definition", "model", "cwd", "is_coordinator")}
    conn.insert("agents", row | {"created_at": created_at, "next_seq": 0})
    found = find(conn, agent.id)
    assert found is not None
    return found


def find(conn: Connection, agent_id: str) -> AgentRecord | None:
    row = conn.row(_FIND, id=agent_id)
    return None if row is None else AGENT(row)


def get(conn: Connection, agent_id: str) -> AgentRecord:
    """Raises `NotFound`."""
    if (agent := find(conn, agent_id)) is None:
        raise NotFound(f"no agent {agent_id}")
    return agent


def list_agents(conn: Connection, session_id: str) -> list[AgentRecord]:
    """The agents of a session, oldest first, its coordinator among them."""
    return [AGENT(row) for row in conn.rows(_OF_SESSION, session_id=session_id)]


def latest_task(conn: Connection, agent_id: str) -> TaskRecord | None:
    """The newest run of an agent; None for a coordinator, which has none."""
    row = conn.row(_LATEST, agent_id=agent_id)
    return None if row is None else TASK(row)


def resolve(conn: Connection, session_id: str | None, ref: str) -> tuple[AgentRecord, TaskRecord | None]:
    """The agent that `ref` addresses, with its newest task: a task or agent id, an agent's name, or the unique
    beginning of an id; in all sessions if `session_id` is None. Raises `NotFound`, `Ambiguous`."""
    agent_id = resolve_id(conn, session_id, ref)
    return get(conn, agent_id), latest_task(conn, agent_id)


def resolve_id(conn: Connection, session_id: str | None, ref: str) -> str:
    """The id of the agent that `ref` addresses. An id goes before a name, a name before a beginning; of several agents
    with one name in different sessions the only live one is meant."""
    within, which = ("agents.session_id = :session_id AND ", {"session_id": session_id}) if session_id is not None else ("", {})
    for fits in _ways(conn, ref):
        if agent_id := _one(conn.rows(f"{_RUNS}{within}({fits})", ref=ref, **which), ref):
            return agent_id
    raise NotFound(f"no such task {ref!r}")


def _ways(conn: Connection, ref: str) -> Iterable[str]:
    """Conditions on `:ref`, the most exact first."""
    yield "tasks.id = :ref OR agents.id = :ref"
    yield "agents.name = :ref"
    if ref.isascii() and ref.isalnum():
        yield f"{conn.begins('tasks.id')} OR {conn.begins('agents.id')}"


def _one(found: Iterable[tuple[Any, ...]], ref: str) -> str | None:
    rows: list[tuple[str, str | None, str | None]] = [(agent_id, task_id, status) for agent_id, task_id, status in found]
    every = {agent_id for agent_id, _, _ in rows}
    if len(every) <= 1:
        return next(iter(every), None)
    live = {agent_id for agent_id, _, status in rows if status in LIVE}
    if len(live) == 1 and not ref_is_beginning(rows, ref):
        return live.pop()
    raise Ambiguous(ref, sorted(task_id or agent_id for agent_id, task_id, _ in rows))


def ref_is_beginning(rows: Iterable[tuple[Any, ...]], ref: str) -> bool:
    """Whether the rows were found by the beginning of an id: then a live one is no likelier to be meant."""
    return any((task_id or agent_id).startswith(ref) for agent_id, task_id, _ in rows)
