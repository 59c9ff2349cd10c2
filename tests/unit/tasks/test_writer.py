from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager

import pytest

from tasks import events, registry
from tasks.connection import Connection
from tasks.db import Database, DatabaseError
from tasks.errors import NotFound
from tasks.watch import Watcher
from tasks.writer import Writer
from tests.unit.tasks.support import Store, on_sqlite, outputs, start_python


def note(store: Store, text: str = "") -> object:
    return lambda conn: events.add(conn, store.session_id, None, "note", {"text": text})


def notes(store: Store) -> list[str]:
    return [e.data["text"] for e in store.read(events.since, limit=10_000) if e.kind == "note"]


@pytest.fixture
def writer(store: Store):
    made = Writer(store.db)
    yield made
    made.close()


def test_a_write_is_durable_when_it_returns_and_gives_what_the_job_gave(store: Store, writer: Writer) -> None:
    async def run() -> None:
        assert await writer.write(lambda conn: (events.add(conn, store.session_id, None, "note", {"text": "x"}), 7)[1]) == 7
        assert notes(store) == ["x"]

    asyncio.run(run())


def test_jobs_run_in_the_order_they_were_added(store: Store, writer: Writer) -> None:
    async def run() -> None:
        for number in range(50):
            writer.submit(note(store, str(number)))
        await writer.flush()
        assert notes(store) == [str(n) for n in range(50)]

    asyncio.run(run())


def hold(writer: Writer) -> threading.Event:
    """Keep the writer busy until the event is set, so that what comes meanwhile becomes one group."""
    entered, release = threading.Event(), threading.Event()
    writer.submit(lambda conn: (entered.set(), release.wait(10)))
    assert entered.wait(10)
    return release


def test_jobs_that_wait_together_share_a_commit(store: Store, writer: Writer) -> None:
    release = hold(writer)
    futures = [writer.submit(note(store)) for _ in range(100)]
    before = writer.commits
    release.set()
    wait(futures)
    assert len(notes(store)) == 100
    assert writer.commits - before <= 2


def test_a_job_that_raises_harms_none_of_its_neighbours(store: Store, writer: Writer) -> None:
    def half(conn: object) -> None:
        events.add(conn, store.session_id, None, "note", {"text": "half"})
        raise ZeroDivisionError

    release = hold(writer)
    jobs = [
        note(store, "a"), half, lambda conn: registry.get(conn, "nothing"), note(store, "b"),
        lambda conn: conn.execute("SELECT * FROM nowhere"),
        lambda conn: conn.execute("INSERT INTO events (session_id) VALUES ('x')"), note(store, "c"),
    ]  # fmt: skip
    futures = [writer.submit(job) for job in jobs]
    release.set()
    failed = [type(future.exception()).__name__ for future in futures]
    assert failed == [
        "NoneType",
        "ZeroDivisionError",
        "NotFound",
        "NoneType",
        "DatabaseError",
        "IntegrityError",
        "NoneType",
    ]
    assert notes(store) == ["a", "b", "c"]


def test_an_interrupt_raised_by_a_job_reaches_its_waiter_and_the_writer_goes_on(store: Store, writer: Writer) -> None:
    async def run() -> None:
        def interrupt(conn: object) -> None:
            raise KeyboardInterrupt

        future = writer.submit(interrupt)
        await writer.write(note(store, "after"))
        assert isinstance(future.exception(), KeyboardInterrupt)

    asyncio.run(run())
    assert notes(store) == ["after"]


def test_no_future_resolves_before_the_commit_and_all_are_told_if_it_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = threading.Event()
    begun = Connection.transaction

    @contextmanager
    def transaction(conn: Connection, *, reading: bool = False) -> Iterator[None]:
        with begun(conn, reading=reading):
            yield
            if not reading:  # the commit is next
                resolved.extend(future.done() for future in futures)
                if fail.is_set():
                    conn.execute("SELECT * FROM nowhere")

    monkeypatch.setattr(Connection, "transaction", transaction)
    db = Database.open(store.place)

    resolved: list[bool] = []
    futures: list[object] = []
    writer = Writer(db)
    release = hold(writer)
    futures.extend(writer.submit(note(store)) for _ in range(3))
    fail.set()
    release.set()
    assert [type(future.exception()) for future in futures] == [DatabaseError] * 3
    assert resolved and not any(resolved)
    assert notes(store) == []
    fail.clear()
    writer.submit(note(store, "later")).result()
    assert notes(store) == ["later"]
    writer.close()
    db.close()


