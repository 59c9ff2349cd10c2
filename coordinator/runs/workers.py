"""One run of a worker: its loop's events become progress, its end becomes one transaction.

1. The run claims its task first; a task that was ended meanwhile never starts.
2. The end is one transaction: status, event, notification. A worker that answered while a message for it came in is not
   at its end: the same transaction looks, and the run goes on with the message.
3. There is one way to stop a run: `stop(cause)`. KILLED means that the task's end is stored already and only the
   partial text is to be added; any other reason leaves the task as it stands, to be taken over by a later owner. So
   does a failure of the store, which ends the session.
4. What records the end is shielded: a cancellation that comes then waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from coordinator.agents.inbox import TaskInbox
from coordinator.agents.journal import History, TaskJournal
from coordinator.observed import Observed, Observer, TaskChanged
from coordinator.runs import outcome
from coordinator.runs.held_directory import HeldDirectory
from coordinator.runs.processes import Processes
from coordinator.runs.progress import LIFE, Coalesced, Price, Progress, shows_life
from coordinator.runs.worktrees import Worktree, Worktrees
from coordinator.store import Store
from tasks import ledger, outbox, registry
from tasks.connection import Connection
from tasks.errors import DatabaseError, Fenced
from tasks.records import Ended, TaskRecord
from tasks.states import TaskStatus
from worker_agent.causes import Cause
from worker_agent.context.injected import news
from worker_agent.errors import AgentError
from worker_agent.events import Event, MessageAdded, ModelCalled, Result
from worker_agent.hooks import HookRunner
from worker_agent.messages import Message, user
from worker_agent.session.engine import Limits, QueryEngine
from worker_agent.structs import replace

MAX_OBJECTIONS = 8  # of hooks to one task's end
T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkerParts(Struct, frozen=True, kw_only=True):
    """What a worker's engine is built of, beside what all have in common."""

    task: TaskRecord
    cwd: Path
    journal: TaskJournal
    inbox: TaskInbox
    history: History
    processes: Processes
    hooks: HookRunner


class Worker(Struct, frozen=True):
    """A worker ready to run: its engine, what each of its prompts is bound by, and what is to be called when its run has
    ended."""

    engine: QueryEngine
    limits: Limits
    close: Callable[[], None]


class Engines(Protocol):
    """Builds engines; see `engines.py`."""

    async def worker(self, parts: WorkerParts) -> Worker: ...

    def worker_hooks(self, task: TaskRecord, cwd: Path) -> HookRunner: ...

    def history(self, agent_id: str) -> History: ...

    def journal(self, task: TaskRecord) -> TaskJournal: ...

    def inbox(self, agent_id: str) -> TaskInbox: ...


class Copy(Protocol):
    """A worker's own copy of the project, whose work goes to a repository that machines share."""

    path: Path
    branch: str
    left_out: tuple[str, ...]

    async def keep(self, message_id: str | None = None) -> None:
        """At a turn's end, of which `message_id` is stored."""
        ...

    async def leave(self) -> None:
        """The run is given back: what is there now goes to that repository."""
        ...

    async def deliver(self, message: str) -> tuple[str, ...]:
        """At the end, with `message` for what is not committed; what is to be said of it."""
        ...

    async def remove(self) -> None:
        """After the end is stored."""
        ...


class Copies(Protocol):
    async def open(self, task: TaskRecord) -> Copy: ...


class SharedFiles(Protocol):
    async def exchange(self, agent_id: str) -> None:
        """Give the small files that changed here to other machines, and take theirs."""
        ...


