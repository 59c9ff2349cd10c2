"""Procrastinate as the carrier of task ids: it decides where and when a task runs, and knows nothing else of it.

1. Its tables stand in a schema of their own, beside ours in the same database; finished jobs are deleted at once.
2. A task is offered once at a time (`queueing_lock`) and runs once at a time (`lock`). Offered again while it runs, it runs
   after that: the run that is over by then finds that the task has ended, and does nothing.
3. What a dead node held is offered again by `recover`, which every node calls in a loop: a job of the engine's own for that
   could be held by the dead node itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from tasks.db import Database
from tasks.errors import DatabaseError
from tasks.outage import OUTAGE
from worker_agent.errors import ConfigError

if TYPE_CHECKING:
    from procrastinate import App

SCHEMA = "procrastinate"
RUN = "coordinator:run"
QUEUE = "workers"
POLL = 0.5  # seconds: what was offered again sends no notification
BEAT = 1.0  # seconds
STALLED = 3.0  # seconds without a beat until what a node held is offered again
APPLY_LOCK = 7_266_311_948

log = logging.getLogger(__name__)


def queue_of(tags: Iterable[str]) -> str:
    """The queue of tasks that ask for exactly these tags."""
    return "+".join((QUEUE, *sorted(set(tags))))


def queues_of(tags: Sequence[str]) -> list[str]:
    """All queues that a node with these tags can serve: one for each choice of them."""
    return [queue_of(some) for size in range(len(tags) + 1) for some in combinations(tags, size)]


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
        self._connector = procrastinate.PsycopgConnector(
            conninfo=database.place.url,
            kwargs={"options": f"-c search_path={SCHEMA}"},
            min_size=1,
            max_size=4,
        )
        self.app: App = procrastinate.App(connector=self._connector)
        self._database = database

    async def open(self) -> None:
        await asyncio.to_thread(self._make_schema)
        await self.app.open_async()

    def _make_schema(self) -> None:
        """By one process at a time, once."""
        from procrastinate.schema import SchemaManager

        with self._database.pool.connection() as connection, connection.transaction(reading=False):
            connection.execute(f"SELECT pg_advisory_xact_lock({APPLY_LOCK})")
            if connection.value(f"SELECT to_regclass('{SCHEMA}.procrastinate_jobs')") is None:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
                connection.execute(f"SET LOCAL search_path = {SCHEMA}")
                connection.driver.execute(SchemaManager.get_schema().encode())

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

    async def serve(self, run: Callable[[str], Awaitable[None]], *, name: str, slots: int, tags: Sequence[str] = ()) -> None:
        """Run what is offered until cancelled, at most `slots` at once; then nothing new begins, and it returns when all
        of `run` have. The engine's worker ends with an error when the server was away, or when others took this one for
        dead: it is begun anew, and what it held is offered again by `recover`."""

        @self.app.task(name=RUN, pass_context=False)
        async def _run(task_id: str) -> None:
            await run(task_id)

        while True:
            try:
                await self.app.run_worker_async(
                    queues=queues_of(tags),
                    name=name,
                    concurrency=slots,
                    fetch_job_polling_interval=POLL,
                    update_heartbeat_interval=BEAT,
                    stalled_worker_timeout=STALLED,
                    delete_jobs="always",
                    install_signal_handlers=False,
                )
                return
            except Exception as error:  # the engine's own, of many kinds
                log.warning("the engine of node %s begins anew: %s", name, error)
            await asyncio.sleep(POLL)

    async def recover(self) -> list[str]:
        """Offer again what dead nodes held; which tasks they are."""
        manager = self.app.job_manager
        stalled = list(await manager.get_stalled_jobs(seconds_since_heartbeat=STALLED))
        for job in stalled:
            log.warning("task %s is offered again: the node that ran it is silent", job.task_kwargs.get("task_id"))
            await manager.retry_job(job)
        return [str(job.task_kwargs["task_id"]) for job in stalled]

    async def close(self) -> None:
        await self.app.close_async()
