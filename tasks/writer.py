"""`Writer`: many small writes, few commits.

1. One thread with one write connection. Jobs that are waiting when it looks share one transaction, so under load the
   commits become fewer, not the waits longer; each runs in a savepoint of its own, so none harms its neighbours.
2. A future resolves only after the commit that holds its job. If the commit fails, every job of the group is told; while
   a server is away the group waits, and is tried again as a whole (`outage.py`).
3. Between groups it looks whether *another* connection has committed (`watch.py`) and says so, from the thread.
4. The thread is a daemon: a forgotten `close` or an interrupt in the middle of leaving must not keep the process from
   ending. Nothing is lost by that: signals reach the main thread only, the end of the interpreter closes every writer
   in order (atexit), and what a hard end cuts off was never reported as done. Cancelling a caller does not take its
   job back.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from tasks.connection import Connection, Mark
from tasks.db import Database
from tasks.errors import DatabaseError, IntegrityError
from tasks.explain import explain, is_busy
from tasks.outage import Patience, is_away, was_committed
from tasks.watch import PostgresProbe, Probe, SqliteProbe

T = TypeVar("T")
GROUP = 256  # jobs in one transaction at most, so that other processes get their turn
TRIES = 3  # for the write lock, each up to the busy timeout of 10 s

log = logging.getLogger(__name__)


class _Job:
    """A function and who waits for it: an asyncio future of `loop`, or a thread-safe one."""

    __slots__ = ("error", "fn", "future", "loop", "value")

    def __init__(self, fn: Callable[[Connection], Any], future: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.fn = fn
        self.future = future
        self.loop = loop
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self, connection: Connection) -> None:
        """The one place where anything that a job raises is kept for its waiter."""
        self.value = self.error = None
        try:
            self.value = self.fn(connection)
        except BaseException as error:
            self.error = error

    def fail(self, error: BaseException) -> None:
        """Its group was not stored; its own error stays."""
        self.error = self.error or error

    def explain(self, explained: Callable[[BaseException | None], BaseException | None]) -> None:
        self.error = explained(self.error)

    def settle(self) -> None:
        """In the waiter's thread, or for a thread-safe future anywhere. A waiter that gave up is left alone."""
        if self.future.done():
            return
        with contextlib.suppress(InvalidStateError):  # it gave up just now, in its own thread
            if self.error is None:
                self.future.set_result(self.value)
            else:
                self.future.set_exception(self._tellable(self.error))

    @staticmethod
    def _tellable(error: BaseException) -> BaseException:
        """A future cannot carry `StopIteration`: it would end the coroutine that waits."""
        return RuntimeError("a write raised StopIteration") if isinstance(error, StopIteration) else error


