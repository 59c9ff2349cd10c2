"""The registry under random use by several owners: create, claim, finish, kill, progress, with current and stale
rights.

The model is a few lines: who owns, which attempt is the latest, what ended first. The store must tell the same story in
statuses, events and notifications.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tasks import events, leases, outbox, registry
from tasks.errors import Fenced, IllegalMove
from tasks.records import Ended, NewTask, Owner
from tasks.states import LIVE, TERMINAL, TaskStatus
from tests.unit.tasks.support import Store, open_store

OWNERS = [Owner(pid, 1.0, f"host-{pid}") for pid in (1, 2, 3)]


class Registry(RuleBasedStateMachine):
    tasks = Bundle("tasks")
    attempts = Bundle("attempts")

    @initialize()
    def begin(self) -> None:
        self.store: Store = open_store(Path(tempfile.mkdtemp()))
        self.fences = [self.store.fence]
        self.status: dict[str, TaskStatus] = {}
        self.right: dict[str, tuple[int, int]] = {}  # task → (attempt, fence) that may write
        self.silent: set[str] = set()
        self.story: dict[str, list[str]] = {}
        self.used: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.db.close()
            assert self.store.db.path is not None
            shutil.rmtree(self.store.db.path.parent)

    def end(self, task_id: str, status: TaskStatus, notify: bool) -> None:
        self.status[task_id] = status
        self.story[task_id].append(f"task_{status}")
        if not notify:
            self.silent.add(task_id)

    @rule(target=tasks, recent=st.integers(0, 2))
    def create(self, recent: int) -> str:
        fence = self.fences[-1 - min(recent, len(self.fences) - 1)]
        new = NewTask(session_id=self.store.session_id, description="d", prompt="p", fence=fence)
        if fence != self.fences[-1]:
            try:
                self.store.write(registry.create, new)
            except Fenced:
                new = NewTask(session_id=self.store.session_id, description="d", prompt="p", fence=self.fences[-1])
            else:
                raise AssertionError("a stale owner created a task")
        task = self.store.write(registry.create, new)
        self.status[task.id] = TaskStatus.PENDING
        self.right[task.id] = (0, self.fences[-1])
        self.story[task.id] = ["task_created"]
        return task.id

    @rule(owner=st.sampled_from(OWNERS))
    def take_over(self, owner: Owner) -> None:
        self.store.clock.now += leases.TTL + 1
        fence = self.store.write(leases.acquire, self.store.session_id, owner, self.store.clock())
        assert fence > self.fences[-1]
        self.fences.append(fence)
        for task_id, status in self.status.items():
            if status is TaskStatus.PENDING:
                self.right[task_id] = (0, fence)

    @rule(target=attempts, task_id=tasks, recent=st.integers(0, 2), owner=st.sampled_from(OWNERS))
    def claim(self, task_id: str, recent: int, owner: Owner) -> tuple[str, int]:
        fence = self.fences[-1 - min(recent, len(self.fences) - 1)]
        try:
            attempt = self.store.write(registry.claim, task_id, owner=owner, fence=fence)
        except Fenced:
            assert fence != self.fences[-1]
            return task_id, -1
        assert fence == self.fences[-1]
        if self.status[task_id] in TERMINAL:
            assert attempt is None
            return task_id, -1
        assert attempt == self.right[task_id][0] + 1
        self.status[task_id] = TaskStatus.RUNNING
        self.right[task_id] = (attempt, fence)
        self.story[task_id].append("task_running")
        return task_id, attempt

    def may_write(self, task_id: str, attempt: int) -> bool:
        return self.right[task_id] == (attempt, self.fences[-1])

    @rule(run=attempts, status=st.sampled_from(sorted(TERMINAL)), notify=st.booleans())
    def finish(self, run: tuple[str, int], status: TaskStatus, notify: bool) -> None:
        task_id, attempt = run
        ending = Ended(status=status, result="r", end_reason="e")
        expected = self.status[task_id] is TaskStatus.RUNNING and self.may_write(task_id, attempt)
        assert self.store.write(registry.finish, task_id, attempt, ending, notify=notify) is expected
        if expected:
            self.end(task_id, status, notify)

    @rule(task_id=tasks, status=st.sampled_from(sorted(TERMINAL)))
    def finish_before_it_started(self, task_id: str, status: TaskStatus) -> None:
        pending = self.status[task_id] is TaskStatus.PENDING
        try:
            ended = self.store.write(registry.finish, task_id, 0, Ended(status=status, result=None, end_reason="e"))
        except IllegalMove:
            assert pending and status is TaskStatus.COMPLETED
            return
        assert ended is (pending and status is not TaskStatus.COMPLETED)
        if ended:
            self.end(task_id, status, True)

    @rule(task_id=tasks, notify=st.booleans())
    def kill(self, task_id: str, notify: bool) -> None:
        before = self.status[task_id]
        outcome = self.store.write(registry.kill, task_id, by="x", notify=notify, end_reason="k")
        assert (outcome.changed, outcome.status_before) == (before in LIVE, before)
        if outcome.changed:
            self.end(task_id, TaskStatus.KILLED, notify)

    @rule(run=attempts, tool_uses=st.integers(1, 99))
    def progress(self, run: tuple[str, int], tool_uses: int) -> None:
        task_id, attempt = run
        figures = {"tool_uses": tool_uses, "input_tokens": 1, "output_tokens": 1, "cost_usd": None, "activities": []}
        expected = self.status[task_id] is TaskStatus.RUNNING and self.may_write(task_id, attempt)
        assert self.store.write(registry.progress, task_id, attempt=attempt, **figures) is expected
        if expected:
            self.used[task_id] = tool_uses

    @invariant()
    def the_store_tells_the_story(self) -> None:
        if not hasattr(self, "store"):
            return
        stored = {task.id: task for task in self.store.read(registry.list_tasks)}
        assert {id: task.status for id, task in stored.items()} == self.status
        assert {id: task.tool_uses for id, task in stored.items()} == {id: self.used.get(id, 0) for id in stored}
        told: dict[str, list[str]] = {id: [] for id in stored}
        for event in self.store.read(events.since):
            if event.task_id is not None:
                told[event.task_id].append(event.kind)
        assert told == self.story
        announced = [d.task_id for d in self.store.read(outbox.waiting, self.store.session_id)]
        ended = {id for id, status in self.status.items() if status in TERMINAL}
        assert sorted(str(id) for id in announced) == sorted(ended - self.silent)


class ThoroughRegistry(Registry):
    """The same, longer."""


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
TestThoroughRegistry = pytest.mark.slow(pytest.mark.timeout(300)(ThoroughRegistry.TestCase))
TestThoroughRegistry.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
