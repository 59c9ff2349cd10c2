"""The local backend: told twice is done once, what waits never starts after a stop, a stop is bounded."""

from __future__ import annotations

import asyncio

from coordinator.runs.backends import local
from coordinator.runs.backends.local import LocalBackend
from coordinator.runs.slots import Slots
from worker_agent.causes import Cause


class FakeRun:
    """Runs until it is stopped or let go; `stubborn` ignores being asked."""

    def __init__(self, log: list[str], task_id: str, stubborn: bool = False) -> None:
        self.log, self.task_id, self.stubborn = log, task_id, stubborn
        self.done = asyncio.Event()
        self.nudges = 0
        self.is_recorded = False

    async def run(self) -> None:
        self.log.append(f"start {self.task_id}")
        await self.done.wait()
        self.log.append(f"end {self.task_id}")

    def stop(self, reason: str) -> None:
        if not self.stubborn:
            self.done.set()

    def nudge(self) -> None:
        self.nudges += 1

    async def clean_up(self) -> tuple[str, ...]:
        return ("1234 (sleep)",) if self.stubborn else ()


class Rig:
    def __init__(self, slots: int, stubborn: tuple[str, ...] = ()) -> None:
        self.log: list[str] = []
        self.runs: dict[str, FakeRun] = {}
        self.slots = Slots(slots)
        self.stubborn = stubborn
        self.backend = LocalBackend(self.slots, self.make, lambda task_id: self.log.append(f"left {task_id}"))

    def make(self, task_id: str) -> FakeRun:
        self.runs[task_id] = FakeRun(self.log, task_id, task_id in self.stubborn)
        return self.runs[task_id]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_spawning_twice_runs_once_and_the_order_is_kept() -> None:
    async def scenario() -> list[str]:
        rig = Rig(1)
        for id in ("a", "b", "a"):
            await rig.backend.spawn(id)
        await settle()
        rig.runs["a"].done.set()
        await settle()
        await rig.backend.stop("b", Cause.KILLED)
        await settle()
        assert rig.backend.running() == () and rig.slots.used == 0
        assert sorted(line for line in rig.log if line.startswith("left")) == ["left a", "left b"]
        return [line for line in rig.log if not line.startswith("left")]

    assert asyncio.run(scenario()) == ["start a", "end a", "start b", "end b"]


def test_a_waiting_task_that_is_stopped_never_starts() -> None:
    async def scenario() -> list[str]:
        rig = Rig(1)
        await rig.backend.spawn("a")
        await rig.backend.spawn("b")
        await settle()
        assert await rig.backend.stop("b", Cause.KILLED) == ()
        await rig.backend.close("terminated")
        return rig.log

    assert asyncio.run(scenario()) == ["start a", "left b", "end a", "left a"]


def test_after_close_nothing_starts_any_more() -> None:
    async def scenario() -> list[str]:
        rig = Rig(2)
        await rig.backend.close("terminated")
        await rig.backend.spawn("a")
        await settle()
        return rig.log

    assert asyncio.run(scenario()) == []


def test_a_run_that_does_not_answer_is_cancelled_after_its_bound_and_its_slot_is_free(monkeypatch) -> None:
    monkeypatch.setattr(local, "STOP_BOUND", 0.05)

    async def scenario() -> tuple[tuple[str, ...], int]:
        rig = Rig(1, stubborn=("a",))
        await rig.backend.spawn("a")
        await settle()
        survivors = await rig.backend.stop("a", Cause.KILLED)
        return survivors, rig.slots.used

    assert asyncio.run(scenario()) == (("1234 (sleep)",), 0)


def test_a_nudge_reaches_the_run_and_one_for_nobody_is_nothing() -> None:
    async def scenario() -> int:
        rig = Rig(1)
        await rig.backend.spawn("a")
        await settle()
        rig.backend.nudge("a")
        rig.backend.nudge("nobody")
        assert await rig.backend.stop("nobody", Cause.KILLED) == ()
        nudges = rig.runs["a"].nudges
        await rig.backend.close("terminated")
        return nudges

    assert asyncio.run(scenario()) == 1
