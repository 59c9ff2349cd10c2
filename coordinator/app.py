"""The composition root: the only place that constructs everything, and the life of one session from open to close.

What can be refused is checked before a session is made or taken over (`_stand_on`); a refusal changes nothing.

A headless run ends when the coordinator has ended its turn, no task lives and no notification waits. While workers run
the coordinator's engine is idle; `Coordinator.changed` wakes it. One that failed waits for its workers too, and their
notifications wait for `resume`. What ends it earlier has a name (`Cause`): the time
limit, a signal, the loss of the lease. Then what runs is unwound, the store keeps everything as it stands, and
`resume` goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.agents import definitions as agent_files
from coordinator.agents import mcp_servers, plugins
from coordinator.agents.asking import Questions
from coordinator.agents.budget import Amount, Limit, TreeBudget
from coordinator.agents.engines import EngineFactory
from coordinator.agents.inbox import TaskInbox
from coordinator.observed import CallWaits, Observed, Observer
from coordinator.options import RunOptions
from coordinator.other_processes import lease
from coordinator.other_processes.foreign import ForeignChanges, Reactions
from coordinator.paths import Paths
from coordinator.runs.backends.base import Backend
from coordinator.runs.backends.by_kind import ByKind
from coordinator.runs.backends.local import LocalBackend
from coordinator.runs.background import Orders, ShellRun, Shells
from coordinator.runs.processes import Processes, servers_of
from coordinator.runs.slots import Slots
from coordinator.runs.workers import WorkerRun
from coordinator.runs.worktrees import Worktrees
from coordinator.session.coordinator import Coordinator
from coordinator.session.session import RunOutcome, Session, SessionHandle
from coordinator.session.time_limit import TimeLimit
from coordinator.store import Store
from coordinator.tools.agent import AgentTool
from coordinator.tools.send_message import SendMessageTool
from coordinator.tools.task_stop import TaskStopTool
from tasks import leases, ledger, sessions
from tasks import registry as registry_of_tasks
from tasks.db import Database
from tasks.errors import Exists
from tasks.ids import TaskType, new_session_id
from tasks.records import SessionRecord, SessionStatus
from tasks.writer import Writer
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.api.models import resolve
from worker_agent.api.redacting import redacting
from worker_agent.config import (
    Clock,
    Settings,
    SystemClock,
    connection_problem,
    mend_credentials,
    secret_values,
    tool_environment,
    variable,
)
from worker_agent.errors import ConfigError
from worker_agent.events import Notice, NoticeKind, Result
from worker_agent.hooks import HookRunner, HookSession
from worker_agent.mcp.config import Configured
from worker_agent.memory import MemoryIndex
from worker_agent.messages import Usage
from worker_agent.process import set_subreaper
from worker_agent.redaction import Redactor
from worker_agent.skills import SkillIndex
from worker_agent.tools import settings_files
from worker_agent.tools.base import Approver, Tool
from worker_agent.tools.builtin.skill import Skill as SkillTool
from worker_agent.tools.confinement import Choice as SandboxChoice
from worker_agent.tools.confinement import Confinements
from worker_agent.tools.confinement import choose as choose_sandbox
from worker_agent.tools.permissions import Policy
from worker_agent.tools.registry import ToolRegistry
from worker_agent.tools.rules import Behavior, RuleSet, Source
from worker_agent.tools.rules import resolve as resolved
from worker_agent.tools.tool_hooks import rule_condition
from worker_agent.tools.trust import repository_root

if TYPE_CHECKING:
    from coordinator.agents.mcp_tools import McpTools
    from coordinator.cluster.engine import Engine

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
) -> RunOutcome:
    """Run one session to its end. `observer` is called synchronously for everything that happens; `on_ready` gets the
    handle by which signals and a person reach the run. Raises `ConfigError`, `StoreError`."""
    async with _opened(options, observer, client, approver, clock) as session:
        if on_ready:
            on_ready(session.handle)
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


@asynccontextmanager
async def _opened(
    options: RunOptions,
    observer: Observer,
    client: ModelClient | None,
    approver: Approver | None,
    clock: Clock | None,
) -> AsyncIterator[Session]:
    """The session, driven by this process; everything that was opened for it is closed after it."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        settings = options.effective()
        limiter = Limiter(clock, random.Random())
        if client is None:
            client = make_client(options, settings, clock, limiter)
            stack.push_async_callback(client.close)
        database = await asyncio.to_thread(open_database, options)
        stack.callback(database.close)
        yield await _open(options, settings, database, observer, client, limiter, approver, clock, stack)