class Writer:
    """Owns a thread from construction to `close`. `poll` is in seconds."""

    def __init__(self, db: Database, on_foreign_change: Callable[[], None] | None = None, poll: float = 0.05) -> None:
        self._db = db
        self._on_foreign_change = on_foreign_change
        self._poll = poll if on_foreign_change is not None else None
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.commits = 0
        self._session = _Session(db, on_foreign_change)  # here, so that no change after this line is missed
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    async def write(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` in a transaction; durable on return. Raises what it raises, or `DatabaseError`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._add(_Job(fn, future, loop))
        return await future

    def submit(self, fn: Callable[[Connection], T]) -> Future[T]:
        """The same from any thread, without waiting. An error that nobody asks for is logged."""
        future: Future[T] = Future()
        self._add(_Job(fn, future, None))
        return future

    async def flush(self) -> None:
        """Return when everything added so far is committed or has failed."""
        await self.write(lambda connection: None)

    def close(self) -> None:
        """Commit what is waiting, end the thread. Further jobs are refused; closing twice is fine."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        atexit.unregister(self.close)

    def _add(self, job: _Job) -> None:
        with self._wake:
            if self._closing:
                raise DatabaseError("the writer is closed")
            self._jobs.append(job)
            if len(self._jobs) == 1:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            group, closing = self._take()
            if group:
                self._do(group)
            elif closing:
                self._session.close()
                return
            self._session.look()

    def _take(self) -> tuple[list[_Job], bool]:
        with self._wake:
            if not self._jobs and not self._closing:
                self._wake.wait(self._poll)
            return [self._jobs.popleft() for _ in range(min(GROUP, len(self._jobs)))], self._closing

    def _do(self, group: list[_Job]) -> None:
        try:
            self._session.commit(group)
            self.commits += 1
        except BaseException as error:  # told to every waiter: nothing of the group is stored
            for job in group:
                job.fail(error)
        for job in group:
            job.explain(self._explained)
        _settle(group)

    def _explained(self, error: BaseException | None) -> BaseException | None:
        """What a driver raised inside a job, as everywhere in this package."""
        driver = self._db.pool.driver
        if not isinstance(error, driver.errors):
            return error
        refused = isinstance(error, driver.integrity)
        explained = IntegrityError(str(error)) if refused else explain(error, self._db.name)
        explained.__cause__ = error
        return explained


class _Session:
    """The writer's connection and its probe; only its thread touches it once it runs. Opened anew after the database
    broke the connection."""

    def __init__(self, db: Database, on_foreign_change: Callable[[], None] | None) -> None:
        self._db = db
        self._on_foreign_change = on_foreign_change
        self._connection: Connection | None = None
        self._probe: Probe | None = None
        self._was_deaf = False  # others may have committed unheard since the last look
        with contextlib.suppress(db.pool.driver.errors):  # the first job meets the same error and tells its waiter
            self._open()

    def _open(self) -> Connection:
        self._connection = self._connection or self._db.pool.take()
        if self._on_foreign_change is not None:
            self._probe = self._make_probe(self._connection)
        return self._connection

    def _make_probe(self, connection: Connection) -> Probe:
        if self._db.is_sqlite:
            return SqliteProbe(connection)
        return PostgresProbe(self._db, ignore_pid=connection.driver.info.backend_pid)

    def commit(self, group: list[_Job]) -> None:
        tries, patience, errors = 1, Patience(), self._db.pool.driver.errors
        committing: Mark | None = None  # a transaction that may have taken place
        while True:
            self._db.check_file()
            try:
                if committing is not None and was_committed(self._db.pool, committing):
                    return
                committing = None
                connection = self._connection or self._open()
                with connection.transaction():
                    _run_group(connection, group, errors)
                    committing = connection.mark
                return
            except errors as error:
                if is_busy(error) and tries < TRIES:
                    tries += 1
                    continue
                self.close()  # broken or not: the next group begins with a fresh one
                if not (is_away(error) and patience.goes_on()):
                    raise explain(error, self._db.name) from error

    def look(self) -> None:
        """Tell the listener if others committed; also after a connection was lost, which hides changes."""
        if self._on_foreign_change is None:
            return
        try:
            if self._probe is None:
                self._open()
            changed = (self._probe is not None and self._probe.changed()) or self._was_deaf
            self._was_deaf = False
        except Exception as error:  # a driver's; the next write meets it too, and has someone to tell
            log.debug("cannot look for changes: %s", error)
            self.close()
            return
        if changed:
            try:
                self._on_foreign_change()
            except Exception:  # a listener's mistake must not end the writer
                log.exception("the listener for foreign changes failed")

    def close(self) -> None:
        probe, connection = self._probe, self._connection
        self._probe = self._connection = None
        self._was_deaf = True
        for opened in (probe, connection):
            if opened is not None:
                opened.close()


def _run_group(connection: Connection, group: list[_Job], errors: type[Exception]) -> None:
    """Each job in a savepoint. If one cannot be gone back to, the transaction is lost (full disk, broken connection), with
    all of the group."""
    driver = connection.driver
    for job in group:
        driver.execute("SAVEPOINT job")
        job.run(connection)
        if job.error is not None:
            try:
                driver.execute("ROLLBACK TO SAVEPOINT job")
            except errors as error:
                if is_away(error):
                    raise
                lost = DatabaseError("another write of the same group broke the transaction; nothing of it was stored")
                raise (job.error if isinstance(job.error, errors) else lost) from None
        driver.execute("RELEASE SAVEPOINT job")


def _settle(group: list[_Job]) -> None:
    """Wake the waiters: one call into each event loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in group:
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
            continue
        if job.error is not None:
            log.error("a write failed: %s", job.error)
        job.settle()
    for loop, jobs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_here, jobs)


def _settle_here(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()
