"""What every `Backend` promises whoever starts, nudges and stops tasks by it, for each of them: workers and commands in
this process, the one door to both, and workers on nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.cluster.backend import ClusterBackend
from coordinator.other_processes.foreign import UNWOUND, ForeignChanges, Reactions
from coordinator.paths import Paths
from coordinator.runs.backends.base import Backend
from coordinator.runs.backends.by_kind import ByKind
from coordinator.runs.backends.local import LocalBackend
from coordinator.runs.background import Order, Orders, ShellRun
from coordinator.runs.slots import Slots
from coordinator.session.coordinator import deliver
from coordinator.store import Store
from coordinator.wakes import Signal
from tasks import events, leases, outbox, registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.ids import TaskType
from tasks.records import Ended, NewTask, TaskRecord
from tasks.states import TaskStatus
from tasks.writer import Writer
from tests.support.agent import tool_context
from tests.unit.coordinator.test_local_backend import FakeRun
from worker_agent.causes import Cause
from worker_agent.config import SystemClock
from worker_agent.errors import ConfigError


@dataclass
class Subject:
    """A backend, and the tasks that it can run: `began` says that one works, `let_go` lets it end by itself. `left` are
    those that the backend said have left. `kill` stores an end before the backend is told of it, where the record counts;
    `outlived`: its runs go on elsewhere when it closes."""

    backend: Backend
    tasks: list[str]
    began: Callable[[str], bool]
    let_go: Callable[[str], None]
    left: list[str] = field(default_factory=list)
    runs: dict[str, FakeRun] = field(default_factory=dict)  # where they are not real
    kill: Callable[[str], None] = lambda task_id: None
    outlived: bool = False


Make = Callable[[Path], AbstractAsyncContextManager[Subject]]


def _local(left: list[str], runs: dict[str, FakeRun], log: list[str]) -> Backend:
    def make(task_id: str) -> FakeRun:
        runs[task_id] = FakeRun(log, task_id)
        return runs[task_id]

    return LocalBackend(Slots(8), make, left.append)


def _subject(backend: Backend, left: list[str], runs: dict[str, FakeRun], log: list[str]) -> Subject:
    return Subject(backend, ["a1", "b1", "a2"], lambda id: f"start {id}" in log, lambda id: runs[id].done.set(), left, runs)


@asynccontextmanager
async def local(tmp_path: Path) -> AsyncIterator[Subject]:
    left: list[str] = []
    runs: dict[str, FakeRun] = {}
    log: list[str] = []
    yield _subject(_local(left, runs, log), left, runs, log)


@asynccontextmanager
async def by_kind(tmp_path: Path) -> AsyncIterator[Subject]:
    left: list[str] = []
    runs: dict[str, FakeRun] = {}
    log: list[str] = []
    kinds = {kind: _local(left, runs, log) for kind in (TaskType.LOCAL_AGENT, TaskType.LOCAL_BASH)}
    door = ByKind(kinds, lambda task_id: TaskType.LOCAL_BASH if task_id.startswith("b") else TaskType.LOCAL_AGENT)
    yield _subject(door, left, runs, log)


@asynccontextmanager
async def opened(directory: Path, elsewhere: Callable[[], None] | None = None) -> AsyncIterator[Store]:
    db = Database.open(directory / "c.db")
    id = db.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model=None, options={})).id
    store = Store(db, Writer(db, elsewhere), id, leases.this_owner(), SystemClock())
    store.fence = db.write(lambda conn: leases.acquire(conn, id, store.owner, store.clock.now()))
    yield store
    store.writer.close()
    db.close()


async def command_task(store: Store, directory: Path) -> str:
    return await task_of(store, directory, TaskType.LOCAL_BASH)


async def worker_task(store: Store, directory: Path) -> str:
    return await task_of(store, directory, TaskType.LOCAL_AGENT)


async def task_of(store: Store, directory: Path, type: TaskType) -> str:
    new = NewTask(
        session_id=store.session_id,
        type=type,
        description="a task",
        prompt="",
        parent_id=store.session_id,
        cwd=str(directory),
        output_file=str(directory / "output"),
        fence=store.fence,
    )
    return (await store.write(lambda conn: registry.create(conn, new))).id


def commands(store: Store, orders: Orders, left: list[str]) -> Backend:
    return LocalBackend(
        None,
        lambda id: ShellRun(id, store=store, observer=lambda seen: None, orders=orders, nudge=lambda parent: None),
        left.append,
    )


@asynccontextmanager
async def shells(tmp_path: Path) -> AsyncIterator[Subject]:
    """Real commands: each says that it began, and waits to be let go."""
    async with opened(tmp_path) as store:
        left: list[str] = []
        ids = [await command_task(store, tmp_path) for _ in range(3)]
        orders = {
            id: Order(
                f"touch began-{id}; until [ -e go-{id} ]; do sleep 0.02; done", tool_context(tmp_path), 30, store.session_id
            )
            for id in ids
        }
        yield Subject(
            commands(store, orders, left),
            ids,
            lambda id: (tmp_path / f"began-{id}").exists(),
            lambda id: (tmp_path / f"go-{id}").touch(),
            left,
        )


class Node:
    """Takes what is offered and runs it, as the store sees a machine that does: another connection, and nothing else."""

    def __init__(self, directory: Path, store: Store) -> None:
        self._db = Database.open(directory / "c.db")
        self._store = store
        self.attempts: dict[str, int] = {}

    async def offer(self, task_id: str, tags: tuple[str, ...] = ()) -> None:
        owner, fence = leases.this_owner(), self._store.fence
        attempt = self._db.write(lambda conn: registry.claim(conn, task_id, owner=owner, fence=fence))
        assert attempt is not None
        self.attempts[task_id] = attempt

    def let_go(self, task_id: str) -> None:
        end = Ended(status=TaskStatus.COMPLETED, result="done", end_reason="completed")
        self._db.write(lambda conn: registry.finish(conn, task_id, self.attempts[task_id], end))

    def kill(self, task_id: str) -> None:
        """Another process ends it, and the node says that nothing of it runs any more."""

        def ended(conn: Connection) -> None:
            registry.kill(conn, task_id, by="user", notify=True, end_reason="killed")
            events.add(conn, self._store.session_id, task_id, UNWOUND, {"survivors": []})

        self._db.write(ended)

    def close(self) -> None:
        self._db.close()


async def nothing(task: TaskRecord) -> None:
    return None


@asynccontextmanager
async def on_nodes(tmp_path: Path) -> AsyncIterator[Subject]:
    """The owner's side of workers on other machines, with the watch that tells it of ends."""
    elsewhere: Signal[[]] = Signal()
    async with opened(tmp_path, elsewhere) as store:
        left: list[str] = []
        node = Node(tmp_path, store)
        backend = ClusterBackend(store, node, left.append)
        reactions = Reactions(
            running=lambda: set(backend.running()),
            unwind=lambda task: backend.stop(task.id, Cause.KILLED),
            adopt=nothing,
            wrap_up=lambda task: None,
            nudge=lambda: None,
            lost=lambda: None,
        )
        watching = asyncio.create_task(ForeignChanges(store, elsewhere, reactions).watch())
        ids = [await worker_task(store, tmp_path) for _ in range(3)]
        yield Subject(backend, ids, node.attempts.__contains__, node.let_go, left, kill=node.kill, outlived=True)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        node.close()


