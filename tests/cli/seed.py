"""A database with sessions and tasks in every state, made through the store's own functions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from tasks import leases, ledger, registry, sessions, transcripts
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import Ended, MessageRecord, NewTask, Owner, TaskRecord
from tasks.states import TaskStatus
from tests.cli.program import Program

HOSTILE = "\x1b[31mred\x1b[0m [bold]markup[/bold] \x9b2J end"


@dataclass(slots=True)
class Seed:
    """One session of `database`, owned by `owner` (this process unless `dead`)."""

    database: Database
    session_id: str
    owner: Owner
    fence: int

    def task(self, description: str = "some work", *, claim: bool = True, **fields: Any) -> TaskRecord:
        new = NewTask(session_id=self.session_id, description=description, prompt=fields.pop("prompt", "do it"), **fields)

        def create(conn: Connection) -> TaskRecord:
            task = registry.create(conn, new)
            if claim:
                registry.claim(conn, task.id, owner=self.owner, fence=self.fence)
            return registry.get(conn, task.id)

        return self.database.write(create)

    def progress(self, task: TaskRecord, *activities: str, cost_usd: float | None = 0.01) -> None:
        self.database.write(
            lambda conn: registry.progress(
                conn, task.id, attempt=task.attempt, tool_uses=3, input_tokens=2_000, output_tokens=500, cost_usd=cost_usd,
                activities=activities, model="model-x",
            )
        )  # fmt: skip

    def finish(self, task: TaskRecord, status: str = "completed", **fields: Any) -> None:
        given = {"result": "the result", "end_reason": "completed" if status == "completed" else "error"} | fields
        end = Ended(status=TaskStatus(status), **given)
        self.database.write(lambda conn: registry.finish(conn, task.id, task.attempt, end))

    def say(self, agent_id: str, *blocks: dict[str, Any], role: str = "assistant", task_id: str | None = None) -> None:
        kind = "answer" if role == "assistant" else "tool_results" if blocks[0]["type"] == "tool_result" else "prompt"
        row = MessageRecord(
            id=os.urandom(8).hex(), role=role, kind=kind, content=orjson.dumps(blocks).decode(), at=time.time(), task_id=task_id
        )
        self.database.write(
            lambda conn: transcripts.append(conn, agent_id, [row], session_id=self.session_id, fence=self.fence)
        )

    def spend(self, model: str, cost_usd: float | None, task: TaskRecord | None = None) -> None:
        self.database.write(
            lambda conn: ledger.book(
                conn, response_id=os.urandom(8).hex(), session_id=self.session_id, agent_id=task.agent_id if task else self.session_id,
                task_id=task.id if task else None, model=model, input_tokens=100, output_tokens=10, cache_read_tokens=1_000, cost_usd=cost_usd,
            )
        )  # fmt: skip

    def end(self) -> None:
        self.database.write(lambda conn: sessions.end(conn, self.session_id, self.fence, reason="completed"))


@contextmanager
def seeded(program: Program, *, goal: str = "the goal", dead: bool = False, id: str | None = None) -> Iterator[Seed]:
    """A session; `dead`: the process that owned it is proven gone."""
    place = program.home / "data"
    place.mkdir(parents=True, exist_ok=True)
    database = Database.open(place / "coordinator.db")
    owner = leases.this_owner()
    if dead:
        owner = Owner(owner.pid, owner.started_at - 1_000, owner.host)

    def begin(conn: Connection) -> tuple[str, int]:
        session = sessions.create(conn, id=id, goal=goal, cwd=str(program.cwd), model="model-x", options={})
        return session.id, leases.acquire(conn, session.id, owner, time.time(), ttl=-1.0 if dead else 600.0)

    session_id, fence = database.write(begin)
    try:
        yield Seed(database, session_id, owner, fence)
    finally:
        database.close()