@on_sqlite
def test_a_dead_database_gives_every_waiter_the_error(store: Store) -> None:
    assert store.db.path is not None
    store.db.close()
    for path in store.db.path.parent.iterdir():
        path.unlink()
    store.db.path.mkdir()

    async def run() -> None:
        writer = Writer(store.db)
        results = await asyncio.gather(*(writer.write(note(store)) for _ in range(5)), return_exceptions=True)
        assert len(results) == 5
        for result in results:  # which of the two is told depends on when the writer last looked at the file
            assert isinstance(result, DatabaseError) and re.search("cannot be opened|was deleted or replaced", str(result))
        writer.close()

    asyncio.run(run())


@on_sqlite
def test_a_full_disk_is_told_and_the_writer_recovers(store: Store, writer: Writer) -> None:
    release = hold(writer)
    futures = [
        writer.submit(note(store, "small")),
        writer.submit(lambda conn: conn.execute("PRAGMA max_page_count=1")),
        writer.submit(lambda conn: [events.add(conn, store.session_id, None, "n", {"x": "y" * 9000}) for _ in range(99)]),
    ]
    release.set()
    assert futures[2].exception() is not None
    assert ("small" in notes(store)) is (futures[0].exception() is None)
    writer.submit(lambda conn: conn.execute("PRAGMA max_page_count=4294967294")).result()
    writer.submit(note(store, "later")).result()
    assert "later" in notes(store)


def test_a_job_that_breaks_the_transaction_fails_its_group_and_no_later_one(store: Store, writer: Writer) -> None:
    def break_it(conn: object) -> None:
        conn.execute("ROLLBACK")
        raise ZeroDivisionError

    release = hold(writer)
    futures = [writer.submit(note(store, "lost")), writer.submit(break_it), writer.submit(note(store, "never ran"))]
    release.set()
    assert [type(future.exception()) for future in futures] == [DatabaseError, ZeroDivisionError, DatabaseError]
    writer.submit(note(store, "later")).result()
    assert notes(store) == ["later"]


def test_close_commits_what_waits_and_refuses_more(store: Store) -> None:
    writer = Writer(store.db)
    release = hold(writer)
    futures = [writer.submit(note(store, str(n))) for n in range(300)]
    release.set()
    writer.close()
    writer.close()
    assert all(future.done() for future in futures)
    assert len(notes(store)) == 300
    with pytest.raises(DatabaseError, match="closed"):
        writer.submit(note(store))


def test_a_cancelled_caller_does_not_take_its_write_back(store: Store, writer: Writer) -> None:
    async def run() -> None:
        release = hold(writer)
        task = asyncio.create_task(writer.write(note(store, "kept")))
        await asyncio.sleep(0)
        task.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await writer.flush()

    asyncio.run(run())
    assert notes(store) == ["kept"]


def test_a_job_that_raises_stop_iteration_does_not_keep_its_neighbours_waiting(store: Store, writer: Writer) -> None:
    async def run() -> list[object]:
        release = hold(writer)
        jobs = [lambda conn: next(iter(())), note(store, "beside")]
        tasks = [asyncio.create_task(writer.write(job)) for job in jobs]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    assert [type(result) for result in asyncio.run(run())] == [RuntimeError, type(None)]
    assert notes(store) == ["beside"]


def test_a_submitted_job_whose_future_was_cancelled_is_still_stored(store: Store, writer: Writer) -> None:
    release = hold(writer)
    assert writer.submit(note(store, "kept")).cancel()
    release.set()
    writer.submit(note(store, "after")).result()
    assert notes(store) == ["kept", "after"]


def test_a_loop_that_is_gone_does_not_disturb_the_writer(store: Store, writer: Writer) -> None:
    async def leave() -> None:
        task = asyncio.create_task(writer.write(note(store, "left behind")))
        await asyncio.sleep(0)
        task.cancel()

    release = hold(writer)
    asyncio.run(leave())
    release.set()
    writer.submit(note(store, "after")).result()
    assert notes(store) == ["left behind", "after"]


def test_only_commits_of_others_are_reported(store: Store) -> None:
    reported = threading.Semaphore(0)
    writer = Writer(store.db, on_foreign_change=reported.release, poll=0.01)
    writer.submit(note(store)).result()
    writer.submit(note(store)).result()
    assert not reported.acquire(timeout=0.1)
    store.db.write(note(store))
    assert reported.acquire(timeout=10)
    outputs([start_python(ADD_ONE, store.place, store.session_id)])
    assert reported.acquire(timeout=10)
    writer.close()


ADD_ONE = """
import sys; from tasks.db import Database; from tasks import events
Database.open(sys.argv[1]).write(lambda c: events.add(c, sys.argv[2], None, "note", {"text": "theirs"}))
"""


def test_changes_while_the_connection_was_lost_are_reported(store: Store) -> None:
    reported = threading.Semaphore(0)
    writer = Writer(store.db, on_foreign_change=reported.release, poll=0.01)

    left = [1]

    def lose(conn: object) -> None:
        if left and left.pop():
            conn.driver.close()
        conn.execute("SELECT 1")

    failed = writer.submit(lose)
    assert isinstance(failed.exception(), Exception) is store.db.is_sqlite  # a server is asked again
    assert reported.acquire(timeout=10)
    writer.submit(note(store)).result()
    writer.close()