async def enter(
    options: RunOptions,
    database: Database,
    record: SessionRecord,
    observer: Observer,
    reacting: Callable[[Reactions], Reactions],
    stack: AsyncExitStack,
) -> Session:
    """A session of which another process is the owner, so that workers of it can run here: nothing of it is owned, and its
    `run` is not for us. Raises `ConfigError`."""
    clock, settings = SystemClock(), options.effective()
    limiter = Limiter(clock, random.Random())
    client = make_client(options, settings, clock, limiter)
    stack.push_async_callback(client.close)
    ground = _stand_on(options, settings, options.cwd, record.id, client)
    watchers: list[ForeignChanges] = []

    def changed() -> None:
        for watcher in watchers:
            watcher.notify()

    store = Store(database, Writer(database, changed), record.id, leases.this_owner(), clock, record.fence)
    stack.callback(store.writer.close)
    set_subreaper()
    session = await _compose(
        options, settings, ground, store, record, observer, client, limiter, None, stack, reacting=reacting, is_guest=True
    )
    watchers.append(session.foreign)
    session.foreign.notify()  # what happened before anybody listened
    return session


def make_client(options: RunOptions, settings: Settings, clock: Clock, limiter: Limiter) -> ModelClient:
    """The model: the built-in surveyor, or the Messages API. Raises `Credentials`, `ConfigError`."""
    if options.offline:
        from coordinator.offline.client import OfflineClient

        return OfflineClient(clock)
    from worker_agent.api.anthropic_client import AnthropicClient

    mend_credentials()
    if (problem := connection_problem()) is not None:
        raise ConfigError(problem)
    client = AnthropicClient(settings=settings, clock=clock, on_headers=limiter.headers)
    if (problem := client.credentials_problem()) is not None:
        raise Credentials(problem)
    return client


async def _open(
    options: RunOptions,
    settings: Settings,
    database: Database,
    observer: Observer,
    client: ModelClient,
    limiter: Limiter,
    approver: Approver | None,
    clock: Clock,
    stack: AsyncExitStack,
) -> Session:
    """Everything that can be refused is read and checked before a session is made, or taken over: what is refused has
    changed nothing."""
    earlier = database.read(lambda conn: earlier_session(conn, options))
    goes_on = earlier is not None and not options.fork_session
    session_id = earlier.id if earlier and goes_on else options.session_id or new_session_id()
    ground = _stand_on(options, settings, Path(earlier.cwd) if earlier else options.cwd.absolute(), session_id, client)
    engine = await _engine(options, database, stack)
    if engine is not None:
        options = await _with_workspace(options, earlier, ground, session_id, observer)
    options = replace(options, prompt=ground.redact(options.prompt) if options.prompt else options.prompt)
    record = database.write(lambda conn: choose_session(conn, options, settings.model, earlier, session_id))
    watchers: list[ForeignChanges] = []

    def changed() -> None:
        for watcher in watchers:
            watcher.notify()

    store = Store(database, Writer(database, changed), record.id, leases.this_owner(), clock)
    stack.callback(store.writer.close)
    lease.acquire(store)
    set_subreaper()
    try:
        if goes_on:
            await Processes(store, servers_of(store.session_id)).end_recorded()
        session = await _compose(
            options, settings, ground, store, record, observer, client, limiter, approver, stack, engine_of_cluster=engine
        )
        if earlier is not None:
            await store.write(lambda conn: _keep_fences(conn, record, options))
        if record.status is SessionStatus.ENDED:
            await store.write(lambda conn: sessions.reopen(conn, record.id, store.fence))
    except ConfigError:
        await _give_back(store, None if goes_on else "not started")
        raise
    except BaseException:
        await _give_back(store, None)
        raise
    watchers.append(session.foreign)
    return session


