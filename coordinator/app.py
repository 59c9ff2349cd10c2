"""The life of one session in this process, from open to close; what it is made of is put together by `composition.py`.

What can be refused is checked before a session is made or taken over (`session/ground.py`); a refusal changes nothing.

A headless run ends when the coordinator has ended its turn, no task lives and no notification waits. While workers run
the coordinator's engine is idle; `Wakes.ready` wakes it. One that failed waits for its workers too, and their
notifications wait for `resume`. What ends it earlier has a name (`Cause`): the time
limit, a signal, the loss of the lease. Then what runs is unwound, the store keeps everything as it stands, and
`resume` goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from coordinator import tracing
from coordinator.composition import Given, compose
from coordinator.observed import Observed, Observer
from coordinator.options import RunOptions
from coordinator.other_processes import lease
from coordinator.paths import Paths
from coordinator.program import Program
from coordinator.runs.processes import Processes, servers_of
from coordinator.session.choosing import choose_session, earlier_session, is_moved, keep_fences
from coordinator.session.ground import Ground, stand_on
from coordinator.session.handle import SessionHandle
from coordinator.session.parts import Parts
from coordinator.session.session import RunOutcome, Session
from coordinator.store import Store
from coordinator.wakes import Wakes
from tasks import leases, sessions
from tasks.db import Database
from tasks.ids import new_session_id
from tasks.records import SessionRecord, SessionStatus
from tasks.writer import Writer
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.api.redacting import redacting
from worker_agent.config import Clock, Settings, SystemClock, connection_problem, mend_credentials, provider
from worker_agent.errors import ConfigError
from worker_agent.events import Notice, NoticeKind, Result
from worker_agent.process import set_subreaper
from worker_agent.structs import replace
from worker_agent.tools.base import Approver

if TYPE_CHECKING:
    from coordinator.cluster.engine import Engine
    from coordinator.session.remembering import Remembered

__all__ = ["Credentials", "RunOptions", "RunOutcome", "SessionHandle", "open_database", "run_session"]


class Credentials(ConfigError):
    """There is nothing to sign in with (exit code 4)."""


def open_database(options: RunOptions) -> Database:
    """The task store that `options` name. Raises `DatabaseError`."""
    target: str | Path = options.db or Paths.of(options.config).database
    if not (isinstance(target, str) and "://" in target):
        Path(target).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Database.open(target)


async def run_session(
    options: RunOptions,
    observer: Observer,
    *,
    on_ready: Callable[[SessionHandle], None] | None = None,
    client: ModelClient | None = None,
    approver: Approver | None = None,
    clock: Clock | None = None,
    program: Program = Program(),
) -> RunOutcome:
    """Run one session to its end. `observer` is called synchronously for everything that happens; `on_ready` gets the
    handle by which signals and a person reach the run. Raises `ConfigError`, `StoreError`."""
    async with _opened(options, observer, client, approver, clock, program) as session:
        if on_ready:
            on_ready(SessionHandle(session))
        return await session.run()


async def compact_session(
    options: RunOptions,
    instructions: str,
    observer: Observer,
    *,
    client: ModelClient | None = None,
    clock: Clock | None = None,
) -> Result:
    """Summarise the stored conversation of the session that `options.resume` names; nothing else of it runs. Raises
    `NotFound`, `Owned` while a process drives it, `ConfigError`."""
    async with _opened(options, observer, client, None, clock) as session:
        return await session.compact(instructions)


async def remember_session(options: RunOptions, *, client: ModelClient | None = None, clock: Clock | None = None) -> Remembered:
    """Write what is worth remembering of the session that `options.resume` names, which has ended, into its project's memory
    directory. It is not taken over. Raises `NotFound`, `ModelError`, `ConfigError` and what `remember` raises."""
    from coordinator.session.remembering import remember

    async with AsyncExitStack() as stack:
        brought = await _brought(options, lambda observed: None, stack, client, clock, owns=False)
        database = await asyncio.to_thread(open_database, options)
        stack.callback(database.close)
        assert options.resume is not None
        ref = options.resume
        record = database.read(lambda conn: sessions.resolve(conn, ref))
        ground = stand_on(options, brought.settings, Path(record.cwd), record.id, brought.client)
        return await remember(brought.given(options, ground, database, record.id, record.fence))


class _Brought(Struct, frozen=True, kw_only=True):
    """What this process brings to a session, whoever owns that. `stack` closes what is opened for it. `is_ours`: the process
    is there for sessions alone, not a program's that has children of its own."""

    settings: Settings  # of options and environment alone
    clock: Clock
    observer: Observer
    client: ModelClient
    limiter: Limiter
    stack: AsyncExitStack
    problem: str | None  # why something that was asked for is not there
    is_ours: bool = True

    def given(self, options: RunOptions, ground: Ground, database: Database, session_id: str, fence: int) -> Given:
        """With the store as this process may write it, and what wakes whom."""
        wakes, owner = Wakes(), leases.this_owner()
        writer = Writer(database, wakes.elsewhere)
        self.stack.callback(writer.close)
        if self.is_ours:  # a sub-reaper waits for every child that ended
            set_subreaper()
        return Given(
            options=options,
            ground=ground,
            store=Store(database, writer, session_id, owner, self.clock, fence, failed=wakes.failed),
            wakes=wakes,
            observer=self.observer,
            client=redacting(self.client, ground.redact),
            limiter=self.limiter,
            stack=self.stack,
        )


