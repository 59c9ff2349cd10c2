"""Puts a session together: every part complete when it is made, in the order in which each needs the ones before it.

What wakes whom is made first (`wakes.py`) and given to all; who listens to what stands in `compose`. Nothing is refused
here any more: what can be was checked in `session/ground.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coordinator.agents.asking import Questions
from coordinator.agents.budget import Amount, Limit, TreeBudget
from coordinator.agents.definitions import SMALL_MODEL
from coordinator.agents.engines import EngineFactory
from coordinator.agents.inbox import TaskInbox
from coordinator.agents.rights import Rights
from coordinator.agents.slash import skill_index
from coordinator.agents.surroundings import Surroundings
from coordinator.agents.taking_up import Recollection
from coordinator.agents.toolboxes import Toolboxes
from coordinator.observed import CallWaits, Observed, Observer
from coordinator.options import RunOptions
from coordinator.program import Program
from coordinator.runs.backends.base import Backend
from coordinator.runs.backends.by_kind import ByKind
from coordinator.runs.backends.local import LocalBackend
from coordinator.runs.background import Orders, ShellRun, Shells
from coordinator.runs.processes import Processes, servers_of
from coordinator.runs.slots import Slots
from coordinator.runs.workers import WorkerRun
from coordinator.runs.worktrees import Worktrees
from coordinator.session.coordinator import Coordinator
from coordinator.session.ground import Ground
from coordinator.session.parts import Parts
from coordinator.session.time_limit import TimeLimit
from coordinator.store import Store
from coordinator.tools.agent import AgentTool
from coordinator.tools.agent_types import AgentTypesTool, kinds
from coordinator.tools.send_message import SendMessageTool
from coordinator.tools.task_stop import TaskStopTool
from coordinator.wakes import Wakes
from tasks import ledger, registry
from tasks.ids import TaskType
from worker_agent import disk, memory_notes
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.api.models import named, resolve
from worker_agent.config import Settings, account, tool_environment, variable
from worker_agent.events import Notice, NoticeKind, PermissionDenial
from worker_agent.hooks import HookRunner, HookSession
from worker_agent.memory import MemoryIndex
from worker_agent.skills import SkillIndex
from worker_agent.tools.base import Approver
from worker_agent.tools.builtin.skill import Skill
from worker_agent.tools.confinement import Confinements
from worker_agent.tools.registry import ToolRegistry
from worker_agent.tools.tool_hooks import rule_condition
from worker_agent.tools.trust import repository_root

if TYPE_CHECKING:
    from coordinator.agents.mcp_tools import McpTools
    from coordinator.cluster.engine import Engine
    from coordinator.cluster.shared_files import SharedFiles
    from coordinator.cluster.workspace import Copies, Starts


class Given(Struct, frozen=True, kw_only=True):
    """What a session is put together of. `client` takes known secrets out of answers; `approver` is the person at this
    terminal, if there is one; `stack` closes what is begun here; `carrier` takes workers to nodes."""

    options: RunOptions
    ground: Ground
    store: Store
    wakes: Wakes
    observer: Observer
    client: ModelClient
    limiter: Limiter
    stack: AsyncExitStack
    approver: Approver | None = None
    program: Program = Program()
    carrier: Engine | None = None
    is_guest: bool = False  # of a session that another process drives
    holder: str | None = None  # as whom it has a share of what processes share; None: no other works on the session

    @property
    def settings(self) -> Settings:
        return self.ground.settings

    def notice(self, kind: NoticeKind, text: str) -> None:
        self.observer(Observed(self.store.session_id, None, Notice(kind, self.ground.redact(text))))


async def compose(given: Given) -> Parts:
    options, store, wakes, ground = given.options, given.store, given.wakes, given.ground
    ground.paths.prepare(store.session_id)
    found = await _found(given)
    rights = Rights(ground.policy)
    hooks = _hooks(given)
    waiting = _waiting(given)
    mcp = _begin_servers(given)
    toolboxes = Toolboxes(found.tools, rights, mcp)

    orders: Orders = {}
    commands = LocalBackend(None, partial(_command, given, orders), wakes.ended)
    shells = Shells(store, ground.paths, given.observer, commands, orders)
    denials: list[PermissionDenial] = []
    engines = _engines(given, found, rights, hooks, waiting, toolboxes, shells, denials)
    places = _places(given, toolboxes)
    workers = LocalBackend(waiting.slots, partial(_worker, given, engines, shells, places), wakes.ended)
    wakes.message.listen(workers.nudge)

    backend = _backend(given, workers, commands, places)
    coordinator = Coordinator(
        store=store,
        wakes=wakes,
        backend=backend,
        agents=ground.agents,
        paths=ground.paths,
        cwd=ground.cwd,
        observer=given.observer,
        model_of=partial(_model_of_worker, given),
        task_created=hooks.task_created,
        redact=ground.redact,
    )
    inbox = TaskInbox(store, store.session_id, ground.redact, backend.is_unwinding)
    wakes.news.listen(inbox.nudge)

    alone = not options.use_coordinator
    own = (
        AgentTool(coordinator, ground.agents, foreground=alone, on_nodes=given.carrier is not None),
        *(() if kinds(ground.agents)[1] else (AgentTypesTool(ground.agents),)),
        SendMessageTool(coordinator),
        TaskStopTool(coordinator),
    )
    processes = Processes(store, store.session_id)
    history = engines.history(store.session_id)
    engine, budget = await engines.coordinator(await toolboxes.of_top(own, alone=alone), inbox, history, processes)
    left_out = await asyncio.to_thread(engines.surroundings.instructions(ground.cwd).left_out)
    return Parts(
        store=store,
        wakes=wakes,
        observer=given.observer,
        redact=ground.redact,
        hooks=hooks,
        rights=rights,
        questions=waiting.questions,
        time_limit=waiting.time_limit,
        engines=engines,
        engine=engine,
        history=history,
        inbox=inbox,
        budget=budget,
        processes=processes,
        coordinator=coordinator,
        backend=backend,
        denials=denials,
        memory=found.memory,
        mcp=mcp,
        plugins=tuple((plugin.name, str(plugin.root)) for plugin in ground.plugins.found),
        problems=(*ground.problems, *left_out, *filter(None, [found.problem, ground.sandbox.notice])),
    )


def _model_of_worker(given: Given, asked: str | None) -> str:
    """The model of a worker whose spawn or definition names `asked`."""
    usual = given.settings.worker_model or given.settings.model
    if asked == SMALL_MODEL:
        return resolve(usual if given.options.offline else given.settings.small_model)
    return resolve(named(asked) or usual)


# ── what lies there ──────────────────────────────────────────────────────────────────────────────────────────────────


class _Found(Struct, frozen=True, kw_only=True):
    """What the project brings beside its settings; `problem` says what of it was left out. `tools` is the full set of workers' tools, without those of servers."""

    skills: SkillIndex
    tools: ToolRegistry
    memory: MemoryIndex | None
    problem: str | None