class WorkerRun:
    """One attempt at one task. Belongs to one event loop."""

    def __init__(
        self,
        task_id: str,
        *,
        store: Store,
        engines: Engines,
        price: Price,
        worktrees: Worktrees,
        observer: Observer,
        end_shells: Callable[[str], Awaitable[list[str]]],
        on_recorded: Callable[[str], None],
        copies: Copies | None = None,
        shared: SharedFiles | None = None,
    ) -> None:
        """With `copies` it works in one of these, whatever isolation its task asks for."""
        self._copies = copies
        self._shared = shared
        self._copy: Copy | None = None
        self._task_id = task_id
        self._store = store
        self._engines = engines
        self._price = price
        self._worktrees = worktrees
        self._observer = observer
        self._end_shells = end_shells
        self._on_recorded = on_recorded
        self.is_recorded = False  # its end is stored, and with it what it had to say
        self._processes = Processes(store, task_id)
        self._progress = Progress(price)
        self._tell = Coalesced(self._tell_progress)
        self._tell_life = Coalesced(self._tell_progress, LIFE)
        self._task: TaskRecord  # from the claim on
        self._engine: QueryEngine | None = None
        self._limits = Limits()
        self._inbox: TaskInbox | None = None
        self._tree: Worktree | None = None
        self._held: HeldDirectory | None = None
        self._hooks: HookRunner  # from the preparation on
        self._objections = 0
        self._stopping: Cause | None = None
        self._leaves = False  # at the end of the turn that runs
        self._close: Callable[[], None] = lambda: None

    # ── from outside ───────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self, cause: Cause) -> None:
        if self._stopping is None:
            self._stopping = cause
            if self._engine is not None:
                self._engine.interrupt(cause)

    def leave(self) -> None:
        """Stop as by `TERMINATED`, at the end of the turn that runs; an answer that is the last one is its end."""
        self._leaves = True

    def nudge(self) -> None:
        if self._inbox is not None:
            self._inbox.nudge()

    async def clean_up(self) -> tuple[str, ...]:
        return await self._processes.end()

    # ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        try:
            if await self._claim():
                await self._run()
        except Fenced:
            log.warning("task %s: another process owns the session", self._task_id)
        except DatabaseError as error:  # the session ends by it; the task stands as it was stored last
            self._store.fail(error)
            await shielded(self._processes.end_own())
        finally:
            self._cancel_telling()
            self._close()
            if self._engine is not None:
                await shielded(self._engine.close())
            self._let_go()

    def _let_go(self) -> None:
        """A run that has ended may be held for long; what it was made of must not be."""
        self._engine = self._inbox = None
        self._let_directory_go()
        self._close = lambda: None
        self._progress = Progress(self._price)

    async def _claim(self) -> bool:
        store = self._store

        def claim(conn: Connection) -> TaskRecord | None:
            attempt = registry.claim(conn, self._task_id, owner=store.owner, fence=store.fence)
            return None if attempt is None else registry.get(conn, self._task_id)

        task = await store.write(claim)
        if task is None or self._stopping is not None:
            return False
        self._task = task
        self._observe(TaskChanged(task))
        return True

    async def _run(self) -> None:
        try:
            try:
                prompt = await self._prepare()
                while True:
                    end = await self._drive(prompt)
                    if (prompt := await self._objection(end)) is None and await shielded(self._record(end)):
                        return  # else: a hook objects, or a message came while the last answer was written
            except (Fenced, DatabaseError, asyncio.CancelledError):
                raise
            except AgentError as error:
                await shielded(self._record(outcome.broken(error, self._partial())))
            except Exception as error:  # the one place: a task must end whatever broke, with the class of what broke
                log.exception("task %s broke", self._task_id)
                self._store.fail_if_full(error)
                await shielded(self._record(outcome.broken(error, self._partial())))
        except asyncio.CancelledError:
            await shielded(self._record(None))
            raise

    async def _prepare(self) -> Message | None:
        """Build the engine; the prompt to begin with, None to go on with the history."""
        if self._task.attempt > 1:
            await self._processes.end()  # of the attempt before, whose owner may have died and left them alive
        if self._shared is not None:
            await self._shared.exchange(self._task.agent_id)
        cwd = await self._working_directory()
        self._hold(cwd)
        history = History() if self._is_new() else self._engines.history(self._task.agent_id)
        journal = self._engines.journal(self._task)
        await journal.append(history.added)
        self._inbox = self._engines.inbox(self._task.agent_id)
        self._hooks = self._engines.worker_hooks(self._task, cwd)
        worker = await self._engines.worker(
            WorkerParts(
                task=self._task,
                cwd=cwd,
                journal=journal,
                inbox=self._inbox,
                history=history,
                processes=self._processes,
                hooks=self._hooks,
            )
        )
        self._engine, self._limits, self._close = worker.engine, worker.limits, worker.close
        if self._stopping is not None:
            self._engine.interrupt(self._stopping)
        begun = any(message.data.get("task_id") == self._task_id for message in history.messages)
        return None if begun else await self._first_message(history, cwd)

    def _is_new(self) -> bool:
        """Whether this is the first run of its agent: nothing can be stored of it yet."""
        return self._task.attempt == 1 and self._task.agent_id == self._task.id

    async def _first_message(self, history: History, cwd: Path) -> Message:
        task, now = self._task, self._store.clock.now()
        verdict = await self._hooks.subagent_start(task.definition or "worker", task.agent_id)
        changed = news(history.surroundings["system"], cwd, now) if history.surroundings else None
        own = self._tree or self._copy
        missing = f"[{_left_out(own)}]" if own and own.left_out else None
        text = "\n\n".join((task.prompt, *verdict.context, *filter(None, [changed, missing])))
        return user(text, data={"task_id": task.id}, at=now)

    async def _working_directory(self) -> Path:
        """Where the worker works: the task's directory, or a worktree of its own, made on the first attempt."""
        task = self._task
        if self._copies is not None:
            self._copy = copy = await self._copies.open(task)
            self._task = replace(task, worktree=str(copy.path), branch=copy.branch)
            return copy.path
        if task.worktree and Path(task.worktree).is_dir():
            return Path(task.worktree)
        if task.isolation != "worktree":
            return Path(task.cwd or ".")
        self._tree = tree = await self._worktrees.create(Path(task.cwd or "."), task.id)
        self._task = replace(task, worktree=str(tree.path), branch=tree.branch)
        await self._store.write(lambda conn: registry.annotate(conn, task.id, worktree=str(tree.path), branch=tree.branch))
        return tree.path

    def _hold(self, cwd: Path) -> None:
        self._let_directory_go()
        self._held = HeldDirectory(cwd)

    def _let_directory_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    async def _drive(self, prompt: Message | None) -> Ended | None:
        """Run until the loop ends; None when it was stopped."""
        if self._stopping is not None:
            return None
        end = self._already_answered() if prompt is None else None
        if end is None:
            end = await self._submit(prompt)
        if end.status is TaskStatus.COMPLETED and self._held is not None and self._held.is_gone:
            end = outcome.without_directory(end, self._held.path)
        return None if self._stopping is not None else end

    def _already_answered(self) -> Ended | None:
        """A run taken over whose answer was stored just before its owner died has nothing more to do."""
        assert self._engine is not None and self._inbox is not None
        last = self._engine.messages[-1] if self._engine.messages else None
        if last is None or last.kind != "answer" or last.tool_uses or not last.text.strip() or self._inbox.waiting():
            return None
        if last.stop_reason not in ("end_turn", "stop_sequence"):
            return None
        return Ended(status=TaskStatus.COMPLETED, result=last.text, end_reason="completed")

    async def _objection(self, end: Ended | None) -> Message | None:
        """What `TaskCompleted` hooks have against calling the task completed: the worker goes back to work with it."""
        if end is None or end.status is not TaskStatus.COMPLETED or self._objections >= MAX_OBJECTIONS:
            return None
        task = self._task
        verdict = await self._hooks.task_completed(task.id, task.description, task.prompt, task.name)
        if not verdict.blocking:
            return None
        self._objections += 1
        text = "The task does not count as completed yet:\n" + "\n".join(verdict.blocking)
        return user(text, kind="meta", meta=True, data={"reason": "task_completed_hook"})

    async def _submit(self, prompt: Message | None) -> Ended:
        assert self._engine is not None
        result: Result | None = None
        async for event in self._engine.submit_message(prompt, self._limits):
            result = event if isinstance(event, Result) else None
            self._take(event)
            if isinstance(event, MessageAdded) and event.message.kind == "tool_results":
                await self._at_turn_end(event.message)
        assert result is not None
        return outcome.ended(result)

    async def _at_turn_end(self, results: Message) -> None:
        """The next call of the model has not begun."""
        if self._copy is not None and self._stopping is None:
            await self._copy.keep(results.id)
        if self._shared is not None and self._stopping is None:
            await self._shared.exchange(self._task.agent_id)
        if self._leaves:
            self.stop(Cause.TERMINATED)

    # ── what is told ───────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, event: Event) -> None:
        if self._progress.observe(event):
            self._tell.touch()
        elif shows_life(event):
            self._tell_life.touch()
        self._observe(event)

    def _observe(self, event: Event | TaskChanged) -> None:
        self._observer(Observed(self._store.session_id, self._task_id, event))

    def _cancel_telling(self) -> None:
        self._tell.cancel()
        self._tell_life.cancel()

    def _tell_progress(self) -> None:
        now = self._task = self._progress.on(self._task, self._store.clock.now())
        self._store.submit(
            lambda conn: registry.progress(
                conn,
                now.id,
                attempt=now.attempt,
                tool_uses=now.tool_uses,
                input_tokens=now.input_tokens,
                output_tokens=now.output_tokens,
                cache_read_tokens=now.cache_read_tokens,
                cache_write_tokens=now.cache_write_tokens,
                cost_usd=now.cost_usd,
                activities=now.activities,
                model=now.model,
            )
        )
        self._observe(TaskChanged(now))

    def _partial(self) -> str:
        return outcome.partial_text(self._progress.texts, self._engine.partial_text if self._engine else "")

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _record(self, end: Ended | None) -> bool:
        """Store how it ended (None: it was stopped); whether that was the end: not if a message came meanwhile."""
        self._cancel_telling()
        self._progress.settle()
        self._tell_progress()
        if end is None:
            await self._end_shells(self._task_id)
            if self._copy is not None and self._stopping in (None, Cause.KILLED, Cause.TERMINATED):
                await self._copy.leave()
            if self._stopping is Cause.KILLED:
                await self._store.write(lambda conn: registry.attach_partial(conn, self._task_id, self._partial()))
                await self._tell_end()
            return True
        if end.status is TaskStatus.COMPLETED and self._inbox is not None:
            self._inbox.nudge()
            if self._inbox.waiting():
                return False
        end = await self._leave(end)
        if not await self._store.write(lambda conn: self._finish(conn, end)):
            if self._tree is not None and not self._tree.path.exists():
                self._hold(await self._working_directory())  # it was clean, so a new one is the same
            return False
        if self._copy is not None:
            await self._copy.remove()
        await self._tell_end()
        await self._hooks_on_end(end)
        return True

    async def _leave(self, end: Ended) -> Ended:
        """End what the worker left running, give its worktree back if it is clean, and say what could not be."""
        notes = [f"stopped with the worker: {command}" for command in await self._end_shells(self._task_id)]
        notes += [f"could not be ended: process {survivor}" for survivor in await self._processes.end_own()]
        if self._tree is not None:
            closed = await self._worktrees.close(self._tree)
            what = "is gone: nothing was changed in it" if closed.removed else f"was kept: {closed.why}"
            notes.append(f"the worktree {self._tree.path} {what}")
            if self._tree.left_out:
                notes.append(_left_out(self._tree))
        if self._copy is not None:
            notes += await self._copy.deliver(f"{' '.join(self._task.description.split())[:60]} ({self._task_id})")
        if not notes:
            return end
        return replace(end, result=f"{end.result or ''}\n\n" + "\n".join(f"[{note}]" for note in notes))

    def _finish(self, conn: Connection, end: Ended) -> bool:
        """The one transaction. False: a message came in, the run is not at its end."""
        task = self._task
        if end.status is TaskStatus.COMPLETED:
            if outbox.waiting(conn, task.agent_id):
                return False
        else:
            outbox.return_undelivered(conn, task.agent_id, f"the worker failed: {end.error}")
        finished = registry.finish(conn, task.id, task.attempt, end, notify=task.background)
        if not finished:  # it was killed meanwhile: what it had is its partial result
            registry.attach_partial(conn, task.id, end.result or "")
        return True

    async def _hooks_on_end(self, end: Ended) -> None:
        if self._engine is not None:
            await self._hooks.notification("agent_completed", f"{self._task.description}: {end.status}")

    async def _tell_end(self) -> None:
        self.is_recorded = True
        self._on_recorded(self._task_id)
        self._observe(TaskChanged(self._store.read(lambda conn: registry.get(conn, self._task_id))))


def _left_out(tree: Worktree | Copy) -> str:
    return f"the worktree was made without what the repository would have run: {', '.join(tree.left_out)}"


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even if this task is cancelled meanwhile; the cancellation comes after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def book(store: Store, call: ModelCalled, agent_id: str, task_id: str | None, price: Price) -> None:
    """One row of the ledger for one model response."""
    if call.response_id is None:
        return
    usage, cost = call.usage, price(call.model, call.usage)
    store.submit(
        lambda conn: ledger.book(
            conn,
            response_id=call.response_id,
            session_id=store.session_id,
            agent_id=agent_id,
            task_id=task_id,
            model=call.model,
            purpose=call.purpose.value,
            input_tokens=usage.input,
            cache_write_5m_tokens=usage.cache_write_5m,
            cache_write_1h_tokens=usage.cache_write_1h,
            cache_read_tokens=usage.cache_read,
            output_tokens=usage.output,
            cost_usd=cost,
        )
    )