async def _brought(
    options: RunOptions,
    observer: Observer,
    stack: AsyncExitStack,
    client: ModelClient | None = None,
    clock: Clock | None = None,
    *,
    owns: bool = True,
    is_ours: bool = True,
) -> _Brought:
    """`client` and `clock` are made where none is given; `owns`: the session is this process's own; `is_ours` as in `_Brought`.
    Raises `Credentials`, `ConfigError`."""
    settings, clock = options.effective(), clock or SystemClock()
    limiter = Limiter(clock, random.Random())
    observer, problem = await _traced(observer, clock, stack, owns=owns)
    if client is None:
        client = make_client(options, settings, clock, limiter)
        stack.push_async_callback(client.close)
    return _Brought(
        settings=settings, clock=clock, observer=observer, client=client, limiter=limiter, stack=stack, problem=problem,
        is_ours=is_ours,
    )  # fmt: skip


@asynccontextmanager
async def _opened(
    options: RunOptions,
    observer: Observer,
    client: ModelClient | None,
    approver: Approver | None,
    clock: Clock | None,
    program: Program = Program(),
) -> AsyncIterator[Session]:
    """The session, driven by this process; everything that was opened for it is closed after it."""
    async with AsyncExitStack() as stack:
        brought = await _brought(options, observer, stack, client, clock, is_ours=not program.is_around)
        database = await asyncio.to_thread(open_database, options)
        stack.callback(database.close)
        session = await _open(options, brought, database, approver, program)
        if brought.problem is not None:
            brought.observer(Observed(session.parts.store.session_id, None, Notice(NoticeKind.CONFIG, brought.problem)))
        yield session


async def _traced(observer: Observer, clock: Clock, stack: AsyncExitStack, *, owns: bool) -> tuple[Observer, str | None]:
    """`observer` with OpenTelemetry beside it, where that is asked for; and why it is not there."""
    if not tracing.is_asked_for():
        return observer, None
    try:
        traces = await asyncio.to_thread(tracing.traces, clock)
    except ImportError:
        return observer, tracing.MISSING
    stack.push_async_callback(asyncio.to_thread, partial(traces.close, owns=owns))
    return traces.observing(observer), None


async def enter(
    options: RunOptions, database: Database, record: SessionRecord, observer: Observer, stack: AsyncExitStack, holder: str
) -> Parts:
    """The parts of a session of which another process is the owner, so that workers of it can run here: nothing of it is
    owned. `holder` is as whom it has a share of what processes share. Raises `ConfigError`."""
    brought = await _brought(options, observer, stack, owns=False)
    ground = stand_on(options, brought.settings, options.cwd, record.id, brought.client)
    given = brought.given(options, ground, database, record.id, record.fence)
    return await compose(replace(given, is_guest=True, holder=holder))