async def _found(given: Given) -> _Found:
    ground, id = given.ground, given.store.session_id
    home = Path.home() if given.options.reads("user") else None
    skills = skill_index(
        ground.cwd, home=home, trust=given.options.trust, found=ground.plugins, session_id=id, only=given.program.skills
    )
    more = (Skill(skills),) if await asyncio.to_thread(skills.discover) else ()
    tools = ToolRegistry.builtin((*more, *given.program.tools))
    memory, problem = _memory(given)
    return _Found(skills=skills, tools=tools, memory=memory, problem=problem)


def _memory(given: Given) -> tuple[MemoryIndex | None, str | None]:
    """The project's notes, where it has any; and why they are left out, if they are."""
    root = repository_root(given.ground.cwd)
    try:
        notes = memory_notes.directory(root, trusted=given.options.trusted)
    except disk.Outside:
        return None, f"{root / memory_notes.PLACE} is left out: it is a link out of the project"
    return MemoryIndex(notes, given.ground.paths.memory_index) if notes.is_dir() else None, None


# ── hooks, and waiting for a person ──────────────────────────────────────────────────────────────────────────────────


def _hooks(given: Given) -> HookRunner:
    ground, session_id = given.ground, given.store.session_id
    return HookRunner(
        ground.files.hooks + given.program.hooks,
        HookSession(
            session_id=session_id,
            cwd=ground.cwd,
            project_dir=repository_root(ground.cwd),
            permission_mode=str(ground.policy.mode),
            transcript_path=ground.paths.lines(session_id, session_id),
            scratchpad=ground.paths.scratch(session_id),
            environment={**tool_environment(), **ground.files.env},
            spill_dir=ground.paths.spill(session_id),
        ),
        condition=rule_condition(ground.cwd, Path.home()),
        on_notice=partial(given.notice, NoticeKind.HOOK),
        on_wake=given.wakes.remark,
        background_tasks=partial(_living_below, given.store),
        variable=variable,
        redact=ground.redact,
        callback=given.program.callback,
        on_run=lambda task_id, ran: given.observer(Observed(session_id, task_id, ran)),
    )


