"""A server that goes away for a while: nothing fails, everything waits, nothing is done twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tasks import events, outage
from tasks.connection import Connection, Mark
from tasks.db import Database
from tasks.errors import DatabaseError
from tasks.outage import was_committed
from tasks.watch import Watcher
from tasks.writer import Writer
from tests.support.broken_line import ACCEPTED, HANDSHAKE, Line
from tests.support.postgres import server
from tests.support.skips import needs_postgres
from tests.unit.tasks.support import ManualClock, Store, open_server_store, own_session

pytestmark = needs_postgres


@pytest.fixture
def store() -> Iterator[Store]:
    made = open_server_store()
    yield made
    made.db.close()


@contextmanager
def away(seconds: float) -> Iterator[None]:
    """The server has crashed, and comes back after `seconds`."""
    server().stop()
    back = threading.Timer(seconds, server().start)
    back.start()
    try:
        yield
    finally:
        back.join()


def note(store: Store, text: str) -> Any:
    def job(conn: Connection) -> str:
        events.add(conn, store.session_id, None, "note", {"text": text})
        return text

    return job


def notes(store: Store) -> list[str]:
    return sorted(event.data["text"] for event in store.read(events.since) if event.kind == "note")


def test_what_is_asked_while_the_server_is_away_waits_and_is_done_once(store: Store) -> None:
    heard = threading.Semaphore(0)
    writer = Writer(store.db, on_foreign_change=heard.release, poll=0.01)

    async def work() -> list[str]:
        jobs = [writer.write(note(store, f"n{number}")) for number in range(20)]
        jobs += [asyncio.to_thread(store.db.write, note(store, f"d{number}")) for number in range(3)]
        return await asyncio.gather(*jobs)

    with Watcher(store.db) as watcher:
        with away(1.0):
            done = asyncio.run(work())
        assert watcher.changed(10)
    assert notes(store) == sorted(done) == sorted([f"n{n}" for n in range(20)] + [f"d{n}" for n in range(3)])
    assert heard.acquire(timeout=10)  # what others did meanwhile went unheard
    writer.close()


@pytest.mark.parametrize("by_writer", [False, True])
def test_who_is_frozen_within_a_transaction_holds_nobody_up_and_does_it_once_when_it_thaws(
    store: Store, by_writer: bool
) -> None:
    begun, thawed, tries = threading.Event(), threading.Event(), []

    def freezing(conn: Connection) -> str:
        tries.append(1)
        begun.set()
        assert thawed.wait(30)
        return str(note(store, "frozen")(conn))

    writer, frozen = Writer(store.db), Database.open(store.db.place.url or "")
    held = writer.submit(freezing) if by_writer else None
    thread = threading.Thread(target=frozen.write, args=(freezing,)) if not by_writer else None
    if thread is not None:
        thread.start()
    assert begun.wait(30)
    store.db.write(note(store, "other"))  # returns, though who has the lock says nothing
    assert notes(store) == ["other"]
    thawed.set()
    if thread is not None:
        thread.join()
    assert held is None or held.result(30) == "frozen"
    assert notes(store) == ["frozen", "other"] and len(tries) == 2
    writer.close()
    frozen.close()


def test_a_watcher_hears_again_after_an_outage_and_counts_it_as_a_change(store: Store) -> None:
    with Watcher(store.db) as watcher:
        assert not watcher.changed(0)
        with away(0.5):
            assert not watcher.changed(0)
        assert watcher.changed(10)
        assert not watcher.changed(0.05)
        store.db.write(note(store, "later"))
        assert watcher.changed(10)


@pytest.mark.parametrize("by_writer", [True, False])
def test_a_commit_whose_answer_was_lost_is_not_done_again(
    store: Store, by_writer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server commits, and the connection breaks before it can say so."""
    import psycopg

    left, execute = [1], psycopg.Connection.execute

    def lose_the_answer(self: Any, query: Any, *rest: Any, **more: Any) -> Any:
        answer = execute(self, query, *rest, **more)
        if query == "COMMIT" and left and left.pop():
            self.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(psycopg.Connection, "execute", lose_the_answer)
    if by_writer:
        writer = Writer(store.db)
        assert writer.submit(note(store, "once")).result() == "once"
        writer.close()
    else:
        assert store.db.write(note(store, "once")) == "once"
    assert left == [] and notes(store) == ["once"]


def test_a_mark_says_of_a_transaction_whether_it_took_place(store: Store) -> None:
    kept = store.db.write(lambda conn: conn.mark)
    lost: list[Mark | None] = []

    def fail(conn: Connection) -> None:
        lost.append(conn.mark)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.db.write(fail)
    assert kept and lost[0]
    store.db.pool.close()  # a connection that broke is not used again
    assert was_committed(store.db.pool, kept) and not was_committed(store.db.pool, lost[0])


