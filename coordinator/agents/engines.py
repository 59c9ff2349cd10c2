"""Builds the engine of each agent of a session, the coordinator's and the workers'.

Workers of one definition get the same registry object and the same first system block, so that they send the same bytes
and share the provider's cache. What varies stands in the last system block, made once per agent and stored as the first
row of its transcript: a resumed agent sends the same bytes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.agents.announced import Announced
from coordinator.agents.asking import Questions
from coordinator.agents.budget import AgentBudget, TreeBudget
from coordinator.agents.definitions import AgentDefinition, Agents, prompt_text
from coordinator.agents.inbox import TaskInbox
from coordinator.agents.journal import SURROUNDINGS, History, TaskJournal, load_history, surroundings_row
from coordinator.agents.transcript_file import TranscriptFile
from coordinator.options import RunOptions, rank
from coordinator.paths import Paths
from coordinator.runs.background import Shells
from coordinator.runs.processes import Processes
from coordinator.runs.workers import Worker, WorkerParts, book
from coordinator.store import Store
from coordinator.tools.agent import launched
from tasks import outbox
from tasks import registry as task_rows
from tasks.connection import Connection
from tasks.records import Attempt, TaskRecord
from worker_agent import tool_facts
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.api.models import resolve
from worker_agent.attachments import Attachments
from worker_agent.config import Settings, tool_environment
from worker_agent.context.injected import system_context, user_context
from worker_agent.context.instructions import Instructions
from worker_agent.errors import ConfigError
from worker_agent.events import PermissionDenial
from worker_agent.hooks import HookConfig, HookRunner
from worker_agent.loop.agent import Agent
from worker_agent.memory import MemoryIndex
from worker_agent.messages import Block, Message, Usage, canonical, tool_result_block, user
from worker_agent.process import TASK_MARKER
from worker_agent.session.context import AfterCompact, AgentContext, BeforeCompact
from worker_agent.session.engine import Limits, QueryEngine
from worker_agent.skills import SkillIndex
from worker_agent.tools.base import ToolContext
from worker_agent.tools.confinement import Confinements, Fence
from worker_agent.tools.permissions import Mode, Policy
from worker_agent.tools.registry import ToolRegistry, names
from worker_agent.tools.rules import Places, RuleSet
from worker_agent.tools.tool_hooks import HookedTools

if TYPE_CHECKING:
    from coordinator.agents.mcp_tools import McpTools

WORKER_SCHEMA_TRIES = 3
NOT_FOR_WORKERS = (tool_facts.AGENT.name, tool_facts.SEND_MESSAGE.name, tool_facts.TASK_STOP.name)


@dataclass(slots=True, kw_only=True)
class EngineFactory:
    """All that the agents of one session have in common. `tools` is the full set of workers' tools."""

    store: Store
    options: RunOptions
    settings: Settings
    paths: Paths
    cwd: Path
    agents: Agents
    client: ModelClient
    limiter: Limiter
    budget: TreeBudget
    tools: ToolRegistry
    policy: Policy
    shells: Shells
    hooks: HookRunner
    redact: Callable[[str], str]
    environment: Mapping[str, str] = field(default_factory=dict)  # of tools, from settings files
    confinements: Confinements | None = None
    questions: Questions | None = None  # None: nobody can be asked
    skills: SkillIndex | None = None
    memory: MemoryIndex | None = None
    mcp: McpTools | None = None
    deadline: float | None = None
    denials: list[PermissionDenial] = field(default_factory=list)
    _registries: dict[object, ToolRegistry] = field(default_factory=dict)
    _given: dict[str, ToolRegistry] = field(default_factory=dict)  # by agent, where servers may offer something else later
    _contexts: dict[Path, tuple[str, str | None]] = field(default_factory=dict)
    _instructions: dict[Path, Instructions] = field(default_factory=dict)  # by working directory

    # ── what a run of a worker needs ───────────────────────────────────────────────────────────────────────────────

    def price(self, model: str, usage: Usage) -> float | None:
        return self.client.cost(model, usage)

    def history(self, agent_id: str) -> History:
        return load_history(self.store, agent_id, self._is_read_only, self._spawned)

    def journal(self, task: TaskRecord) -> TaskJournal:
        file = TranscriptFile(Path(task.output_file), self.redact) if task.output_file else None
        return TaskJournal(self.store, task.agent_id, Attempt(task.id, task.attempt), file)

    def inbox(self, agent_id: str) -> TaskInbox:
        return TaskInbox(self.store, agent_id, self.redact)

    def worker_hooks(self, task: TaskRecord, cwd: Path) -> HookRunner:
        definition = self.agents.by_name.get(task.definition or "worker")
        return self.hooks.for_agent(
            definition.hooks if definition else HookConfig(),
            permission_mode=str(effective_mode(self._policy(definition, task) if definition else self.policy)),
            effort=definition.effort if definition else None,
            agent_id=task.agent_id,
            agent_type=task.definition or "worker",
            task_id=task.id,
            cwd=cwd,
            transcript_path=Path(task.output_file) if task.output_file else None,
        )

    def _policy(self, definition: AgentDefinition, task: TaskRecord) -> Policy:
        """What a worker may do: what the session may, less what its definition and its spawn take away."""
        policy = narrowed(self.policy.child(mode=definition.permission_mode), definition.tools, task.allowed_tools)
        if definition.denied:
            policy = policy.child(rules=policy.rules + RuleSet.from_flags((), definition.denied))
        return policy

    async def worker(self, parts: WorkerParts) -> Worker:
        """Raises `ConfigError`."""
        task = parts.task
        definition = self.agents.get(task.definition or "worker")
        registry = await self._tools_of(task.agent_id, definition, task.allowed_tools)
        policy = self._policy(definition, task)
        context = self._tool_context(
            agent_id=task.agent_id,
            task_id=task.id,
            cwd=parts.cwd,
            policy=policy,
            processes=parts.processes,
            hooks=parts.hooks,
        )
        budget = self.budget.agent()
        engine = await self._engine(
            agent_id=task.agent_id,
            task_id=task.id,
            prompt=definition.prompt,
            registry=registry,
            tool_context=context,
            journal=parts.journal,
            inbox=parts.inbox,
            history=parts.history,
            budget=budget,
            model=resolve(task.model or self.settings.worker_model or self.settings.model),
            effort=definition.effort,
            hooks=parts.hooks,
            told=self.mcp.told(registry) if self.mcp else None,
            top=False,
        )

        def close() -> None:
            budget.close()
            self.denials.extend(context.denials)

        limits = Limits(max_turns=definition.max_turns, result_schema=task.result_schema, schema_tries=WORKER_SCHEMA_TRIES)
        return Worker(engine, limits, close)

    async def coordinator(
        self, registry: ToolRegistry, inbox: TaskInbox, history: History, processes: Processes
    ) -> tuple[QueryEngine, AgentBudget]:
        """The engine of the session's own agent: the coordinator, or the single agent without one."""
        options, session_id = self.options, self.store.session_id
        name = "coordinator" if options.use_coordinator else "single"
        parts = [options.system_prompt or prompt_text(name), *filter(None, [options.append_system_prompt])]
        budget = self.budget.agent(idles=True)
        file = TranscriptFile(self.paths.transcripts(session_id) / f"{session_id}.md", self.redact)
        engine = await self._engine(
            agent_id=session_id,
            task_id=None,
            prompt="\n\n".join(parts),
            registry=registry,
            tool_context=self._tool_context(
                agent_id=session_id,
                task_id=None,
                cwd=self.cwd,
                policy=self.policy,
                processes=processes,
                hooks=self.hooks,
            ),
            journal=TaskJournal(self.store, session_id, None, file),
            inbox=inbox,
            history=history,
            budget=budget,
            model=self.settings.model,
            effort=None,
            hooks=self.hooks,
            told=self._told_top(registry),
            top=True,
        )
        return engine, budget

    # ── one engine ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _engine(
        self,
        *,
        agent_id: str,
        task_id: str | None,
        prompt: str,
        registry: ToolRegistry,
        tool_context: ToolContext,
        journal: TaskJournal,
        inbox: TaskInbox,
        history: History,
        budget: AgentBudget,
        model: str,
        effort: str | None,
        hooks: HookRunner,
        told: str | None,
        top: bool,
    ) -> QueryEngine:
        surroundings = history.surroundings or await self._surroundings(tool_context.cwd, journal, told)
        system = (prompt, surroundings["system"])
        memory = surroundings["user_context"]
        memory_message = user(memory, kind="meta", meta=True) if memory else None
        booked = partial(book, self.store, agent_id=agent_id, task_id=task_id, price=self.price)
        agent = Agent(
            client=self.client,
            limiter=self.limiter,
            registry=registry,
            tool_context=tool_context,
            system=system,
            user_context=memory_message,
            model=model,
            fallback_model=self.settings.fallback_model,
            settings=self.settings,
            journal=journal,
            inbox=inbox,
            attachments=Attachments(
                cwd=tool_context.cwd,
                facts=registry.facts,
                read_files=tool_context.read_files,
                memory=self.memory,
                skills=self.skills if "Skill" in registry else None,
                clock=self.store.clock,
                started=surroundings["at"],
                redact=self.redact,
                instructions=self.instructions(tool_context.cwd),
                news=self.mcp.news(registry, hooks.session.agent_type or "") if self.mcp else lambda: None,
            ),
            stop_hooks=hooks,
            budget=budget,
            book=booked,
            effort=effort,
            deadline=self.deadline,
            top=top,
            clock=self.store.clock,
        )
        context = AgentContext(
            agent=agent,
            stored=history.stored,
            rebuild_tasks=self.live_tasks if top else _nothing,
            rebuild_last=self._session_start if top else _nothing,
            before_compact=_asking(hooks),
            after_compact=_telling(hooks),
        )
        return QueryEngine(agent, context, history.messages, history.open)

    async def _surroundings(self, cwd: Path, journal: TaskJournal, told: str | None) -> Mapping[str, Any]:
        """System and user context of a new agent, stored before anything is sent. `told` stands behind the latter."""
        if cwd not in self._contexts:
            self._contexts[cwd] = await self._read_contexts(cwd)
        system, memory = self._contexts[cwd]
        parts = filter(None, (memory, told and self.redact(told)))
        row = surroundings_row(system, "\n\n".join(parts) or None, self.store.clock.now())
        await journal.append([row])
        surroundings: Mapping[str, Any] = row.data[SURROUNDINGS]
        return surroundings

    async def _read_contexts(self, cwd: Path) -> tuple[str, str | None]:
        now = self.store.clock.now()
        files = await asyncio.to_thread(self.instructions(cwd).at_start)
        memory = user_context(files, now)
        scratch = f"Scratchpad, shared by all agents of this session: {self.paths.scratch(self.store.session_id)}"
        system = await system_context(cwd, now, scratch, trusted=self.options.trusted)
        return self.redact(system), self.redact(memory.text) if memory else None

    def instructions(self, cwd: Path) -> Instructions:
        """Those that hold for agents in `cwd`."""
        if cwd not in self._instructions:
            self._instructions[cwd] = Instructions(cwd, Path.home(), trusted=self.options.trusted)
        return self._instructions[cwd]

    def _tool_context(
        self, *, agent_id: str, task_id: str | None, cwd: Path, policy: Policy, processes: Processes, hooks: HookRunner
    ) -> ToolContext:
        session_id = self.store.session_id
        scratch, spill = self.paths.scratch(session_id), self.paths.spill(session_id)
        added = (root for root in self.policy.roots if root != self.cwd)
        roots = (cwd, *added, scratch, spill, self.paths.transcripts(session_id))
        return ToolContext(
            session_id=session_id,
            agent_id=agent_id,
            task_id=task_id,
            cwd=cwd,
            roots=tuple(dict.fromkeys(roots)),
            spill_dir=spill / agent_id,
            scratchpad=scratch,
            environment={
                **tool_environment(),
                **self.environment,
                TASK_MARKER: task_id or session_id,
                "COORDINATOR_SESSION_ID": session_id,
            },
            settings=self.settings.tools,
            clock=self.store.clock,
            permissions=policy,
            approver=Announced(self.questions, hooks) if self.questions else None,
            hooks=HookedTools(hooks, self.tools.facts),
            background=self.shells,
            sandbox=self.confinements.of(cwd, (self._fence(policy, cwd),)) if self.confinements else None,
            on_process=processes.began,
            redact=self.redact,
        )

    @staticmethod
    def _fence(policy: Policy, cwd: Path) -> Fence:
        """What deny rules keep an agent from that works in `cwd`, perhaps its own copy of the project."""
        twins = (cwd,) if cwd != policy.cwd else ()
        return Fence(policy.denied_rules(), Places(policy.cwd, policy.home, policy.roots, twins))

    def _told_top(self, registry: ToolRegistry) -> str | None:
        if self.mcp is None:
            return None
        return self.mcp.told_coordinator() if self.options.use_coordinator else self.mcp.told(registry)

    async def _tools_of(self, agent_id: str, definition: AgentDefinition, allowed: Sequence[str] | None) -> ToolRegistry:
        """The tools of a worker, the same for as long as its conversation goes on here."""
        if self.mcp is None:
            return self._registry(definition, allowed)
        version = await self.mcp.ready(definition)
        if agent_id not in self._given:
            self._given[agent_id] = self._registry(definition, allowed, version)
        return self._given[agent_id]

    def _registry(self, definition: AgentDefinition, allowed: Sequence[str] | None, version: int = 0) -> ToolRegistry:
        """The tools of a worker: the definition's, less what it may not have; `allowed` can only narrow further."""
        key = (definition.name, None if allowed is None else tuple(allowed), version)
        if key not in self._registries:
            removed = (*NOT_FOR_WORKERS, *definition.disallowed_tools)
            every = ToolRegistry((*self.tools, *self.mcp.tools(definition.name))) if self.mcp else self.tools
            tools = every.narrowed(
                definition.tools,
                lambda name: any(names(entry, every.facts(name)) for entry in removed) or self.policy.removes(name),
            )
            if allowed is not None:
                tools = tools.narrowed(tuple(allowed))
            if not len(tools) and (allowed or definition.tools):
                asked = ", ".join(allowed or definition.tools or ())
                raise ConfigError(f"no tool is left for agent type {definition.name!r}: {asked}")
            self._registries[key] = self.mcp.within_bounds(tools) if self.mcp else tools
        return self._registries[key]

    def _spawned(self, call: Block) -> Block | None:
        """What became of a spawn whose result was not stored: the record of tasks knows."""
        if call["name"] not in tool_facts.AGENT.names:
            return None
        task = self.store.read(lambda conn: task_rows.asked_by(conn, self.store.session_id, call["id"]))
        if task is not None:
            return tool_result_block(call["id"], canonical(launched(task)).decode())
        text = "Interrupted before the worker was created: it does not exist. Call again if it is still wanted."
        return tool_result_block(call["id"], text, is_error=True)

    def may_change(self, name: str, input: Mapping[str, Any]) -> bool:
        """Whether a call of a tool can have an effect."""
        return not self._is_read_only(name, dict(input))

    def _is_read_only(self, name: str, input: Block) -> bool:
        tool = self.tools.get(name)
        return tool is not None and tool.is_read_only(input)

    async def _session_start(self) -> Sequence[Message]:
        """What session-start hooks tell the session's own agent again after a compaction."""
        verdict = await self.hooks.session_start("compact")
        return tuple(user(text, kind="attachment", meta=True, data={"source": "session_start"}) for text in verdict.context)

    async def live_tasks(self) -> Sequence[Message]:
        """After a compaction or a crash: which tasks live or are still to be announced, from the store and not from
        anybody's memory."""
        tasks = self.store.read(lambda conn: _open_tasks(conn, self.store.session_id))
        if not tasks:
            return ()
        text = "Tasks that have not ended or were not announced yet; each will send its notification once:\n"
        text += "\n".join(map(_line, tasks))
        return (user(self.redact(text), kind="attachment", meta=True, data={"source": "live_tasks"}),)