def _living_below(store: Store, parent: str | None) -> list[Mapping[str, Any]]:
    """The live tasks that a task began (None: the session's own agent), as hooks are told of them."""
    return [
        {"id": task.id, "type": task.type, "status": task.status, "description": task.description}
        for task in store.read(lambda conn: registry.live(conn, store.session_id))
        if task.parent_id == (parent or store.session_id)
    ]


class _Waiting(Struct, frozen=True, kw_only=True):
    slots: Slots
    questions: Questions
    time_limit: TimeLimit


def _waiting(given: Given) -> _Waiting:
    """Who waits for a person gives its slot up, and where nothing else goes on the time limit stands still."""
    options, store, standstill = given.options, given.store, given.wakes.standstill

    def waits(call: CallWaits) -> None:
        standstill()
        given.observer(Observed(store.session_id, call.approval.task_id, call))

    slots = Slots(options.max_workers, standstill)
    questions = Questions(store, slots=slots, person=given.approver, limit=options.approval_timeout, on_waiting=waits)
    limit = TimeLimit(store.clock, options.timeout, lambda: questions.waiting > 0 and not slots.used)
    standstill.listen(limit.look)
    return _Waiting(slots=slots, questions=questions, time_limit=limit)


# ── agents ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _engines(
    given: Given,
    found: _Found,
    rights: Rights,
    hooks: HookRunner,
    waiting: _Waiting,
    toolboxes: Toolboxes,
    shells: Shells,
    denials: list[PermissionDenial],
) -> EngineFactory:
    options, store, ground = given.options, given.store, given.ground
    can_ask = given.approver is not None or options.wait_approvals or options.interactive
    return EngineFactory(
        store=store,
        options=options,
        settings=given.settings,
        paths=ground.paths,
        cwd=ground.cwd,
        agents=ground.agents,
        client=given.client,
        limiter=given.limiter,
        budget=tree_budget(given),
        rights=rights,
        toolboxes=toolboxes,
        surroundings=Surroundings(
            clock=store.clock,
            scratchpad=ground.paths.scratch(store.session_id),
            trusted=options.trusted,
            redact=ground.redact,
            sources=options.sources_of_settings,
        ),
        recollection=Recollection(store, toolboxes.may_change, ground.redact),
        hooks=hooks,
        shells=shells,
        redact=ground.redact,
        denials=denials,
        environment=dict(ground.files.env),
        confinements=_confinements(given),
        questions=waiting.questions if can_ask else None,
        skills=found.skills,
        memory=found.memory,
        deadline=store.clock.monotonic() + options.timeout if options.timeout else None,
    )


def tree_budget(given: Given) -> TreeBudget:
    """The session's budget, less what it has spent; and what a server said of an account, where other processes use it for
    the same session."""
    limits = Limit(usd=given.options.max_budget_usd, tokens=given.options.token_budget)
    if given.holder is None:
        return TreeBudget(given.client.cost, limits, spent=_spent(given.store))
    from coordinator.cluster.limits import SharedLimits
    from coordinator.cluster.shares import BudgetShares

    budget = TreeBudget(given.client.cost, limits, shares=BudgetShares(given.store, given.holder, limits))
    given.wakes.others.listen(budget.news)
    given.wakes.others.listen(SharedLimits(given.store, given.limiter, account(), given.settings.retry).look)
    return budget


def _spent(store: Store) -> Amount:
    """What the session has used before: a resumed one has no new budget."""
    total = store.read(lambda conn: ledger.total(conn, session_id=store.session_id))
    return Amount(total.known_cost_usd, total.output_tokens)