def make_client(options: RunOptions, settings: Settings, clock: Clock, limiter: Limiter) -> ModelClient:
    """The model: the built-in surveyor, or the Messages API. Raises `Credentials`, `ConfigError`."""
    if options.offline:
        from coordinator.offline.client import OfflineClient

        return OfflineClient(clock)
    from worker_agent.api.anthropic_client import AnthropicClient

    mend_credentials()
    if (cloud := provider()) is None:
        problem = connection_problem()
    else:
        from worker_agent.api import providers

        problem = providers.problem(cloud)
    if problem is not None:
        raise ConfigError(problem)
    remembered = Paths.of(settings).endpoints
    client = AnthropicClient(settings=settings, clock=clock, on_headers=limiter.headers, remembered=remembered)
    if (problem := client.credentials_problem()) is not None:
        raise Credentials(problem)
    return client


async def _open(
    options: RunOptions, brought: _Brought, database: Database, approver: Approver | None, program: Program
) -> Session:
    """Everything that can be refused is read and checked before a session is made, or taken over: what is refused has
    changed nothing."""
    earlier = await _here(database.read(lambda conn: earlier_session(conn, options)), options)
    goes_on = earlier is not None and not options.fork_session
    session_id = earlier.id if earlier and goes_on else options.session_id or new_session_id()
    cwd = Path(earlier.cwd) if earlier else options.cwd.absolute()
    brought.stack.enter_context(lease.only_here(session_id))
    ground = stand_on(options, brought.settings, cwd, session_id, brought.client)
    carrier = await _carrier(options, database, brought.stack)
    holder = None
    if carrier is not None:
        from tasks import fleet

        holder = fleet.OWNER
        options = await _with_workspace(options, earlier, ground, session_id, brought.observer)
    options = replace(options, prompt=ground.redact(options.prompt) if options.prompt else options.prompt)
    record = database.write(lambda conn: choose_session(conn, options, ground.settings.model, earlier, session_id))
    fence = lease.acquire(database, record.id, leases.this_owner(), brought.clock)
    given = brought.given(options, ground, database, record.id, fence)
    given = replace(given, approver=approver, program=program, carrier=carrier, holder=holder)
    store = given.store
    try:
        if goes_on:
            await Processes(store, servers_of(store.session_id)).end_recorded()
        session = Session(options, record, await compose(given))
        if earlier is not None:
            await store.write(lambda conn: keep_fences(conn, record, options))
        if record.status is SessionStatus.ENDED:
            await store.write(lambda conn: sessions.reopen(conn, record.id, store.fence))
    except ConfigError:
        await _give_back(store, None if goes_on else "not started")
        raise
    except BaseException:
        await _give_back(store, None)
        raise
    return session


async def _here(earlier: SessionRecord | None, options: RunOptions) -> SessionRecord | None:
    """The same where this machine has its directory. Else, if its work goes by git: in the clone of the project in which it was
    called. Raises `ConfigError`."""
    if earlier is None or not is_moved(earlier):
        return earlier
    from coordinator.cluster import workspace

    await workspace.check_clone(earlier, options.cwd)
    return replace(earlier, cwd=str(options.cwd))


async def _carrier(options: RunOptions, database: Database, stack: AsyncExitStack) -> Engine | None:
    """What carries workers to nodes, where the run asks for them. Raises `ConfigError`."""
    if options.backend != "cluster":
        return None
    from coordinator.cluster.engine import Engine

    engine = Engine(database)
    await engine.open()
    stack.push_async_callback(engine.close)
    return engine


async def _with_workspace(
    options: RunOptions, earlier: SessionRecord | None, ground: Ground, session_id: str, observer: Observer
) -> RunOptions:
    """How nodes have the project: as it was decided for the session, or decided now. Raises `ConfigError`."""
    from coordinator.cluster import carried, workspace

    known = earlier.options if earlier is not None else {}
    if (kind := known.get("workspace")) is not None:
        if options.workspace not in (None, kind):
            raise ConfigError(f"the workspace of this session is {kind}, and stays it")
        return replace(options, workspace=kind, remote=known.get("remote"), base=known.get("base"))
    options, news = await workspace.prepared(options, ground.cwd, ground.paths, session_id)
    for line in news:
        observer(Observed(session_id, None, Notice(NoticeKind.CONFIG, ground.redact(line))))
    return replace(options, carried=carried.of(ground.policy, ground.files.rules, options.trust, ground.cwd))


async def _give_back(store: Store, reason: str | None) -> None:
    """Leave a session that could not be begun: one that was made for it is over (`reason`), any other stands as before."""
    if reason is None:
        await lease.release(store)
    else:
        await store.write(lambda conn: sessions.end(conn, store.session_id, store.fence, reason=reason))
