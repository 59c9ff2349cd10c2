"""What every `Backend` promises whoever starts, nudges and stops tasks by it, for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.backends.base import Backend
from coordinator.backends.by_kind import ByKind
from coordinator.backends.local import LocalBackend
from coordinator.slots import Slots
from tasks.ids import TaskType
from tests.unit.coordinator.test_local_backend import FakeRun
from worker_agent.causes import Cause

Runs = dict[str, FakeRun]


def local(runs: Runs, log: list[str]) -> Backend:
    def make(task_id: str) -> FakeRun:
        runs[task_id] = FakeRun(log, task_id)
        return runs[task_id]

    return LocalBackend(Slots(8), make, lambda task_id: log.append(f"left {task_id}"))


def by_kind(runs: Runs, log: list[str]) -> Backend:
    kinds = {TaskType.LOCAL_AGENT: local(runs, log), TaskType.LOCAL_BASH: local(runs, log)}
    return ByKind(kinds, lambda task_id: TaskType.LOCAL_BASH if task_id.startswith("b") else TaskType.LOCAL_AGENT)


@pytest.fixture(params=[local, by_kind])
def make(request: pytest.FixtureRequest) -> Callable[[Runs, list[str]], Backend]:
    made: Callable[[Runs, list[str]], Backend] = request.param
    return made


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_backend_runs_what_it_is_given_once_and_names_it_until_it_left(make: Callable[[Runs, list[str]], Backend]) -> None:
    async def scenario() -> None:
        runs: Runs = {}
        log: list[str] = []
        backend = make(runs, log)
        for task_id in ("a1", "b1", "a1"):
            await backend.spawn(task_id)
        await settle()
        assert set(backend.running()) == {"a1", "b1"}
        assert log == ["start a1", "start b1"]
        assert backend.is_unwinding("a1") and not backend.is_unwinding("a2")
        runs["a1"].is_recorded = True
        assert not backend.is_unwinding("a1")
        runs["a1"].done.set()
        await settle()
        assert backend.running() == ("b1",) and log[-1] == "left a1"
        await backend.close(Cause.TERMINATED)
        assert backend.running() == ()
        await backend.spawn("a2")
        await settle()
        assert "start a2" not in log

    asyncio.run(scenario())


def test_nudges_and_stops_reach_their_task_and_for_nobody_are_nothing(make: Callable[[Runs, list[str]], Backend]) -> None:
    async def scenario() -> None:
        runs: Runs = {}
        backend = make(runs, [])
        for task_id in ("a1", "b1"):
            await backend.spawn(task_id)
        await settle()
        backend.nudge("b1")
        backend.nudge("a9")
        assert (runs["a1"].nudges, runs["b1"].nudges) == (0, 1)
        assert await backend.stop("a9", Cause.KILLED) == ()
        assert await backend.stop("a1", Cause.KILLED) == ()
        assert backend.running() == ("b1",)
        assert await backend.stop("a1", Cause.KILLED) == ()
        await backend.close(Cause.TERMINATED)

    asyncio.run(scenario())