def _confinements(given: Given) -> Confinements | None:
    """How this session's shell commands are held."""
    ground, session_id = given.ground, given.store.session_id
    if ground.sandbox.means is None:
        return None
    paths, spill = ground.paths, ground.paths.spill(session_id)
    added: Sequence[Path] = (*given.options.add_dirs, *ground.files.directories)
    return Confinements(
        means=ground.sandbox.means,
        home=Path.home(),
        aside=spill / "set-aside",
        writable=(*added, paths.scratch(session_id)),
        readable=(spill, paths.transcripts(session_id)),
        private=(paths.home,),
        network=given.settings.tools.sandbox_network,
        required=ground.sandbox.required,
    )


def _begin_servers(given: Given) -> McpTools | None:
    """The session's MCP servers, which start now and end with the run; None where there are none. The offline model has no
    use for them, and reaches nothing."""
    ground, store, settings = given.ground, given.store, given.settings.mcp
    brought = any(definition.mcp_servers for definition in ground.agents.by_name.values())
    if given.options.offline or not (ground.servers.usable or brought):
        return None
    from coordinator.agents.mcp_tools import McpTools
    from worker_agent.mcp.connection import Surroundings as Around
    from worker_agent.mcp.servers import Servers

    processes = Processes(store, servers_of(store.session_id))
    around = Around(
        cwd=ground.cwd,
        environment={**tool_environment(), **ground.files.env},
        marker=servers_of(store.session_id),
        logs=ground.paths.mcp_logs(store.session_id),
        settings=settings,
        clock=store.clock,
        variable=variable,
        redact=ground.redact,
        on_process=processes.began,
        program=given.program.servers,
    )
    servers = Servers(around, partial(given.notice, NoticeKind.MCP))
    given.stack.push_async_callback(processes.end_own)
    given.stack.push_async_callback(servers.close)
    servers.begin(ground.servers.usable)
    return McpTools(servers, settings, ground.policy, tuple(server.name for server in ground.servers.usable))


# ── what runs tasks ──────────────────────────────────────────────────────────────────────────────────────────────────


def _command(given: Given, orders: Orders, task_id: str) -> ShellRun:
    return ShellRun(task_id, store=given.store, observer=given.observer, orders=orders, nudge=given.wakes.message)


class _Places(Struct, frozen=True, kw_only=True):
    """Where workers work: `copies` where each has a clone of its own, whose state `starts` hands from machine to machine."""

    worktrees: Worktrees
    copies: Copies | None = None
    shared: SharedFiles | None = None  # what machines have in common beside the project
    starts: Starts | None = None


def _places(given: Given, toolboxes: Toolboxes) -> _Places:
    store, ground = given.store, given.ground
    paths, shared = ground.paths, None
    worktrees = Worktrees(paths.worktrees(store.session_id))
    if given.is_guest:
        from coordinator.cluster.shared_files import SharedFiles

        shared = SharedFiles(store, paths.scratch(store.session_id), paths.spill(store.session_id))
    if given.options.workspace != "git" or not (given.is_guest or given.carrier is not None):
        return _Places(worktrees=worktrees, shared=shared)
    from coordinator.cluster.workspace import Copies, Starts, remote_of

    remote = remote_of(given.options, store.session_id, ground.paths)
    return _Places(
        worktrees=worktrees,
        shared=shared,
        copies=Copies(store, ground.paths, remote, toolboxes.may_change) if given.is_guest else None,
        starts=Starts(store, ground.cwd, remote),
    )


def _worker(given: Given, engines: EngineFactory, shells: Shells, places: _Places, task_id: str) -> WorkerRun:
    return WorkerRun(
        task_id,
        store=given.store,
        engines=engines,
        price=given.client.cost,
        worktrees=places.worktrees,
        copies=places.copies,
        shared=places.shared,
        observer=given.observer,
        end_shells=shells.end_of,
        on_recorded=given.wakes.ended,
    )


def _backend(given: Given, workers: Backend, commands: Backend, places: _Places) -> Backend:
    """The one door to all tasks; where there is a carrier, workers run on nodes."""
    store = given.store
    if given.carrier is not None:
        from coordinator.cluster.backend import ClusterBackend, OwnCommands

        begin = places.starts.begin if places.starts else None
        workers, commands = (
            ClusterBackend(store, given.carrier, given.wakes.ended, begin, given.options.max_workers),
            OwnCommands(commands, store),
        )
    return ByKind({TaskType.LOCAL_AGENT: workers, TaskType.LOCAL_BASH: commands}, partial(_kind, store))


def _kind(store: Store, task_id: str) -> TaskType:
    return store.read(lambda conn: registry.get(conn, task_id)).type