@pytest.fixture(params=[local, by_kind, shells, on_nodes])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def test_a_backend_runs_what_it_is_given_once_and_names_it_until_it_left(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as subject:
            backend, (first, second, third) = subject.backend, subject.tasks
            for task_id in (first, second, first):
                await backend.spawn(task_id)
            assert sorted(backend.running()) == sorted((first, second))
            await until(lambda: subject.began(first) and subject.began(second))
            assert backend.is_unwinding(first) and not backend.is_unwinding(third)
            subject.let_go(first)
            await until(lambda: first in subject.left)
            assert backend.running() == (second,) and not backend.is_unwinding(first)
            await backend.close(Cause.TERMINATED)
            assert backend.running() == ()
            assert sorted(subject.left) == sorted((first,) if subject.outlived else (first, second))

    asyncio.run(scenario())


def test_nothing_begins_once_a_backend_closes_even_what_it_is_given_meanwhile(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as subject:
            backend, (first, second, third) = subject.backend, subject.tasks
            await backend.spawn(first)
            await until(lambda: subject.began(first))
            await backend.spawn(second)
            closing = asyncio.create_task(backend.close(Cause.TERMINATED))
            await asyncio.sleep(0)
            await backend.spawn(third)
            await closing
            assert backend.running() == ()
            assert not subject.began(third)

    asyncio.run(scenario())


def test_a_stop_reaches_its_task_returns_when_it_left_and_is_nothing_for_others(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as subject:
            backend, (first, second, third) = subject.backend, subject.tasks
            for task_id in (first, second):
                await backend.spawn(task_id)
            await until(lambda: subject.began(first) and subject.began(second))
            backend.nudge(first)
            backend.nudge(third)
            assert await backend.stop(third, Cause.KILLED) == ()
            subject.kill(first)
            assert await backend.stop(first, Cause.KILLED) == ()
            assert backend.running() == (second,)
            assert await backend.stop(first, Cause.KILLED) == ()
            await backend.close(Cause.TERMINATED)

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [local, by_kind], indirect=True)
def test_a_nudge_reaches_the_run_and_a_recorded_run_does_not_unwind_any_more(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make(tmp_path) as subject:
            backend, runs = subject.backend, subject.runs
            for task_id in ("a1", "b1"):
                await backend.spawn(task_id)
            await until(lambda: subject.began("a1") and subject.began("b1"))
            backend.nudge("b1")
            assert (runs["a1"].nudges, runs["b1"].nudges) == (0, 1)
            runs["a1"].is_recorded = True
            assert not backend.is_unwinding("a1") and backend.is_unwinding("b1")
            await backend.close(Cause.TERMINATED)

    asyncio.run(scenario())


# ── what commands promise beyond that ────────────────────────────────────────────────────────────────────────────────


def test_a_command_without_an_order_is_an_earlier_owners_and_ends_as_interrupted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            left: list[str] = []
            id = await command_task(store, tmp_path)
            (tmp_path / "output").write_text("so far")
            await commands(store, {}, left).spawn(id)
            await until(lambda: left == [id])
            task = store.read(lambda conn: registry.get(conn, id))
            assert (task.status, task.end_reason, task.retryable, task.result) == (
                TaskStatus.FAILED,
                "interrupted",
                True,
                "so far",
            )

    asyncio.run(scenario())


def test_a_command_that_was_killed_before_it_began_never_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as store:
            left: list[str] = []
            id = await command_task(store, tmp_path)
            orders = {id: Order("touch began", tool_context(tmp_path), 30, store.session_id)}
            await store.write(lambda conn: registry.kill(conn, id, by="user", notify=False, end_reason="killed"))
            await commands(store, orders, left).spawn(id)
            await until(lambda: left == [id])
            assert not (tmp_path / "began").exists() and orders == {}

    asyncio.run(scenario())


def test_a_command_is_written_no_message_whether_it_runs_or_has_ended(tmp_path: Path) -> None:
    """It reads none: one that had ended was once continued as if it were a worker."""

    async def scenario() -> None:
        async with opened(tmp_path) as store:
            id = await command_task(store, tmp_path)
            paths = Paths(tmp_path)
            end = Ended(status=TaskStatus.FAILED, result=None, end_reason="error")
            for _ in range(2):
                with pytest.raises(ConfigError, match="reads no messages"):
                    await store.write(lambda conn: deliver(conn, store, id, "hurry", "coordinator", paths))
                await store.write(lambda conn: registry.finish(conn, id, 0, end))
            assert store.read(lambda conn: outbox.waiting(conn, id)) == []

    asyncio.run(scenario())
