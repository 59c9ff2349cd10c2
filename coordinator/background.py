"""`local_bash` tasks: shell commands in the background, as tracked as a worker.

A command belongs to the agent that started it: its end is announced to that agent, and it ends with the agent's run, or
at its time limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.observed import Observed, Observer, TaskChanged
from coordinator.paths import Paths
from coordinator.processes import Processes
from coordinator.store import Store
from coordinator.workers import shielded
from tasks import ids, registry
from tasks.errors import DatabaseError, Fenced
from tasks.ids import TaskType
from tasks.records import Ended, NewTask, TaskRecord
from tasks.states import TaskStatus
from worker_agent.causes import Cause
from worker_agent.process import TASK_MARKER, ShellOutcome, run_shell
from worker_agent.tools.base import ToolContext

STOP_BOUND = 8.0  # seconds for a command's tree to be ended
log = logging.getLogger(__name__)


class Shells:
    """All background commands of a session; a `Backend`. Belongs to one event loop. `on_end` is called with a task's id."""

    def __init__(self, store: Store, paths: Paths, observer: Observer) -> None:
        self._store = store
        self._paths = paths
        self._observer = observer
        self._running: dict[str, asyncio.Task[None]] = {}
        self._taken: set[str] = set()  # being started or ended: nobody else's
        self._parents: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self.on_end: Callable[[str, str], None] = lambda task_id, parent_id: None

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

        def create(conn: Any) -> TaskRecord:
            registry.create(conn, new)
            registry.claim(conn, id, owner=store.owner, fence=store.fence)
            return registry.get(conn, id)

        self._taken.add(id)
        task = await store.write(create)
        self._parents[id] = parent
        run = self._run(replace(task, prompt=command), context, timeout)  # what runs is what was written
        self._running[id] = asyncio.create_task(run, name=f"task {id}")
        self._tell(task)
        return {"task_id": id, "output_file": str(output_file)}

    async def stop(self, task_id: str, cause: Cause) -> tuple[str, ...]:
        """End one whose end is stored (KILLED), or leave it as it stands (any other cause); what survived, in
        words."""
        if (task := self._running.get(task_id)) is None:
            return ()
        self._reasons.setdefault(task_id, cause)
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_BOUND)
        return await Processes(self._store, task_id).end()

    async def end_of(self, parent_id: str) -> list[str]:
        """End the commands of a run that is over; which they were, in words."""
        ended = []
        for task_id in [id for id, parent in self._parents.items() if parent == parent_id and id in self._running]:
            if self._store.failure is not None:
                await self.stop(task_id, Cause.STORE)
                continue
            done = await self._store.write(
                partial(registry.kill, task_id=task_id, by="system", notify=False, end_reason="its agent ended")
            )
            survivors = await self.stop(task_id, Cause.KILLED)
            if done.changed:
                ended.append(task_id + (f", of which survived: {'; '.join(survivors)}" if survivors else ""))
        return ended

    async def spawn(self, task_id: str) -> None:
        """A command that does not run here is one of an earlier owner. It cannot be taken over, its output is gone with
        that process: end it and say so."""
        if task_id in self._running or task_id in self._taken:
            return
        task = self._store.read(lambda conn: registry.get(conn, task_id))
        self._taken.add(task.id)
        survivors = await Processes(self._store, task.id).end()
        error = "the process that ran it ended" + (f"; these survived: {'; '.join(survivors)}" if survivors else "")
        end = Ended(
            status=TaskStatus.FAILED,
            result=_tail(Path(task.output_file or "")),
            end_reason="interrupted",
            error=error,
            error_class="interrupted",
            retryable=True,
        )
        attempt = await self._store.write(
            lambda conn: registry.claim(conn, task.id, owner=self._store.owner, fence=self._store.fence)
        )
        if attempt is not None:
            await self._finish(replace(task, attempt=attempt), end, None)
            self._tell(self._store.read(lambda conn: registry.get(conn, task.id)))
            self.on_end(task.id, task.parent_id or self._store.session_id)

    def nudge(self, task_id: str) -> None:
        """A command reads no messages."""

    def is_unwinding(self, task_id: str) -> bool:
        return task_id in self._running

    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    async def close(self, cause: Cause) -> None:
        await asyncio.gather(*(self.stop(task_id, cause) for task_id in self.running()))

    async def _run(self, task: TaskRecord, context: ToolContext, timeout: float) -> None:
        try:
            outcome = await self._shell(task, context, timeout)
            await shielded(self._finish(task, _ended(outcome, timeout), outcome.exit_code))
        except asyncio.CancelledError:
            if self._reasons.get(task.id) is Cause.KILLED:
                tail = _tail(Path(task.output_file or ""))
                await shielded(self._store.write(lambda conn: registry.attach_partial(conn, task.id, tail)))
            raise
        except Fenced:
            log.warning("task %s: another process owns the session", task.id)
        except DatabaseError as error:  # the session ends by it; the task stands as it was stored last
            self._store.fail(error)
        except (OSError, ValueError) as error:
            end = Ended(
                status=TaskStatus.FAILED,
                result="",
                end_reason="error",
                error=str(error),
                error_class=type(error).__name__,
                retryable=False,
            )
            await shielded(self._finish(task, end, None))
        finally:
            self._running.pop(task.id, None)
            parent = self._parents.pop(task.id)
            if self._store.failure is None:
                self._tell(self._store.read(lambda conn: registry.get(conn, task.id)))
            self.on_end(task.id, parent)

    async def _shell(self, task: TaskRecord, context: ToolContext, timeout: float) -> ShellOutcome:
        return await run_shell(
            task.prompt,
            cwd=Path(task.cwd or "."),
            env={**context.environment, TASK_MARKER: task.id},
            output_file=Path(task.output_file or ""),
            timeout=timeout,
            keep=context.settings.bash_output,
            file_cap=context.settings.bash_file_cap,
            live=True,
            grace=context.settings.kill_grace,
            wrap=context.wrap(),
            redact=context.redact,
            on_start=Processes(self._store, task.id).began,
        )

    async def _finish(self, task: TaskRecord, end: Ended, exit_code: int | None) -> None:
        end = replace(end, exit_code=exit_code)
        await self._store.write(lambda conn: registry.finish(conn, task.id, task.attempt, end))

    def _tell(self, task: TaskRecord) -> None:
        self._observer(Observed(self._store.session_id, task.id, TaskChanged(task)))


def _ended(outcome: ShellOutcome, limit: float) -> Ended:
    if outcome.exit_code == 0 and not outcome.capped and not outcome.timed_out:
        return Ended(status=TaskStatus.COMPLETED, result=outcome.output, end_reason="completed")
    why, error = _why(outcome, limit)
    if outcome.survivors:
        error += f"; these processes could not be ended: {', '.join(map(str, outcome.survivors))}"
    return Ended(
        status=TaskStatus.FAILED,
        result=outcome.output,
        end_reason=why,
        error=error,
        error_class=why,
        retryable=False,
    )


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
