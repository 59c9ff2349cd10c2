"""`local_bash` tasks: shell commands in the background, as tracked as a worker.

A command belongs to the agent that started it: its end is announced to that agent, and it ends with the agent's run, or
at its time limit. It cannot be taken over: its output is gone with the process that ran it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinator.observed import Observed, Observer, TaskChanged
from coordinator.paths import Paths
from coordinator.runs.backends.base import Backend
from coordinator.runs.processes import Processes
from coordinator.runs.workers import shielded
from coordinator.store import Store
from tasks import ids, registry
from tasks.connection import Connection
from tasks.errors import DatabaseError, Fenced
from tasks.ids import TaskType
from tasks.records import Ended, NewTask, TaskRecord
from tasks.states import TaskStatus
from worker_agent.causes import Cause
from worker_agent.process import TASK_MARKER, ShellOutcome, run_shell
from worker_agent.structs import replace
from worker_agent.tools.base import ToolContext

log = logging.getLogger(__name__)


class Order(Struct, frozen=True):
    """What a command needs that its row does not hold. `command` is as the model wrote it, `timeout` in seconds;
    `parent_id` is the task that began it, or the session."""

    command: str
    context: ToolContext
    timeout: float
    parent_id: str


Orders = dict[str, Order]  # by task id: the commands of this process that have not ended


class Shells:
    """How agents begin and end commands in the background; `backend` runs them, by `orders`."""

    def __init__(self, store: Store, paths: Paths, observer: Observer, backend: Backend, orders: Orders) -> None:
        self._store = store
        self._paths = paths
        self._observer = observer
        self._backend = backend
        self._orders = orders

    async def start(self, command: str, cwd: Path, description: str, context: ToolContext, timeout: float) -> Mapping[str, Any]:
        """Answers at once with the new task's id and the file that its output goes to. `timeout` in seconds."""
        store, id = self._store, ids.new_id(TaskType.LOCAL_BASH)
        parent = context.task_id or store.session_id
        output_file = self._paths.transcripts(store.session_id) / f"{id}.log"
        new = NewTask(
            session_id=store.session_id,
            type=TaskType.LOCAL_BASH,
            description=context.redact(description or command[:80]),
            prompt=context.redact(command),
            id=id,
            parent_id=parent,
            cwd=str(cwd),
            output_file=str(output_file),
            fence=store.fence,
        )
        self._orders[id] = Order(command, context, timeout, parent)  # first: whoever sees the row may have it run
        try:
            task = await store.write(lambda conn: registry.create(conn, new))
        except BaseException:
            self._orders.pop(id, None)
            raise
        self._observer(Observed(store.session_id, id, TaskChanged(task)))
        await self._backend.spawn(id)
        return {"task_id": id, "output_file": str(output_file)}

    async def end_of(self, parent_id: str) -> list[str]:
        """End the commands of a run that is over; which they were, in words."""
        ended = []
        for task_id in [id for id, order in self._orders.items() if order.parent_id == parent_id]:
            if self._store.failure is not None:
                await self._backend.stop(task_id, Cause.STORE)
                continue
            done = await self._store.write(
                partial(registry.kill, task_id=task_id, by="system", notify=False, end_reason="its agent ended")
            )
            survivors = await self._backend.stop(task_id, Cause.KILLED)
            if done.changed:
                ended.append(task_id + (f", of which survived: {'; '.join(survivors)}" if survivors else ""))
        return ended


