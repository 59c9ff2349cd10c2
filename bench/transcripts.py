"""Transcript writes of 200 workers beside raw `sqlite3` with the same bytes: `python -m bench.transcripts`.

Ours: 200 agents at once, each appends MESSAGES messages of 20 KB one after the other, every one durable before the next, fenced by
owner and attempt, through the one writer. Raw: the same rows, one `executemany` and one commit for each hundred, nothing else. Rows a
second by the clock, in turn in one process; the store's settings (WAL, synchronous) are the same.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from coordinator.agents.journal import TaskJournal
from coordinator.store import Store
from tasks import leases, registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import Attempt, NewTask
from tasks.writer import Writer
from worker_agent.config import SystemClock
from worker_agent.messages import user

WORKERS, MESSAGES = 200, 10
TEXT = "x = 1  # a line\n" * 1250


def ours(place: Path) -> float:
    """Rows a second."""
    db = Database.open(place)
    owner, clock = leases.this_owner(), SystemClock()
    session = db.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model="m", options={}))
    fence = db.write(lambda conn: leases.acquire(conn, session.id, owner, clock.now()))
    writer = Writer(db)
    store = Store(db, writer, session.id, owner, clock, fence)

    def begun(conn: Connection) -> list[Attempt]:
        tasks = [registry.create(conn, NewTask(session_id=session.id, description="d", prompt="p")) for _ in range(WORKERS)]
        return [Attempt(task.id, registry.claim(conn, task.id, owner=owner, fence=fence) or 0) for task in tasks]

    journals = [TaskJournal(store, attempt.task_id, attempt) for attempt in db.write(begun)]

    async def append(journal: TaskJournal) -> None:
        for _ in range(MESSAGES):
            await journal.append((user(TEXT, kind="tool_results"),))

    async def everyone() -> float:
        began = time.perf_counter()
        await asyncio.gather(*map(append, journals))
        return WORKERS * MESSAGES / (time.perf_counter() - began)

    try:
        return asyncio.run(everyone())
    finally:
        writer.close()
        db.close()


def raw(place: Path) -> float:
    """Rows a second."""
    messages = [user(TEXT, kind="tool_results") for _ in range(WORKERS * MESSAGES)]
    with closing(sqlite3.connect(place, isolation_level=None)) as driver:
        driver.execute("PRAGMA journal_mode = WAL")
        driver.execute("PRAGMA synchronous = NORMAL")
        driver.execute("CREATE TABLE messages (agent TEXT, seq INTEGER, id TEXT, content TEXT, PRIMARY KEY (agent, seq))")
        began = time.perf_counter()
        for first in range(0, len(messages), 100):
            driver.execute("BEGIN IMMEDIATE")
            rows = [
                (f"a{n % WORKERS}", n // WORKERS, m.id, m.wire.decode())
                for n, m in enumerate(messages[first : first + 100], first)
            ]
            driver.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", rows)
            driver.execute("COMMIT")
        return len(messages) / (time.perf_counter() - began)


def ratio(pairs: int) -> list[float]:
    """Ours over raw, a value a pair."""
    with tempfile.TemporaryDirectory() as directory:
        places = [(Path(directory) / f"ours{n}.db", Path(directory) / f"raw{n}.db") for n in range(pairs)]
        return [ours(mine) / raw(theirs) for mine, theirs in places]


if __name__ == "__main__":
    print(" ".join(f"{value:.2f}" for value in ratio(5)))
