"""What stands between a person and nodes: a store that machines share, and the extra."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.cluster.engine import Engine, queue_of, queues_of
from tasks import outage
from tasks.db import Database
from tests.support.broken_line import ACCEPTED, HANDSHAKE, Line
from tests.support.postgres import server
from tests.support.skips import needs_postgres
from worker_agent.errors import ConfigError


def test_a_file_is_no_store_for_nodes(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "c.db")
    with pytest.raises(ConfigError, match="need PostgreSQL"):
        Engine(database)
    database.close()


@needs_postgres
def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database.open(server().new_database())
    monkeypatch.setitem(sys.modules, "procrastinate", None)
    with pytest.raises(ConfigError, match=r"pip install 'coordinator\[cluster\]'"):
        Engine(database)
    database.close()


def test_a_node_serves_every_choice_of_its_tags_and_no_other() -> None:
    served = queues_of(("docker", "gpu"))
    for tags in ((), ("gpu",), ("docker",), ("gpu", "docker")):
        assert queue_of(tags) in served
    assert queue_of(("big", "gpu")) not in served and len(served) == 4


MOMENTS = [(at, arrives) for at in (HANDSHAKE, b"procrastinate_defer_jobs", b"LISTEN") for arrives in (False, True)]


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(outage, "PAUSE", 0.01)
    monkeypatch.setattr("coordinator.cluster.engine.POLL", 0.05)
    with Line(server().port) as opened:
        yield opened


class Served:
    """An engine at the end of the line that counts what it is given to run."""

    def __init__(self, line: Line) -> None:
        self.database = Database.open(server().new_database().replace(f":{server().port}/", f":{line.port}/"))
        self.engine = Engine(self.database)
        self.ran: Counter[str] = Counter()
        self._news = asyncio.Event()

    async def serve(self) -> None:
        async def run(task_id: str) -> bool:
            self.ran[task_id] += 1
            self._news.set()
            return True

        await self.engine.serve(run, slots=2)

    async def until_run(self, name: str) -> None:
        while not self.ran[name]:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 20)

    async def until_empty(self) -> None:
        jobs = "SELECT id FROM procrastinate.procrastinate_jobs"
        while await asyncio.to_thread(lambda: self.database.query(jobs)[1]):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(line: Line) -> AsyncIterator[Served]:
    made = Served(line)
    line.cut(ACCEPTED, times=2)
    made.database.pool.close()
    try:
        await made.engine.open()
        yield made
    finally:
        await made.engine.close()
        made.database.close()


@needs_postgres
def test_what_is_offered_is_run_wherever_the_line_breaks(line: Line) -> None:
    async def work() -> None:
        async with served(line) as made:
            serving = asyncio.create_task(made.serve())
            for at, arrives in MOMENTS:
                line.break_all()
                line.cut(at, arrives=arrives)
                await made.engine.offer(name := f"{at!r} {arrives}")
                await made.until_run(name)
            await made.until_empty()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(work(), 50))
    assert line.left == 0


@needs_postgres
@pytest.mark.parametrize("at", [b"procrastinate_fetch_job", b"procrastinate_register_worker", b"procrastinate_finish_job"])
@pytest.mark.parametrize("arrives", [False, True])
def test_a_job_whose_name_was_lost_on_the_way_is_taken_again(line: Line, at: bytes, arrives: bool) -> None:
    """The server gave it, nobody heard which, and who took it goes on saying that it lives."""

    async def work() -> None:
        async with served(line) as made:
            await made.engine.offer("one")
            line.cut(at, arrives=arrives)
            serving = asyncio.create_task(made.serve())
            await made.until_run("one")
            await made.until_empty()
            assert line.left == 0 and made.ran == {"one": 1}
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(work(), 50))