async def _engine(options: RunOptions, database: Database, stack: AsyncExitStack) -> Engine | None:
    """What carries workers to nodes, where the run asks for them. Raises `ConfigError`."""
    if options.backend != "cluster":
        return None
    if options.max_budget_usd is not None or options.token_budget is not None:
        raise ConfigError("--backend cluster has no budget over its nodes yet: leave out --max-budget-usd and --token-budget")
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


def _keep_fences(conn: Any, record: SessionRecord, options: RunOptions) -> None:
    where = {name: value for name in ("workspace", "remote", "base") if (value := getattr(options, name)) is not None}
    if (fenced := options.fenced(record.options) | where) != record.options:
        sessions.update_details(conn, record.id, options=fenced)


async def _give_back(store: Store, reason: str | None) -> None:
    """Leave a session that could not be begun: one that was made for it is over (`reason`), any other stands as before."""
    if reason is None:
        await lease.release(store)
    else:
        await store.write(lambda conn: sessions.end(conn, store.session_id, store.fence, reason=reason))


def earlier_session(conn: Any, options: RunOptions) -> SessionRecord | None:
    """The session to go on with, or to copy; None for a new one. Raises `NotFound`, `Ambiguous`, `ConfigError`."""
    if options.resume is not None:
        return sessions.resolve(conn, options.resume)
    if not options.continue_last:
        return None
    here = str(options.cwd.absolute())
    earlier = next((session for session in sessions.list_sessions(conn) if session.cwd == here), None)
    if earlier is None:
        raise ConfigError(f"there is no earlier session in {here}")
    return earlier


def choose_session(conn: Any, options: RunOptions, model: str, earlier: SessionRecord | None, session_id: str) -> SessionRecord:
    """The session to run: `earlier`, a copy of it, or a new one; `session_id` is what a session that is made is called.
    Raises `ConfigError`."""
    try:
        if earlier is not None:
            return sessions.fork(conn, earlier.id, id=session_id) if options.fork_session else earlier
        if not options.prompt and not options.interactive:
            raise ConfigError("there is no prompt")
        return sessions.create(
            conn,
            id=session_id,
            goal=options.prompt or "",
            cwd=str(options.cwd.absolute()),
            model=model,
            options=options.stored(),
            title=_title(options.prompt),
        )
    except Exists:
        raise ConfigError(f"there is a session {session_id} already; --resume goes on with it") from None


