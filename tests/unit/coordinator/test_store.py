"""The first failure of the database is the last: nothing is stored after it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from coordinator.other_processes import lease
from coordinator.store import Store
from coordinator.wakes import Signal
from tasks import leases, sessions
from tasks.db import Database
from tasks.errors import DatabaseError
from tasks.writer import Writer
from worker_agent.config import SystemClock


@pytest.fixture
def store(tmp_path: Path) -> Any:
    database = Database.open(tmp_path / "store.db")
    session = database.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model="m", options={}))
    owner, clock = leases.this_owner(), SystemClock()
    fence = lease.acquire(database, session.id, owner, clock)
    store = Store(database, Writer(database), session.id, owner, clock, fence, failed=Signal())
    yield store
    store.writer.close()
    database.close()


def broken(conn: Any) -> None:
    raise DatabaseError("the disk is full")


def rename(store: Store) -> Any:
    return lambda conn: sessions.update_details(conn, store.session_id, title="later")


def title(store: Store) -> str | None:
    return store.database.read(lambda conn: sessions.get(conn, store.session_id)).title


@pytest.mark.parametrize("waited_for", [True, False])
def test_nothing_is_stored_after_the_first_failure(store: Store, waited_for: bool) -> None:
    told: list[str] = []
    store.failed.listen(lambda: told.append(str(store.failure)))

    async def run() -> None:
        if waited_for:
            with pytest.raises(DatabaseError):
                await store.write(broken)
        else:
            store.submit(broken)
            await store.writer.flush()
        with pytest.raises(DatabaseError, match="the disk is full"):
            await store.write(rename(store))
        store.submit(rename(store))
        await store.writer.flush()

    asyncio.run(run())
    assert told == ["the disk is full"]
    assert title(store) is None


def test_the_lease_is_given_back_also_after_a_failure(store: Store) -> None:
    store.fail(DatabaseError("the disk is full"))
    asyncio.run(lease.release(store))
    assert store.database.read(lambda conn: sessions.get(conn, store.session_id)).owner is None


def test_a_mistake_of_a_job_is_no_failure_of_the_store(store: Store) -> None:
    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await store.write(lambda conn: 1 / 0)
        await store.write(rename(store))

    asyncio.run(run())
    assert (store.failure, title(store)) == (None, "later")


@pytest.mark.parametrize(("number", "fails"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_a_full_disk_beside_the_database_counts_as_its_failure(store: Store, number: int, fails: bool) -> None:
    store.fail_if_full(OSError(number, "no", "/spill/a.txt"))
    assert (store.failure is not None) is fails
