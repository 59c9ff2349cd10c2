"""Agents: conversations that outlive their runs. An agent's id is the id of its first task; the coordinator's is the
session's. Its name, its id and every id of its tasks address it."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Connection, bindparam, func, select

from tasks.db import now_of
from tasks.errors import Ambiguous, NameTaken, NotFound
from tasks.hot import insert_all
from tasks.models import agents, tasks
from tasks.records import AgentRecord, TaskRecord
from tasks.states import LIVE

_COLUMNS = [column for column in agents.c if column.name != "next_seq"]
_INSERT = insert_all(agents)
_FIND = select(*_COLUMNS).where(agents.c.id == bindparam("agent_id"))


def create(conn: Connection, agent: AgentRecord) -> AgentRecord:
    """Store an agent; storing the same id again gives what is there. Raises `NameTaken`."""
    if (known := find(conn, agent.id)) is not None:
        return known
    if agent.name is not None and conn.scalar(
        select(agents.c.id).where(agents.c.session_id == agent.session_id, agents.c.name == agent.name)
    ):
        raise NameTaken(f"an agent of this session is called {agent.name!r} already")
    created_at = now_of(conn) if agent.created_at is None else agent.created_at
    row = {name: getattr(agent, name) for name in ("id", "session_id", "name", "definition", "model", "cwd", "is_coordinator")}
    _INSERT.run(conn, **row, created_at=created_at, next_seq=0)
    found = find(conn, agent.id)
    assert found is not None
    return found


def find(conn: Connection, agent_id: str) -> AgentRecord | None:
    row = conn.execute(_FIND, {"agent_id": agent_id}).first()
    return None if row is None else AgentRecord(**row._mapping)


def get(conn: Connection, agent_id: str) -> AgentRecord:
    """Raises `NotFound`."""
    if (agent := find(conn, agent_id)) is None:
        raise NotFound(f"no agent {agent_id}")
    return agent


def list_agents(conn: Connection, session_id: str) -> list[AgentRecord]:
    """The agents of a session, oldest first, its coordinator among them."""
    query = select(*_COLUMNS).where(agents.c.session_id == session_id).order_by(agents.c.created_at, agents.c.id)
    return [AgentRecord(**row._mapping) for row in conn.execute(query)]


def latest_task(conn: Connection, agent_id: str) -> TaskRecord | None:
    """The newest run of an agent; None for a coordinator, which has none."""
    query = select(tasks).where(tasks.c.agent_id == agent_id).order_by(tasks.c.created_at.desc(), tasks.c.id).limit(1)
    row = conn.execute(query).first()
    return None if row is None else TaskRecord.from_row(row)


def resolve(conn: Connection, session_id: str | None, ref: str) -> tuple[AgentRecord, TaskRecord | None]:
    """The agent that `ref` addresses, with its newest task: a task or agent id, an agent's name, or the unique
    beginning of an id; in all sessions if `session_id` is None. Raises `NotFound`, `Ambiguous`."""
    agent_id = resolve_id(conn, session_id, ref)
    return get(conn, agent_id), latest_task(conn, agent_id)


def resolve_id(conn: Connection, session_id: str | None, ref: str) -> str:
    """The id of the agent that `ref` addresses. An id goes before a name, a name before a beginning; of several agents
    with one name in different sessions the only live one is meant."""
    within = agents.c.session_id == session_id if session_id is not None else agents.c.id.is_not(None)
    runs = select(agents.c.id, tasks.c.id, tasks.c.status).join_from(agents, tasks, isouter=True).where(within)
    for fits in _ways(ref):
        found = conn.execute(runs.where(fits)).all()
        if agent_id := _one(found, ref):
            return agent_id
    raise NotFound(f"no such task {ref!r}")


def _ways(ref: str) -> Iterable[ColumnElement[bool]]:
    yield (tasks.c.id == ref) | (agents.c.id == ref)
    yield agents.c.name == ref
    if ref.isascii() and ref.isalnum():
        start = func.substr(tasks.c.id, 1, len(ref)) == ref
        yield start | (func.substr(agents.c.id, 1, len(ref)) == ref)


def _one(found: Iterable[tuple[str, str | None, str | None]], ref: str) -> str | None:
    rows = list(found)
    every = {agent_id for agent_id, _, _ in rows}
    if len(every) <= 1:
        return next(iter(every), None)
    live = {agent_id for agent_id, _, status in rows if status in LIVE}
    if len(live) == 1 and not ref_is_beginning(rows, ref):
        return live.pop()
    raise Ambiguous(ref, sorted(task_id or agent_id for agent_id, task_id, _ in rows))


def ref_is_beginning(rows: Iterable[tuple[str, str | None, str | None]], ref: str) -> bool:
    """Whether the rows were found by the beginning of an id: then a live one is no likelier to be meant."""
    return any((task_id or agent_id).startswith(ref) for agent_id, task_id, _ in rows)
