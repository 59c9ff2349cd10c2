"""A store to test with: a database in a directory, a clock that tests move, an owner, a session that it owns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tasks import leases, registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import MessageRecord, NewTask, Owner, TaskRecord
from tests.support.postgres import server

T = TypeVar("T")
ROOT = Path(__file__).parents[3]


class ManualClock:
    """Seconds since the epoch; every look is a millisecond later, so that what was made later is later."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass
class Store:
    db: Database
    clock: ManualClock
    session_id: str
    owner: Owner
    fence: int

    @property
    def place(self) -> str:
        """What another process opens it by."""
        return str(self.db.path or self.db.place.url)

    def write(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.db.write(lambda conn: fn(conn, *args, **kwargs))

    def read(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.db.read(lambda conn: fn(conn, *args, **kwargs))

    def task(self, **changes: Any) -> TaskRecord:
        asked = {"session_id": self.session_id, "description": "look around", "prompt": "Look.", "fence": self.fence}
        return self.write(registry.create, NewTask(**(asked | changes)))

    def claim(self, task: TaskRecord) -> int:
        attempt = self.write(registry.claim, task.id, owner=self.owner, fence=self.fence)
        assert attempt is not None
        return attempt


@cache
def _template() -> bytes:
    """A new database, made once: the migration takes longer than most tests."""
    with tempfile.TemporaryDirectory() as directory:
        Database.open(Path(directory) / "template.db").close()
        return (Path(directory) / "template.db").read_bytes()


# For tests of what only an SQLite file has: pragmas, a full disk, a file that goes away.
on_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


def open_store(directory: Path) -> Store:
    (directory / "store.db").write_bytes(_template())
    clock = ManualClock()
    return own_session(Database.open(directory / "store.db", clock=clock), clock)


def open_server_store() -> Store:
    """The same on a PostgreSQL server."""
    clock = ManualClock()
    return own_session(Database.open(server().new_database(), clock=clock), clock)


def own_session(db: Database, clock: ManualClock) -> Store:
    owner = leases.this_owner()

    def begin(conn: Connection) -> tuple[str, int]:
        session = sessions.create(conn, goal="a goal", cwd="/", model="some-model", options={})
        return session.id, leases.acquire(conn, session.id, owner, clock())

    session_id, fence = db.write(begin)
    return Store(db, clock, session_id, owner, fence)


def run_out(store: Store) -> None:
    """The lease of the session's owner ends now, by whichever clock."""
    store.write(lambda conn: conn.set("sessions", {"lease_expires_at": 0.0}, "id = :of", of=store.session_id))


def message(id: str, **changes: Any) -> MessageRecord:
    fields = {"id": id, "role": "user", "kind": "prompt", "content": '[{"type":"text","text":"hi"}]', "at": 1.0}
    return MessageRecord(**(fields | changes))


def start_python(code: str, *args: object) -> subprocess.Popen[str]:
    """Another process that runs `code` with the packages of this tree."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def outputs(processes: list[subprocess.Popen[str]], timeout: float = 120) -> list[str]:
    """What the processes printed; fails with their errors if one failed."""
    found = [process.communicate(timeout=timeout) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), [err for _, err in found]
    return [out for out, _ in found]
