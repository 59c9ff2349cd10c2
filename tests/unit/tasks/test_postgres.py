"""What is PostgreSQL's own: the schema that the revisions make there, its notifications, its lock. What the store promises
on either database is tested on both (`conftest.py`)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tasks import agents, events, leases, ledger, models, outbox, registry, sessions, transcripts
from tasks.db import Database, DatabaseError
from tasks.errors import Ambiguous, Fenced, Owned
from tasks.migrating import connected
from tasks.records import Ended, Owner, StepRecord
from tasks.states import TaskStatus
from tasks.watch import Watcher
from tasks.writer import Writer
from tests.support.postgres import server
from tests.support.skips import needs_postgres
from tests.unit.tasks.support import ManualClock, Store, message, open_server_store, own_session, run_out

pytestmark = needs_postgres


@pytest.fixture
def url() -> str:
    return server().empty_database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    clock = ManualClock()
    made = own_session(Database.open(url, clock=clock), clock)
    yield made
    made.db.close()


def test_an_empty_database_gets_the_schema_of_the_models(store: Store, url: str) -> None:
    with connected(store.db.place) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, models.metadata) == []
    again = Database.open(url)
    assert [row[0] for row in again.query("SELECT id FROM v_sessions")[1]] == [store.session_id]
    again.close()


def test_six_first_starts_at_once_all_succeed(url: str) -> None:
    failed: list[BaseException] = []

    def start() -> None:
        try:
            Database.open(url).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_newer_database_is_refused(store: Store, url: str) -> None:
    store.db.write(lambda conn: conn.execute("UPDATE alembic_version SET version_num = '0999'"))
    with pytest.raises(DatabaseError, match="newer version"):
        Database.open(url)


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError) as refused:
        Database.open(f"postgresql://tester:secret@/x?host={tmp_path}")
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_a_run_and_its_notification_are_told_once(store: Store) -> None:
    task = store.task(prompt="\x00\ud800", name="scout")
    attempt = store.claim(task)
    figures = {
        "tool_uses": 1,
        "input_tokens": 2**40,
        "output_tokens": 3,
        "cost_usd": None,
        "activities": ["x"],
        "cache_read_tokens": 4,
    }
    assert store.write(registry.progress, task.id, attempt=attempt, **figures)
    ending = Ended(status=TaskStatus.COMPLETED, result="a\x00b", end_reason="completed")
    assert store.write(registry.finish, task.id, attempt, ending)
    assert not store.write(registry.kill, task.id, by="x", notify=True, end_reason="k").changed
    [waiting] = store.read(outbox.waiting, store.session_id)
    step = StepRecord(kind="answer", message_id="m1", content="[]", at=1.0)
    for content in ("[1]", "[1,2]"):
        record = StepRecord(kind="answer", message_id="m1", content=content, at=1.0)
        store.write(transcripts.step, store.session_id, record, session_id=store.session_id, fence=store.fence)
    assert [s.content for s in store.read(transcripts.steps, store.session_id)] == ["[1,2]"]
    rows = [message(step.message_id), message("m2")]
    arguments = {"session_id": store.session_id, "fence": store.fence, "consumed": [waiting.id]}
    for _ in range(2):
        store.write(transcripts.append, store.session_id, rows, **arguments)
    assert store.read(outbox.waiting, store.session_id) == store.read(transcripts.steps, store.session_id) == []
    assert [m.seq for m in store.read(transcripts.load, store.session_id)] == [0, 1]
    assert [e.kind for e in store.read(events.since, task_id=task.id)] == [
        "task_created",
        "task_running",
        "task_completed",
    ]
    assert store.read(agents.resolve, None, "scout")[1] == store.read(registry.get, task.id)


def test_a_fenced_owner_writes_nothing(store: Store) -> None:
    task = store.task()
    attempt = store.claim(task)
    run_out(store)
    store.write(leases.acquire, store.session_id, Owner(1, 0.0, "elsewhere"), store.clock() + 60)
    assert not store.write(registry.finish, task.id, attempt, Ended(status=TaskStatus.KILLED, result=None, end_reason="x"))
    with pytest.raises(Fenced):
        store.write(transcripts.append, store.session_id, [message("m1")], session_id=store.session_id, fence=store.fence)


def test_a_fork_and_a_removal_take_everything_along(store: Store) -> None:
    step = StepRecord(kind="answer", message_id="m2", content="[]", at=1.0)
    store.write(transcripts.append, store.session_id, [message("m1")], session_id=store.session_id, fence=store.fence)
    store.write(transcripts.step, store.session_id, step, session_id=store.session_id, fence=store.fence)
    fork = store.write(sessions.fork, store.session_id)
    assert [m.id for m in store.read(transcripts.load, fork.id)] == ["m1"]
    assert store.read(transcripts.steps, fork.id) == [step]
    store.write(sessions.end, store.session_id, store.fence)
    store.write(sessions.remove, store.session_id)
    assert [s.id for s in store.read(sessions.list_sessions)] == [fork.id]


def test_ids_are_resolved_by_beginning(store: Store) -> None:
    one, _ = store.task(id="aab000001"), store.task(id="aac000001")
    assert store.read(registry.resolve, "aab") == one
    with pytest.raises(Ambiguous):
        store.read(registry.resolve, "aa")


def test_sums_and_views_are_as_on_sqlite(store: Store) -> None:
    for id, at in (("r1", 0.25), ("r2", 86_400.0)):
        book = {
            "response_id": id,
            "session_id": store.session_id,
            "agent_id": "a1",
            "model": "m",
            "cost_usd": 0.5,
            "at": at,
        }
        assert store.write(ledger.book, **book)
        assert not store.write(ledger.book, **book)
    assert [t.key for t in store.read(ledger.sums, "day")] == ["1970-01-01", "1970-01-02"]
    assert store.read(ledger.total).cost_usd == 1.0
    columns, [row, _] = store.db.query("SELECT * FROM v_cost ORDER BY at")
    assert dict(zip(columns, row, strict=True))["at"] == "1970-01-01T00:00:00.250Z"
    assert [len(store.db.query(f"SELECT * FROM {view}")[1]) for view in ("v_sessions", "v_tasks", "v_events")] == [
        1,
        0,
        1,
    ]
    with pytest.raises(DatabaseError):
        store.db.query("DELETE FROM events")


def test_the_writer_groups_isolates_and_hears_only_others(store: Store) -> None:
    heard = threading.Semaphore(0)
    writer = Writer(store.db, on_foreign_change=heard.release, poll=0.01)

    def fail(conn: object) -> None:
        events.add(conn, store.session_id, None, "lost")
        raise ZeroDivisionError

    async def run() -> list[object]:
        jobs = [lambda conn: events.add(conn, store.session_id, None, "kept"), fail] * 20
        jobs.append(lambda conn: conn.execute("SELECT * FROM nowhere"))
        return await asyncio.gather(*(writer.write(job) for job in jobs), return_exceptions=True)

    results = asyncio.run(run())
    assert [type(r).__name__ for r in results] == ["NoneType", "ZeroDivisionError"] * 20 + ["DatabaseError"]
    assert sorted({e.kind for e in store.read(events.since)}) == ["kept", "session_created"]
    assert not heard.acquire(timeout=0.2)
    store.db.write(lambda conn: events.add(conn, store.session_id, None, "theirs"))
    assert heard.acquire(timeout=10)
    writer.close()


def test_watchers_see_commits(store: Store) -> None:
    with Watcher(store.db) as watcher:
        assert not watcher.changed(0.05)
        store.write(events.add, store.session_id, None, "note")
        assert watcher.changed(10)
        store.read(events.since)
        assert not watcher.changed(0.05)


def test_a_lost_connection_is_made_anew_and_counts_as_a_change(store: Store) -> None:
    def end_others(conn: object) -> None:
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    heard = threading.Semaphore(0)
    writer = Writer(store.db, on_foreign_change=heard.release, poll=0.01)
    other = Database.open(store.db.place.url)
    with Watcher(store.db) as watcher:
        other.read(end_others)
        assert watcher.changed(10)
        assert not watcher.changed(0.05)
        store.write(events.add, store.session_id, None, "note")
        assert watcher.changed(10)
    assert heard.acquire(timeout=10)
    lost = writer.submit(lambda conn: events.add(conn, store.session_id, None, "lost or kept"))
    assert lost.exception() is None or isinstance(lost.exception(), DatabaseError)
    writer.submit(lambda conn: events.add(conn, store.session_id, None, "later")).result()
    assert "later" in [e.kind for e in store.read(events.since)]
    writer.close()
    other.close()


def test_many_threads_of_read_modify_write_lose_none(store: Store) -> None:
    def add(conn: object) -> None:
        value = conn.value("SELECT fence FROM sessions")
        conn.execute("UPDATE sessions SET fence = :v", v=value + 1)

    def work() -> None:
        for _ in range(25):
            store.db.write(add)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.db.read(lambda conn: conn.value("SELECT fence FROM sessions")) == 100 + store.fence


@pytest.mark.parametrize("skew", [-300.0, 300.0])
def test_a_lease_goes_by_the_servers_clock_whatever_that_of_a_machine_says(skew: float) -> None:
    """A process on another machine, whose clock is five minutes off, neither takes a session that is driven nor shows it as
    left alone; nor does the lease of one whose own clock is off look lost."""
    store = open_server_store()
    elsewhere = Owner(pid=1, started_at=1.0, host="elsewhere")
    fence = store.write(leases.acquire, store.session_id, store.owner, time.time() + skew)
    store.write(leases.renew, store.session_id, fence, time.time() + skew)
    with pytest.raises(Owned):
        store.write(leases.acquire, store.session_id, elsewhere, time.time() - skew)
    held = store.read(sessions.get, store.session_id)
    assert held.lease_expires_at is not None and abs(held.lease_expires_at - store.read(lambda conn: conn.server_time())) < 60
    store.db.close()
