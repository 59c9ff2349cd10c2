"""Procrastinate as the carrier of task ids: it decides where and when a task runs, and knows nothing else of it.

1. Its tables stand in a schema of their own, beside ours in the same database; finished jobs are deleted at once.
2. A task is offered once at a time (`queueing_lock`) and runs once at a time (`lock`). Offered again while it runs, it runs
   after that: the run that is over by then finds that the task has ended, and does nothing.
3. What a dead node held is offered again by `recover`, which every node calls in a loop: a job of the engine's own for that
   could be held by the dead node itself. It is a new job: what a node that was only frozen says at the end of its own is said of
   a job that is gone, and not of the one by which another node runs the task.
4. Jobs are taken by a loop of ours over the engine's `JobManager`, not by its `Worker`: that one stops saying that it lives when it
   is to end, and when the server went away, and then takes nothing new before all that it runs has ended. Here the node says
   that it lives (`beat`), and nobody else, until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING

from tasks.db import Database
from tasks.errors import DatabaseError
from tasks.outage import OUTAGE
from worker_agent.errors import ConfigError

if TYPE_CHECKING:
    from procrastinate import App
    from procrastinate.jobs import Job
    from psycopg_pool import AsyncConnectionPool

    from tasks.connection import Connection

SCHEMA = "procrastinate"
RUN = "coordinator:run"
QUEUE = "workers"
POLL = 0.5  # seconds: a notification may be lost with its connection
BEAT = 1.0  # seconds
STALLED = 3.0  # seconds without a beat until what a node held is offered again
FORGOTTEN = 3600.0  # seconds without a beat until the engine's row of a node goes
WAIT = 2.0  # seconds for a connection: who says that it lives waits no longer

log = logging.getLogger(__name__)


def queue_of(tags: Iterable[str]) -> str:
    """The queue of tasks that ask for exactly these tags."""
    return "+".join((QUEUE, *sorted(set(tags))))


def tags_of(queue: str) -> tuple[str, ...]:
    return tuple(queue.split("+")[1:])


def queues_of(tags: Sequence[str]) -> list[str]:
    """All queues that a node with these tags can serve: one for each choice of them."""
    return [queue_of(some) for size in range(len(tags) + 1) for some in combinations(tags, size)]


def _make_schema(connection: Connection) -> None:
    """Once: writers come one after another."""
    from procrastinate.schema import SchemaManager

    if connection.value(f"SELECT to_regclass('{SCHEMA}.procrastinate_jobs')") is None:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.execute(f"SET LOCAL search_path = {SCHEMA}")
        connection.driver.execute(SchemaManager.get_schema().encode())


class Engine:
    """Connected from `open` to `close`."""

    def __init__(self, database: Database) -> None:
        """Raises `ConfigError` where the store is a file, or the extra is not installed."""
        if database.place.url is None:
            raise ConfigError(
                "workers on other machines need PostgreSQL as the store: name it by --db or COORDINATOR_DATABASE_URL, "
                "as in postgresql://user@host/name"
            )
        try:
            import procrastinate
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"workers on other machines need the package {error.name}: pip install 'coordinator[cluster]'"
            ) from None
        self.app: App = procrastinate.App(connector=procrastinate.PsycopgConnector())
        self._database = database
        self._pool: AsyncConnectionPool | None = None
        self._worker: int | None = None  # as whom the engine knows this process, once it takes jobs
        self._runs: dict[asyncio.Task[None], Job] = {}
        self._in_doubt = False  # a job may have been taken in vain: nobody here heard which
        self._news = asyncio.Event()  # something was offered, or a slot is free

    async def open(self) -> None:
        """Raises `DatabaseError`."""
        from psycopg_pool import AsyncConnectionPool

        await asyncio.to_thread(self._database.write, _make_schema)
        # A pool of our own: the engine's waits when it is opened, and for good is closed if nobody answers then.
        assert self._database.place.url is not None
        self._pool = AsyncConnectionPool(
            self._database.place.url,
            kwargs={"options": f"-c search_path={SCHEMA}"},
            configure=lambda connection: connection.set_autocommit(True),  # each call is one statement
            min_size=1,
            max_size=4,
            timeout=WAIT,
            reconnect_timeout=WAIT,  # who asks after that has it try at once; its own pauses grow with the outage
            check=AsyncConnectionPool.check_connection,
            open=False,
        )
        await self._pool.open()
        await self.app.open_async(self._pool)

    async def offer(self, task_id: str, tags: Iterable[str] = ()) -> None:
        """Have some node that has all of `tags` run the task; twice is once."""
        from procrastinate.exceptions import AlreadyEnqueued, ConnectorException

        until = time.monotonic() + OUTAGE
        while True:
            try:
                deferrer = self.app.configure_task(RUN, queue=queue_of(tags), lock=task_id, queueing_lock=task_id)
                await deferrer.defer_async(task_id=task_id)
                return
            except AlreadyEnqueued:
                return
            except ConnectorException as error:
                if time.monotonic() > until:
                    raise DatabaseError(f"no node can be given task {task_id}: {error}") from error
            await asyncio.sleep(POLL)

    async def serve(self, run: Callable[[str], Awaitable[bool]], *, slots: int, tags: Sequence[str] = ()) -> None:
        """Run what is offered until cancelled, at most `slots` at once; then nothing new begins, and it returns when all
        of `run` have. `run` answers whether it is done with the task: else, or if it raises, the task is offered again."""
        queues = queues_of(tags)
        listening = asyncio.create_task(self._listen(queues), name="offers")
        runs = self._runs

        def ended(one: asyncio.Task[None]) -> None:
            del runs[one]
            self._news.set()

        try:
            while True:
                self._news.clear()
                job = await self._take(queues) if len(runs) < slots else None
                if job is not None:
                    runs[one := asyncio.create_task(self._carry(job, run), name=f"offer {job.id}")] = job
                    one.add_done_callback(ended)
                    continue
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), POLL)
        finally:
            listening.cancel()
            await asyncio.gather(listening, *runs, return_exceptions=True)

    async def _listen(self, queues: list[str]) -> None:
        """Notice offers as they are made. A connection that is lost is made anew; what was offered meanwhile is polled for."""

        async def heard(**_: object) -> None:
            self._news.set()

        while True:
            try:
                await self.app.job_manager.listen_for_jobs(on_notification=heard, queues=queues)
            except Exception as error:  # the driver's and the engine's, of many kinds
                log.warning("offers are only polled for: %s", error)
            await asyncio.sleep(POLL)

    async def _take(self, queues: list[str]) -> Job | None:
        """The next job, if there is one for this node and the server is there."""
        from procrastinate.exceptions import ConnectorException

        manager = self.app.job_manager
        try:
            if self._worker is None:
                self._worker = await manager.register_worker()
            if self._in_doubt:
                await self._give_back_unheard(self._worker)
            return await manager.fetch_job(queues=queues, worker_id=self._worker)
        except (ConnectorException, DatabaseError) as error:
            self._in_doubt = True
            log.warning("nothing can be taken now: %s", error.__cause__ or error)
            if type(error.__cause__).__name__ == "ForeignKeyViolation":
                self._worker = None  # so long silent that others forgot it
            return None

    async def _give_back_unheard(self, worker: int) -> None:
        """Offer again what the engine takes for running here and does not: the answer that named it was lost on its way.
        Called between two takings alone."""
        held = {job.id for job in self._runs.values()}
        for job in await self.app.job_manager.list_jobs_async(worker_id=worker, status="doing"):
            if job.id not in held:
                await self._offer_again(job)
        self._in_doubt = False

    async def _offer_again(self, job: Job) -> None:
        """Before the old one goes: who dies between leaves one."""
        await self.offer(str(job.task_kwargs["task_id"]), tags_of(job.queue))
        await self._finish(job)

    async def _carry(self, job: Job, run: Callable[[str], Awaitable[bool]]) -> None:
        task_id, tags = str(job.task_kwargs["task_id"]), tags_of(job.queue)
        try:
            is_done = await run(task_id)
        except Exception:
            log.exception("task %s broke its node's run", task_id)
            await asyncio.sleep(POLL)
            is_done = False
        while True:
            try:
                if not is_done:
                    await self.offer(task_id, tags)
                    is_done = True
                await self._finish(job)
                return
            except DatabaseError as error:
                log.warning("%s", error)
            await asyncio.sleep(POLL)

    async def _finish(self, job: Job) -> None:
        """The job is gone, whether it was there or not. Raises `DatabaseError` while the server is away."""
        from procrastinate.exceptions import ConnectorException
        from procrastinate.jobs import Status

        assert job.id is not None
        try:
            await self.app.job_manager.finish_job_by_id_async(job.id, Status.SUCCEEDED, delete_job=True)
        except ConnectorException as error:
            if type(error.__cause__).__name__ != "RaiseException":  # its own word for a job that is not there
                raise DatabaseError(f"the end of job {job.id} cannot be told: {error.__cause__ or error}") from error

    async def beat(self) -> None:
        """Say that what was taken here is alive."""
        if self._worker is not None:
            await self.app.job_manager.update_heartbeat(self._worker)

    async def recover(self) -> list[str]:
        """Offer again what dead nodes held; which tasks they are."""
        manager = self.app.job_manager
        stalled = list(await manager.get_stalled_jobs(seconds_since_heartbeat=STALLED))
        for job in stalled:
            task_id = str(job.task_kwargs["task_id"])
            log.warning("task %s is offered again: the node that ran it is silent", task_id)
            await self._offer_again(job)
        if stalled:
            await manager.prune_stalled_workers(FORGOTTEN)
        return [str(job.task_kwargs["task_id"]) for job in stalled]

    async def close(self) -> None:
        """What was taken and not ended is free for others at once."""
        if self._worker is not None:
            with suppress(Exception):  # a server that is away: silence says the same, later
                await self.app.job_manager.unregister_worker(self._worker)
        await self.app.close_async()
        if self._pool is not None:
            await self._pool.close()
