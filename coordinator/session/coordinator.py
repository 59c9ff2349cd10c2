"""`Coordinator`: spawn, send, stop, wait. It knows no input and no output format.

1. What it does is stored first, then told to the backend. So nothing it started can be lost, and everything may be told
   twice.
2. `spawn`, `send` and `stop` answer with what really happened, decided in one transaction each.
3. Whoever waits for a task waits for `Wakes.ready` and looks again; nobody polls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from coordinator.agents.definitions import Agents
from coordinator.agents.inbox import FROM_COORDINATOR
from coordinator.observed import Observed, Observer, TaskChanged
from coordinator.paths import Paths
from coordinator.runs.backends.base import Backend
from coordinator.store import Store
from coordinator.wakes import Wakes
from tasks import agents as agent_rows
from tasks import ids, outbox, registry
from tasks.connection import Connection
from tasks.ids import TaskType
from tasks.records import NewTask, TaskRecord
from tasks.registry import TaskFilter
from tasks.states import TaskStatus
from worker_agent.causes import Cause
from worker_agent.errors import ConfigError
from worker_agent.hooks import Verdict
from worker_agent.redaction import Redact, in_json
from worker_agent.session.schema import fault
from worker_agent.structs import replace
from worker_agent.tools.rules import RuleSet
from worker_agent.words import counted

BY_MODEL = "model"


class SpawnRequest(Struct, frozen=True, kw_only=True):
    """A new worker. `background` False: whoever asks waits for the end and needs no notification. `call_id` is the tool
    call that asks."""

    description: str
    prompt: str
    agent_type: str = "worker"
    name: str | None = None
    model: str | None = None
    isolation: str | None = None
    tags: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    result_schema: Mapping[str, Any] | None = None
    background: bool = True
    call_id: str | None = None


class Sent(StrEnum):
    """What became of a message."""

    QUEUED = "queued"  # read at the worker's next step
    CONTINUED = "continued"  # the worker had ended: a new task runs on its conversation
    KILLED = "killed"  # refused: a killed worker stays killed


class SendOutcome(Struct, frozen=True):
    sent: Sent
    task: TaskRecord


class StopOutcome(Struct, frozen=True):
    """`ended_now` False: it had ended before, in `task.status`. `survivors` could not be ended, in words; `undelivered`
    is the number of messages that went back."""

    task: TaskRecord
    ended_now: bool
    survivors: tuple[str, ...] = ()
    undelivered: int = 0


class Limits(Struct, frozen=True):
    """`tasks` bounds the whole session, so that a loop of spawning ends."""

    tasks: int = 1000


class Coordinator:
    """Belongs to one event loop. `model_of` resolves the model that was asked for; `task_created` are the hooks that may
    refuse a task."""

    def __init__(
        self,
        *,
        store: Store,
        wakes: Wakes,
        backend: Backend,
        agents: Agents,
        paths: Paths,
        cwd: Path,
        observer: Observer,
        model_of: Callable[[str | None], str],
        task_created: Callable[[str, str, str, str | None], Awaitable[Verdict]],
        redact: Redact = lambda text: text,
        limits: Limits = Limits(),
    ) -> None:
        self._store = store
        self._wakes = wakes
        self._backend = backend
        self._agents = agents
        self._paths = paths
        self._cwd = cwd
        self._observer = observer
        self._model_of = model_of
        self._task_created = task_created
        self._redact = redact
        self._limits = limits
        self._count: int | None = None  # of tasks so far; None = not looked yet

    # ── spawn ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def spawn(self, request: SpawnRequest) -> TaskRecord:
        """Create a worker and have it run as soon as there is a slot. Raises `ConfigError` for an unknown type or a
        limit, `NameTaken` for a name in use."""
        definition = self._agents.get(request.agent_type)
        RuleSet.from_flags(request.allowed_tools or ())  # what is no rule is refused now, not when the task runs
        if request.result_schema is not None and (problem := fault(request.result_schema)) is not None:
            raise ConfigError(f"result_schema is no valid JSON schema: {problem}")
        store, id = self._store, ids.new_id(TaskType.LOCAL_AGENT)
        request = self._redacted(request)
        task = NewTask(
            session_id=store.session_id,
            description=request.description,
            prompt=request.prompt,
            id=id,
            parent_id=store.session_id,
            name=request.name,
            definition=definition.name,
            model=self._model_of(request.model or definition.model),
            cwd=str(self._cwd),
            isolation=request.isolation or definition.isolation,
            tags=tuple(dict.fromkeys((*definition.tags, *request.tags))) or None,
            background=request.background,
            result_schema=request.result_schema,
            allowed_tools=request.allowed_tools,
            output_file=str(self._paths.output_file(store.session_id, id)),
            fence=store.fence,
            asked_by=request.call_id,
        )
        verdict = await self._task_created(id, request.description, request.prompt, request.name)
        if verdict.blocked:
            raise ConfigError(f"a hook refuses the task: {verdict.stop or '; '.join(verdict.blocking)}")
        return await self._start(await store.write(lambda conn: self._create(conn, task)), request.call_id)

    def _redacted(self, request: SpawnRequest) -> SpawnRequest:
        """What is stored of it, and what its worker reads."""
        return replace(
            request,
            description=self._redact(request.description),
            prompt=self._redact(request.prompt),
            name=self._redact(request.name) if request.name else request.name,
            result_schema=in_json(request.result_schema, self._redact),
        )

    def _create(self, conn: Connection, task: NewTask) -> TaskRecord:
        if self._count is None:
            self._count = len(registry.list_tasks(conn, TaskFilter(session_id=task.session_id, texts=False)))
        if self._count >= self._limits.tasks:
            raise ConfigError(f"this session has had {counted(self._limits.tasks, 'task')}, more are not allowed")
        created = registry.create(conn, task)
        self._count += 1
        return created

    async def _start(self, task: TaskRecord, asked_by: str | None = None) -> TaskRecord:
        self._observer(Observed(self._store.session_id, task.id, TaskChanged(task, asked_by)))
        await self._backend.spawn(task.id)
        return task

    # ── send ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, to: str, message: str, *, sender: str = FROM_COORDINATOR) -> SendOutcome:
        """Give `message` to the agent that `to` (a task id, a name) addresses. Raises `NotFound`, `Ambiguous`."""
        store, message = self._store, self._redact(message)
        outcome = await store.write(lambda conn: deliver(conn, store, to, message, sender, self._paths))
        if outcome.sent is Sent.CONTINUED:
            await self._start(outcome.task)
        elif outcome.sent is Sent.QUEUED:
            self._backend.nudge(outcome.task.id)
        return outcome

    # ── stop ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, ref: str, *, by: str = BY_MODEL, announced: bool = True) -> StopOutcome:
        """End a task: stored, unwound, its processes proven gone, its partial text attached. A stop by the model is
        answered by its tool, so nothing else announces it. Raises `NotFound`, `Ambiguous`."""
        store, notify = self._store, announced and by != BY_MODEL

        def kill(conn: Connection) -> tuple[TaskRecord, bool, int]:
            task = registry.resolve(conn, ref, session_id=store.session_id)
            done = registry.kill(conn, task.id, by=by, notify=notify, end_reason=f"killed by {by}")
            return task, done.changed, len(done.undelivered)

        task, changed, undelivered = await store.write(kill)
        survivors = await self.unwind(task) if changed else ()
        task = store.read(lambda conn: registry.get(conn, task.id))
        if changed:
            self._observer(Observed(store.session_id, task.id, TaskChanged(task)))
        return StopOutcome(task, changed, survivors, undelivered)

    async def unwind(self, task: TaskRecord, cause: Cause = Cause.KILLED) -> tuple[str, ...]:
        """End what runs of a task whose end is stored; what could not be ended, in words."""
        return await self._backend.stop(task.id, cause)

    # ── wait ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def live(self) -> list[TaskRecord]:
        """The tasks of the session that have not ended."""
        return self._store.read(lambda conn: registry.live(conn, self._store.session_id))

    async def wait_for(self, task_id: str) -> TaskRecord:
        """Until this task has ended."""
        while True:
            self._wakes.ready.clear()
            task = self._store.read(lambda conn: registry.get(conn, task_id))
            if task.status not in (TaskStatus.PENDING, TaskStatus.RUNNING):
                return task
            await self._wakes.ready.wait()


def deliver(conn: Connection, store: Store, to: str, message: str, sender: str, paths: Paths) -> SendOutcome:
    """Decide and do, in one transaction, what becomes of a message: to a living run it is queued, on an ended one a new
    task is created, a killed one stays killed."""
    agent, task = agent_rows.resolve(conn, store.session_id, to)
    if task is None:
        raise ConfigError("this is the coordinator itself: it cannot be written to by SendMessage")
    if not task.reports:
        raise ConfigError(f"{task.id} is a shell command: it reads no messages")
    if task.is_live:
        outbox.send(conn, session_id=store.session_id, agent_id=agent.id, body=message, sender=sender)
        return SendOutcome(Sent.QUEUED, task)
    if task.status is TaskStatus.KILLED:
        return SendOutcome(Sent.KILLED, task)
    return SendOutcome(Sent.CONTINUED, registry.create(conn, follow_up(task, message, store.fence, paths)))


def follow_up(task: TaskRecord, prompt: str, fence: int | None, paths: Paths) -> NewTask:
    """A new task on the conversation of an ended one."""
    id = ids.new_id(TaskType.LOCAL_AGENT)
    return NewTask(
        session_id=task.session_id,
        description=task.description,
        prompt=prompt,
        id=id,
        agent_id=task.agent_id,
        parent_id=task.parent_id,
        continues=task.id,
        name=task.name,
        definition=task.definition,
        model=task.model,
        cwd=task.cwd,
        worktree=task.worktree,
        branch=task.branch,
        isolation=task.isolation,
        tags=task.tags,
        result_schema=task.result_schema,
        allowed_tools=task.allowed_tools,
        output_file=str(paths.output_file(task.session_id, id)),
        fence=fence,
    )