def _title(prompt: str | None) -> str | None:
    first = (prompt or "").strip().splitlines()
    return first[0][:80] if first else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a session stands on, as it was found: files, rules, the means to confine."""

    cwd: Path
    paths: Paths
    agents: agent_files.Agents
    files: settings_files.LoadedSettings
    policy: Policy
    sandbox: SandboxChoice
    servers: Configured
    plugins: plugins.Plugins
    redact: Redactor


def _stand_on(options: RunOptions, settings: Settings, cwd: Path, session_id: str, client: ModelClient) -> Ground:
    """Read what a session is made of; nothing is written. Raises `ConfigError` for what makes it impossible."""
    _check(options, settings, cwd, client)
    paths, home = Paths.of(settings), Path.home()
    files = settings_files.load(
        cwd, home=home, trust=options.trust, settings=options.settings, earlier=options.earlier_settings
    )
    brought = plugins.load(
        repository_root(cwd), home=home, data=paths.plugin_data, trust=options.trust, given=options.plugin_dirs
    )
    files = replace(files, hooks=files.hooks + brought.hooks)
    servers = mcp_servers.configured(
        cwd, home=home, paths=paths, trust=options.trust, files=files, given=options.mcp_config,
        only_given=options.strict_mcp_config, plugins=brought.servers,
    )  # fmt: skip
    scratch = paths.scratch(session_id)
    policy = files.policy(
        cwd=cwd,
        home=home,
        mode="plan" if options.plan_only else options.permission_mode,
        allowed=options.allowed_tools,
        disallowed=options.disallowed_tools,
        roots=options.add_dirs,
    )
    return Ground(
        cwd=cwd,
        paths=paths,
        agents=plugins.with_plugins(
            agent_files.load(cwd, trust=options.trust, add_dirs=options.add_dirs, user_dir=home / ".claude"), brought.found
        ),
        plugins=brought,
        files=files,
        policy=replace(policy, rules=policy.rules + _shared(scratch)),
        sandbox=choose_sandbox(options.sandbox),
        servers=servers,
        redact=Redactor((*secret_values(), *files.secrets, *mcp_servers.secrets_of(servers.servers))),
    )


def _shared(scratch: Path) -> RuleSet:
    """All agents may write into the scratchpad unasked, but in plan mode."""
    return RuleSet.parse(Behavior.ALLOW, [f"Edit(/{resolved(scratch)}/**)"], Source("scratchpad"))


async def _compose(
    options: RunOptions,
    settings: Settings,
    ground: Ground,
    store: Store,
    record: SessionRecord,
    observer: Observer,
    client: ModelClient,
    limiter: Limiter,
    approver: Approver | None,
    stack: AsyncExitStack,
    *,
    engine_of_cluster: Engine | None = None,
    reacting: Callable[[Reactions], Reactions] = lambda reactions: reactions,
    is_guest: bool = False,
) -> Session:
    """`engine_of_cluster` carries workers to nodes; on one of these it `is_guest`, and `reacting` changes what is done about
    other processes' doings."""
    cwd, paths, agents, files, policy, sandbox = (
        ground.cwd,
        ground.paths,
        ground.agents,
        ground.files,
        ground.policy,
        ground.sandbox,
    )
    home = Path.home()
    paths.prepare(store.session_id)
    redact = ground.redact
    client = redacting(client, redact)

    def notice(kind: NoticeKind, text: str) -> None:
        observer(Observed(store.session_id, None, Notice(kind, redact(text))))

    scratch, spill = paths.scratch(store.session_id), paths.spill(store.session_id)
    hooks = HookRunner(
        files.hooks,
        HookSession(
            session_id=store.session_id,
            cwd=cwd,
            project_dir=repository_root(cwd),
            permission_mode=str(policy.mode),
            transcript_path=paths.transcripts(store.session_id) / f"{store.session_id}.md",
            scratchpad=scratch,
            environment={**tool_environment(), **files.env},
            spill_dir=spill,
        ),
        condition=rule_condition(cwd, home),
        on_notice=lambda text: notice(NoticeKind.HOOK, text),
        variable=variable,
        redact=redact,
    )
    clock = TimeLimit(store.clock, options.timeout, lambda: questions.waiting > 0 and not slots.used)
    slots = Slots(options.max_workers, clock.look)

    def waits(call: CallWaits) -> None:
        clock.look()
        observer(Observed(store.session_id, call.approval.task_id, call))

    questions = Questions(store, slots=slots, person=approver, limit=options.approval_timeout, on_waiting=waits)
    can_ask = approver is not None or options.wait_approvals or options.interactive
    limits = Limit(usd=options.max_budget_usd, tokens=options.token_budget)
    skills = SkillIndex(cwd, home=home, trusted=options.trusted, plugins=ground.plugins.roots, strict=ground.plugins.strict)
    worker_tools = ToolRegistry.builtin((SkillTool(skills),) if await asyncio.to_thread(skills.discover) else ())
    memory_directory = repository_root(cwd) / ".coordinator" / "memory"
    notes = memory_directory.resolve()
    linked_out = not (options.trusted or notes.is_relative_to(repository_root(cwd)))
    memory = MemoryIndex(notes, paths.memory_index) if notes.is_dir() and not linked_out else None
    coordinator = Coordinator(
        store=store,
        agents=agents,
        paths=paths,
        cwd=cwd,
        observer=observer,
        model_of=lambda asked: resolve(asked or settings.worker_model or settings.model),
        task_created=hooks.task_created,
        redact=redact,
    )
    orders: Orders = {}
    commands = LocalBackend(
        None,
        lambda task_id: ShellRun(task_id, store=store, observer=observer, orders=orders, nudge=workers.nudge),
        coordinator.ended,
    )
    shells = Shells(store, paths, observer, commands, orders)
    engines = EngineFactory(
        store=store,
        options=options,
        settings=settings,
        paths=paths,
        cwd=cwd,
        agents=agents,
        client=client,
        limiter=limiter,
        budget=TreeBudget(client.cost, limits, spent=_spent(store)),
        tools=worker_tools,
        policy=policy,
        hooks=hooks,
        environment=dict(files.env),
        confinements=_confinements(sandbox, settings, paths, store.session_id, (*options.add_dirs, *files.directories)),
        shells=shells,
        redact=redact,
        questions=questions if can_ask else None,
        skills=skills,
        memory=memory,
        mcp=_begin_servers(options, settings, ground, store, lambda text: notice(NoticeKind.MCP, text), stack),
        deadline=store.clock.monotonic() + options.timeout if options.timeout else None,
    )
    worktrees = Worktrees(paths.worktrees(store.session_id))
    copies, begin = None, None
    if options.workspace == "git" and (is_guest or engine_of_cluster is not None):
        from coordinator.cluster.workspace import Copies, Starts, remote_of

        remote = remote_of(options, store.session_id, paths)
        copies = Copies(store, paths, remote, engines.may_change) if is_guest else None
        begin = Starts(store, cwd, remote).begin
    workers = LocalBackend(
        slots,
        lambda task_id: WorkerRun(
            task_id,
            store=store,
            engines=engines,
            worktrees=worktrees,
            observer=observer,
            end_shells=shells.end_of,
            on_recorded=coordinator.ended,
            copies=copies,
        ),
        coordinator.ended,
    )
    kinds: dict[TaskType, Backend] = {TaskType.LOCAL_AGENT: workers, TaskType.LOCAL_BASH: commands}
    if engine_of_cluster is not None:
        from coordinator.cluster.backend import ClusterBackend, OwnCommands

        far = ClusterBackend(store, engine_of_cluster, coordinator.ended, begin, options.max_workers)
        kinds = {TaskType.LOCAL_AGENT: far, TaskType.LOCAL_BASH: OwnCommands(commands, store)}
    backend = ByKind(
        kinds,
        lambda task_id: store.read(lambda conn: registry_of_tasks.get(conn, task_id)).type,
    )
    coordinator.backend = backend
    hooks.background_tasks = lambda parent: [
        {"id": task.id, "type": task.type, "status": task.status, "description": task.description}
        for task in coordinator.live()
        if task.parent_id == (parent or store.session_id)
    ]

    inbox = TaskInbox(store, store.session_id, redact, backend.is_unwinding)
    coordinator.news = inbox.nudge
    agent_tool = AgentTool(coordinator, agents, foreground=not options.use_coordinator, on_nodes=engine_of_cluster is not None)
    own = (
        agent_tool,
        SendMessageTool(coordinator),
        TaskStopTool(coordinator),
    )
    registry = await _tools_of_top(own, engines, options)
    processes = Processes(store, store.session_id)
    history = engines.history(store.session_id)
    engine, budget = await engines.coordinator(registry, inbox, history, processes)
    instructions = await asyncio.to_thread(engines.instructions(cwd).left_out)
    agent_tool.is_full = lambda: engine.context.is_nearly_full
    return Session(
        options=options,
        store=store,
        record=record,
        paths=paths,
        engines=engines,
        coordinator=coordinator,
        backend=backend,
        engine=engine,
        history=history,
        inbox=inbox,
        budget=budget,
        processes=processes,
        observer=observer,
        questions=questions,
        time_limit=clock,
        make_foreign=lambda reactions: ForeignChanges(store, reacting(reactions)),
        news=tuple(
            filter(
                None,
                (
                    *(f"{problem.source}: {problem.text}" for problem in agents.problems),
                    *files.problems,
                    *files.held_back,
                    *(map(str, ground.servers.problems)),
                    *ground.servers.held_back,
                    *ground.plugins.problems,
                    *instructions,
                    f"{memory_directory} is left out: it is a link out of the project" if linked_out else None,
                    sandbox.notice,
                ),
            )
        ),
    )