class ShellRun:
    """One command; a `Run`. Without an order it is one of an earlier owner: what is left of it is ended, and its task
    says so. `nudge` is called with the id of the task that began it when it has ended."""

    def __init__(self, task_id: str, *, store: Store, observer: Observer, orders: Orders, nudge: Callable[[str], None]) -> None:
        self._task_id = task_id
        self._store = store
        self._observer = observer
        self._orders = orders
        self._nudge = nudge
        self._processes = Processes(store, task_id)
        self._stopping: Cause | None = None
        self._running: asyncio.Task[Any] | None = None
        self.is_recorded = False

    def stop(self, cause: Cause) -> None:
        if self._stopping is None:
            self._stopping = cause
            if self._running is not None:
                self._running.cancel()

    def leave(self) -> None:
        """It ends with the agent that began it."""

    def nudge(self) -> None:
        """A command reads no messages."""

    async def clean_up(self) -> tuple[str, ...]:
        return await self._processes.end()

    async def run(self) -> None:
        self._running = asyncio.current_task()
        order = self._orders.get(self._task_id)
        try:
            if (task := await self._claim()) is not None:
                await self._run(task, order)
        except Fenced:
            log.warning("task %s: another process owns the session", self._task_id)
        except DatabaseError as error:  # the session ends by it; the task stands as it was stored last
            self._store.fail(error)
        finally:
            self._orders.pop(self._task_id, None)
            self._tell_end(order)

    async def _claim(self) -> TaskRecord | None:
        store = self._store

        def claim(conn: Connection) -> TaskRecord | None:
            attempt = registry.claim(conn, self._task_id, owner=store.owner, fence=store.fence)
            return None if attempt is None else registry.get(conn, self._task_id)

        task = await store.write(claim)
        if task is not None:
            self._observer(Observed(store.session_id, task.id, TaskChanged(task)))
        return task

    async def _run(self, task: TaskRecord, order: Order | None) -> None:
        try:
            end = await (self._interrupted(task) if order is None else self._shell(task, order))
        except asyncio.CancelledError:
            if self._stopping is Cause.KILLED:
                tail = _tail(Path(task.output_file or ""))
                await shielded(self._store.write(lambda conn: registry.attach_partial(conn, task.id, tail)))
                self.is_recorded = True
            raise
        await shielded(self._store.write(lambda conn: registry.finish(conn, task.id, task.attempt, end)))
        self.is_recorded = True

    async def _shell(self, task: TaskRecord, order: Order) -> Ended:
        context = order.context
        try:
            outcome = await run_shell(
                order.command,
                cwd=Path(task.cwd or "."),
                env={**context.environment, TASK_MARKER: task.id},
                output_file=Path(task.output_file or ""),
                timeout=order.timeout,
                keep=context.settings.bash_output,
                file_cap=context.settings.bash_file_cap,
                live=True,
                grace=context.settings.kill_grace,
                wrap=context.wrap(),
                redact=context.redact,
                memory=context.settings.command_memory,
                nice=context.settings.command_nice,
                on_start=self._processes.began,
            )
        except (OSError, ValueError) as error:
            return _failed("error", str(error), error_class=type(error).__name__)
        return _ended(outcome, order.timeout)

    async def _interrupted(self, task: TaskRecord) -> Ended:
        """End what the process left that ran it."""
        survivors = await self._processes.end()
        error = "the process that ran it ended" + (f"; these survived: {'; '.join(survivors)}" if survivors else "")
        return replace(_failed("interrupted", error, _tail(Path(task.output_file or ""))), retryable=True)

    def _tell_end(self, order: Order | None) -> None:
        if self._store.failure is not None:
            return
        task = self._store.read(lambda conn: registry.get(conn, self._task_id))
        self._observer(Observed(self._store.session_id, task.id, TaskChanged(task)))
        self._nudge(order.parent_id if order else task.parent_id or task.session_id)


def _failed(why: str, error: str, result: str = "", *, error_class: str | None = None) -> Ended:
    return Ended(
        status=TaskStatus.FAILED,
        result=result,
        end_reason=why,
        error=error,
        error_class=error_class or why,
        retryable=False,
    )


def _ended(outcome: ShellOutcome, limit: float) -> Ended:
    if outcome.exit_code == 0 and not outcome.capped and not outcome.timed_out:
        return Ended(status=TaskStatus.COMPLETED, result=outcome.output, end_reason="completed", exit_code=outcome.exit_code)
    why, error = _why(outcome, limit)
    if outcome.survivors:
        error += f"; these processes could not be ended: {', '.join(map(str, outcome.survivors))}"
    return replace(_failed(why, error, outcome.output), exit_code=outcome.exit_code)


def _why(outcome: ShellOutcome, limit: float) -> tuple[str, str]:
    if outcome.timed_out:
        return "timeout", f"the time limit of {limit:g} s ran out"
    if outcome.capped:
        return "output_cap", f"it was ended because it wrote more than {outcome.size:,} bytes"
    return "exit_code", f"exit code {outcome.exit_code}"


def _tail(path: Path, size: int = 4000) -> str:
    """The last `size` bytes of a file as text."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