def test_what_a_crash_took_counts_as_lost_though_the_server_gives_its_number_again(store: Store) -> None:
    """Of a transaction that wrote nothing durable a server that crashes knows nothing, and counts on from before it."""

    def number(conn: Connection) -> Any:
        return conn.value("SELECT pg_current_xact_id()::text"), conn.mark

    connection = store.db.pool.take()
    with suppress(DatabaseError, store.db.pool.driver.errors), connection.transaction():
        lost_id, lost = number(connection)
        server().stop()
    server().start()
    others = {store.db.write(number)[0] for _ in range(20)}
    assert lost_id in others, "given again"
    assert lost is not None and not was_committed(store.db.pool, lost)


def test_marks_of_connections_that_are_long_gone_are_taken_away(store: Store) -> None:
    store.db.write(lambda conn: conn.execute("INSERT INTO commit_marks VALUES ('old', 7, 0), ('new', 7, 1e12)"))
    other = Database.open(store.place)
    other.write(note(store, "first"))
    other.close()
    left = {row[0] for row in store.db.query("SELECT connection FROM commit_marks")[1]}
    assert "new" in left and "old" not in left


def test_an_outage_that_does_not_end_is_told_in_one_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "OUTAGE", 0.3)
    writer = Writer(store.db)
    with away(3.0):
        for ask in (lambda: store.read(events.since), lambda: writer.submit(note(store, "x")).result()):
            with pytest.raises(DatabaseError, match=r"gave an error: .*refused") as told:
                ask()
            assert "\n" not in str(told.value)
    writer.close()


def test_a_server_that_is_not_there_at_the_start_is_said_at_once() -> None:
    with pytest.raises(DatabaseError, match="refused"):
        Database.open("postgresql://nobody@127.0.0.1:9/nothing")


# ── a line that breaks ───────────────────────────────────────────────────────────────────────────────────────────────

CONNECTING: tuple[tuple[bytes, bool], ...] = ((ACCEPTED, False), (HANDSHAKE, False), (HANDSHAKE, True))
READING = (*CONNECTING, *((at, arrives) for at in (b"BEGIN", b"SELECT 'read'", b"ROLLBACK") for arrives in (False, True)))
WRITING = (
    *CONNECTING,
    *((at, arrives) for at in (b"BEGIN", b"INSERT INTO events", b"COMMIT") for arrives in (False, True)),
)
GROUPED = (*WRITING, *((at, arrives) for at in (b"SAVEPOINT", b"RELEASE", b"LISTEN") for arrives in (False, True)))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(outage, "PAUSE", 0.01)
    with Line(server().port) as opened:
        yield opened


@pytest.fixture
def far(line: Line) -> Iterator[Store]:
    """A store at the end of the line."""
    clock = ManualClock()
    url = server().new_database().replace(f":{server().port}/", f":{line.port}/")
    made = own_session(Database.open(url, clock=clock), clock)
    yield made
    made.db.close()


def broken(line: Line, moments: tuple[tuple[bytes, bool], ...], ask: Callable[[str], object]) -> list[str]:
    """Have something asked while the line breaks at each of the moments, twice in a row; what was asked, in words."""
    asked = []
    for at, arrives in moments:
        asked.append(name := f"{at!r} {arrives}")
        line.break_all()
        line.cut(at, arrives=arrives, times=2)
        assert ask(name) == name, name
        assert line.left == 0, f"{name}: nothing broke"
    return asked


def test_a_read_is_answered_wherever_the_line_breaks(line: Line, far: Store) -> None:
    broken(line, READING, lambda name: far.db.read(lambda conn: (conn.value("SELECT 'read'"), name)[1]))
    broken(line, READING, lambda name: far.db.query("SELECT 'read'")[1] == [("read",)] and name)


def test_a_write_is_done_once_wherever_the_line_breaks(line: Line, far: Store) -> None:
    asked = broken(line, WRITING, lambda name: far.db.write(note(far, name)))
    assert notes(far) == sorted(asked)


@pytest.mark.parametrize("listens", [True, False])
def test_the_writer_does_everything_once_wherever_the_line_breaks(line: Line, far: Store, listens: bool) -> None:
    writer = Writer(far.db, on_foreign_change=(lambda: None) if listens else None, poll=3600)
    moments = GROUPED if listens else tuple(moment for moment in GROUPED if moment[0] != b"LISTEN")
    asked = broken(line, moments, lambda name: writer.submit(note(far, name)).result(30))
    assert notes(far) == sorted(asked)
    writer.close()


@pytest.mark.parametrize("moment", [*CONNECTING, (b"LISTEN", False), (b"LISTEN", True)], ids=str)
def test_who_begins_to_listen_while_the_line_is_broken_hears_all_the_same(
    line: Line, far: Store, moment: tuple[bytes, bool]
) -> None:
    far.db.pool.close()
    line.cut(moment[0], arrives=moment[1], times=2)
    with Watcher(far.db) as watcher:
        assert watcher.changed(10), "what was missed is not known"
        assert line.left == 0 and not watcher.changed(0.05)
        far.db.write(note(far, "later"))
        assert watcher.changed(10)