def _begin_servers(
    options: RunOptions, settings: Settings, ground: Ground, store: Store, say: Callable[[str], None], stack: AsyncExitStack
) -> McpTools | None:
    """The session's MCP servers, which start now and end with the run; None where there are none. The offline model has no
    use for them, and reaches nothing."""
    brought = any(definition.mcp_servers for definition in ground.agents.by_name.values())
    if options.offline or not (ground.servers.usable or brought):
        return None
    from coordinator.agents.mcp_tools import McpTools
    from worker_agent.mcp.connection import Surroundings
    from worker_agent.mcp.servers import Servers

    processes = Processes(store, servers_of(store.session_id))
    around = Surroundings(
        cwd=ground.cwd,
        environment={**tool_environment(), **ground.files.env},
        marker=servers_of(store.session_id),
        logs=ground.paths.mcp_logs(store.session_id),
        settings=settings.mcp,
        clock=store.clock,
        variable=variable,
        redact=ground.redact,
        on_process=processes.began,
    )
    servers = Servers(around, say)
    stack.push_async_callback(processes.end_own)
    stack.push_async_callback(servers.close)
    servers.begin(ground.servers.usable)
    return McpTools(servers, settings.mcp, ground.policy, tuple(server.name for server in ground.servers.usable))


async def _tools_of_top(own: Sequence[Tool], engines: EngineFactory, options: RunOptions) -> ToolRegistry:
    """The tools of the session's own agent: the coordinator's three; without one, those of workers, too."""
    if options.use_coordinator:
        return ToolRegistry(own).narrowed(None, engines.policy.removes)
    if engines.mcp is None:
        return ToolRegistry((*engines.tools, *own)).narrowed(None, engines.policy.removes)
    await engines.mcp.ready()
    every = ToolRegistry((*engines.tools, *engines.mcp.tools(), *own))
    return engines.mcp.within_bounds(every.narrowed(None, engines.policy.removes))