def test_a_listener_that_raises_does_not_end_the_writer(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)

    def listener() -> None:
        called.release()
        raise ZeroDivisionError

    writer = Writer(store.db, on_foreign_change=listener, poll=0.01)
    for _ in range(2):
        store.db.write(note(store))
        assert called.acquire(timeout=10)
    writer.submit(note(store)).result()
    writer.close()
    assert "listener for foreign changes failed" in caplog.text


def test_an_error_that_nobody_asks_for_is_logged(store: Store, writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    wait([writer.submit(lambda conn: registry.get(conn, "nothing"))])
    writer.submit(note(store)).result()
    assert "no task nothing" in caplog.text


def test_a_program_that_forgets_to_close_loses_nothing_and_ends(store: Store) -> None:
    code = """
import sys; from tasks.db import Database; from tasks.writer import Writer; from tasks import events
writer = Writer(Database.open(sys.argv[1]))
for n in range(20): writer.submit(lambda c: events.add(c, sys.argv[2], None, "note", {"text": "x"}))
"""
    outputs([start_python(code, store.place, store.session_id)], timeout=30)
    assert len(notes(store)) == 20


def test_watchers_see_commits_of_others_and_only_once(store: Store) -> None:
    with Watcher(store.db) as watcher:
        assert not watcher.changed(0)
        store.db.write(note(store))
        assert watcher.changed(5)  # at once on SQLite; a server tells
        assert not watcher.changed(0.01)
        writer = Writer(store.db)
        timer = threading.Timer(0.05, lambda: writer.submit(note(store)))
        timer.start()
        assert watcher.changed(10)
        timer.join()
        writer.close()


@on_sqlite
def test_two_thousand_small_writes_of_fifty_tasks_need_few_commits_and_little_time(store: Store) -> None:
    task = store.task()
    attempt = store.claim(task)
    figures = {"input_tokens": 2, "output_tokens": 3, "cost_usd": None, "activities": ["Read a.py"]}

    async def work(writer: Writer) -> None:
        for number in range(40):
            assert await writer.write(
                lambda conn, n=number: registry.progress(conn, task.id, attempt=attempt, tool_uses=n, **figures)
            )

    async def run() -> tuple[int, float]:
        writer = Writer(store.db)
        await writer.write(lambda conn: registry.get(conn, task.id))
        began = time.process_time()
        await asyncio.gather(*(work(writer) for _ in range(50)))
        used = time.process_time() - began
        writer.close()
        return writer.commits, used / 2000

    commits, each = asyncio.run(run())
    assert commits < 400
    assert each < 0.0002, f"{each * 1e6:.0f} µs of CPU a write"


STRESS = """
import asyncio, sys
from tasks.db import Database; from tasks.writer import Writer
def add(conn):
    value = conn.value("SELECT fence FROM sessions")
    conn.execute("UPDATE sessions SET fence = :v", v=value + 1)
def fail(conn):
    add(conn)
    raise ZeroDivisionError
async def main():
    writer = Writer(Database.open(sys.argv[1]))
    async def work():
        for _ in range(10):
            await writer.write(add)
            try: await writer.write(fail)
            except ZeroDivisionError: pass
    await asyncio.gather(*(work() for _ in range(6)))
    writer.close()
asyncio.run(main())
"""


@pytest.mark.slow
def test_eight_processes_with_writers_lose_no_update_and_keep_no_failed_one(store: Store) -> None:
    outputs([start_python(STRESS, store.place) for _ in range(8)])
    assert store.db.read(lambda conn: conn.value("SELECT fence FROM sessions")) == 480 + store.fence


def test_not_found_passes_through_a_write_unchanged(store: Store, writer: Writer) -> None:
    with pytest.raises(NotFound):
        asyncio.run(writer.write(lambda conn: registry.get(conn, "nothing")))


@on_sqlite
def test_a_full_disk_inside_a_job_is_told_in_words_and_a_smaller_write_may_pass(store: Store, writer: Writer) -> None:
    def grow(conn: object) -> None:
        pages = conn.value("PRAGMA page_count")
        conn.execute(f"PRAGMA max_page_count = {pages}")
        try:
            events.add(conn, store.session_id, None, "note", {"text": "x" * 1_000_000})
        finally:
            conn.execute("PRAGMA max_page_count = 1000000")

    error = writer.submit(grow).exception()
    assert isinstance(error, DatabaseError) and str(error).endswith("the disk is full; free some space")
    writer.submit(note(store, "small")).result()
    assert notes(store) == ["small"]