def effective_mode(policy: Policy) -> Mode:
    """The strictest mode of an agent and of those above it: the one that holds."""
    above = [] if policy.ceiling is None else [effective_mode(policy.ceiling)]
    return min((Mode(policy.mode), *above), key=lambda mode: rank("permission_mode", str(mode)))


def narrowed(policy: Policy, *lists: Sequence[str] | None) -> Policy:
    """`policy` under lists of allowed tools: an entry with a specifier (`Bash(git *)`) allows only what it covers.
    Raises `ConfigError` for what is no rule."""
    for entries in lists:
        if entries is not None and any("(" in entry for entry in entries):
            policy = policy.child(mode=Mode.DONT_ASK, rules=RuleSet.from_flags(entries))
    return policy


def _open_tasks(conn: Connection, session_id: str) -> list[TaskRecord]:
    """The tasks that live, and those that ended and whose notification waits, oldest first."""
    live = task_rows.live(conn, session_id)
    known = {task.id for task in live}
    waiting = [delivery.task_id for delivery in outbox.waiting(conn, session_id)]
    ended = [task_rows.get(conn, id) for id in waiting if id is not None and id not in known]
    return sorted((*live, *ended), key=lambda task: task.created_at)


def _line(task: TaskRecord) -> str:
    what = f"{task.description} ({task.status}, {task.definition or task.type})"
    return f"- {task.id}{f' named {task.name}' if task.name else ''}: {' '.join(what.split())}"


async def _nothing() -> Sequence[Message]:
    return ()


def _asking(hooks: HookRunner) -> BeforeCompact:
    async def before_compact(trigger: str, instructions: str) -> tuple[str | None, Sequence[str]]:
        verdict = await hooks.pre_compact("manual" if trigger == "manual" else "auto", instructions)
        return (verdict.stop or "; ".join(verdict.blocking)) if verdict.blocked else None, verdict.context

    return before_compact


def _telling(hooks: HookRunner) -> AfterCompact:
    async def after_compact(trigger: str, summary: str) -> None:
        await hooks.post_compact("manual" if trigger == "manual" else "auto", summary)

    return after_compact