def _confinements(
    choice: SandboxChoice, settings: Settings, paths: Paths, session_id: str, added: Sequence[Path]
) -> Confinements | None:
    """How this session's shell commands are held; `added` are directories beside the working directory."""
    if choice.means is None:
        return None
    spill = paths.spill(session_id)
    return Confinements(
        means=choice.means,
        home=Path.home(),
        aside=spill / "set-aside",
        writable=(*added, paths.scratch(session_id)),
        readable=(spill, paths.transcripts(session_id)),
        private=(paths.home,),
        network=settings.tools.sandbox_network,
        required=choice.required,
    )


def _check(options: RunOptions, settings: Settings, cwd: Path, client: ModelClient) -> None:
    """What makes a run pointless, before anything is begun. Raises `ConfigError`."""
    if not cwd.is_dir():
        raise ConfigError(f"the working directory {cwd} is not there")
    for model in (settings.model, settings.worker_model, settings.fallback_model):
        if options.max_budget_usd is not None and model and client.cost(model, Usage(output=1)) is None:
            raise ConfigError(f"the price of {model} is unknown, so --max-budget-usd cannot hold; use --token-budget")


def _spent(store: Store) -> Amount:
    """What the session has used before: a resumed one has no new budget."""
    total = store.read(lambda conn: ledger.total(conn, session_id=store.session_id))
    return Amount(total.known_cost_usd, total.output_tokens)
