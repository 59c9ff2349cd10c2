"""Builds the engine of each agent of a session, the coordinator's and the workers'.

Workers of one definition get the same registry object (`toolboxes.py`) and the same first system block, so that they send
the same bytes and share the provider's cache. What varies stands in the last system block (`surroundings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from coordinator import tracing
from coordinator.agents.announced import Announced
from coordinator.agents.asking import Questions
from coordinator.agents.budget import AgentBudget, TreeBudget
from coordinator.agents.definitions import Agents, prompt_text
from coordinator.agents.inbox import TaskInbox
from coordinator.agents.journal import History, TaskJournal
from coordinator.agents.rights import Rights
from coordinator.agents.surroundings import Surroundings
from coordinator.agents.taking_up import Recollection
from coordinator.agents.toolboxes import Toolboxes
from coordinator.agents.transcript_file import TranscriptFile
from coordinator.agents.transcript_lines import TranscriptLines
from coordinator.options import RunOptions
from coordinator.paths import Paths
from coordinator.runs.background import Shells
from coordinator.runs.processes import Processes
from coordinator.runs.workers import Worker, WorkerParts, book
from coordinator.store import Store
from tasks import registry
from tasks.records import Attempt, TaskRecord
from worker_agent.api.client import ModelClient
from worker_agent.api.limiter import Limiter
from worker_agent.api.models import resolve
from worker_agent.attachments import Attachments
from worker_agent.config import Settings, tool_environment
from worker_agent.events import PermissionDenial
from worker_agent.hooks import HookConfig, HookRunner
from worker_agent.loop.agent import Agent
from worker_agent.memory import MemoryIndex
from worker_agent.messages import Message, user
from worker_agent.process import TASK_MARKER
from worker_agent.session.context import AfterCompact, AgentContext, BeforeCompact
from worker_agent.session.engine import Limits, QueryEngine
from worker_agent.skills import SkillIndex
from worker_agent.tools.base import ToolContext
from worker_agent.tools.confinement import Confinements, Fence
from worker_agent.tools.permissions import Policy
from worker_agent.tools.registry import ToolRegistry
from worker_agent.tools.rules import Places
from worker_agent.tools.tool_hooks import HookedTools

WORKER_SCHEMA_TRIES = 3


class EngineFactory(Struct, kw_only=True):
    """All that the agents of one session have in common. `environment` is what settings files and hooks give to tools;
    `denials` takes what was denied to workers."""

    store: Store
    options: RunOptions
    settings: Settings
    paths: Paths
    cwd: Path
    agents: Agents
    client: ModelClient
    limiter: Limiter
    budget: TreeBudget
    rights: Rights
    toolboxes: Toolboxes
    surroundings: Surroundings
    recollection: Recollection
    shells: Shells
    hooks: HookRunner
    redact: Callable[[str], str]
    denials: list[PermissionDenial]
    environment: Mapping[str, str] = field(default_factory=dict)
    confinements: Confinements | None = None
    questions: Questions | None = None  # None: nobody can be asked
    skills: SkillIndex | None = None
    memory: MemoryIndex | None = None
    deadline: float | None = None
    _contexts: dict[str, ToolContext] = field(default_factory=dict)  # of the agents that live here, by agent

    def change_permissions(self, change: Callable[[Policy], Policy]) -> None:
        """For every agent that lives here, from its next call on."""
        for context in self._contexts.values():
            assert isinstance(context.permissions, Policy)
            context.use_permissions(change(context.permissions))

    def add_environment(self, more: Mapping[str, str]) -> None:
        """For the tools of every agent that begins from now on."""
        self.environment = {**self.environment, **more}

    # ── what a run of a worker needs ───────────────────────────────────────────────────────────────────────────────

    def history(self, agent_id: str) -> History:
        return self.recollection.history(agent_id)

    def journal(self, task: TaskRecord) -> TaskJournal:
        file = TranscriptFile(Path(task.output_file), self.redact) if task.output_file else None
        return TaskJournal(self.store, task.agent_id, Attempt(task.id, task.attempt), file)

    def inbox(self, agent_id: str) -> TaskInbox:
        return TaskInbox(self.store, agent_id, self.redact)

    def worker_hooks(self, task: TaskRecord, cwd: Path) -> HookRunner:
        definition = self.agents.by_name.get(task.definition or "worker")
        return self.hooks.for_agent(
            definition.hooks if definition else HookConfig(),
            permission_mode=self.rights.mode_of(definition, task),
            effort=definition.effort if definition else None,
            agent_id=task.agent_id,
            agent_type=task.definition or "worker",
            task_id=task.id,
            cwd=cwd,
            agent_transcript_path=self.paths.lines(self.store.session_id, task.agent_id),
        )

    async def worker(self, parts: WorkerParts) -> Worker:
        """Raises `ConfigError`."""
        task = parts.task
        definition = self.agents.get(task.definition or "worker")
        registry = await self.toolboxes.of_worker(task.agent_id, definition, task.allowed_tools)
        context = self._tool_context(
            agent_id=task.agent_id,
            task_id=task.id,
            cwd=parts.cwd,
            policy=self.rights.of_worker(definition, task),
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
            told=self.toolboxes.told(registry),
            top=False,
        )

        self._contexts[task.agent_id] = context

        def close() -> None:
            self._contexts.pop(task.agent_id, None)
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
        self._contexts[session_id] = context = self._tool_context(
            agent_id=session_id,
            task_id=None,
            cwd=self.cwd,
            policy=self.rights.policy,
            processes=processes,
            hooks=self.hooks,
        )
        engine = await self._engine(
            agent_id=session_id,
            task_id=None,
            prompt="\n\n".join(parts),
            registry=registry,
            tool_context=context,
            journal=TaskJournal(self.store, session_id, None, file),
            inbox=inbox,
            history=history,
            budget=budget,
            model=self.settings.model,
            effort=options.effort,
            hooks=self.hooks,
            told=self.toolboxes.told_top(registry, alone=not options.use_coordinator),
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
        if self._are_hooks:
            before = history.stored[: len(history.stored) - len(history.added)]
            journal.also_to(self._lines(agent_id, tool_context.cwd, before, worker=not top))
        surroundings = history.surroundings or await self.surroundings.of(tool_context.cwd, journal, told)
        system = (prompt, surroundings["system"])
        memory = surroundings["user_context"]
        memory_message = user(memory, kind="meta", meta=True) if memory else None
        booked = partial(book, self.store, agent_id=agent_id, task_id=task_id, price=self.client.cost)
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
                instructions=self.surroundings.instructions(tool_context.cwd),
                news=self.toolboxes.news(registry, hooks.session.agent_type or ""),
            ),
            stop_hooks=hooks,
            turn_hooks=hooks,
            budget=budget,
            book=booked,
            effort=effort,
            deadline=self.deadline,
            top=top,
            awaits=partial(_awaits, self.store, task_id or self.store.session_id),
            clock=self.store.clock,
        )
        context = AgentContext(
            agent=agent,
            stored=history.stored,
            rebuild_tasks=self.recollection.live_tasks if top else _nothing,
            rebuild_last=self._session_start if top else _nothing,
            before_compact=_asking(hooks),
            after_compact=_telling(hooks),
        )
        return QueryEngine(agent, context, history.messages, history.open)

    @property
    def _are_hooks(self) -> bool:
        """Whether any agent of the session has hooks, which may read any agent's transcript."""
        return bool(self.hooks.config.groups) or any(one.hooks.groups for one in self.agents.by_name.values())

    def _lines(self, agent_id: str, cwd: Path, before: Sequence[Message], *, worker: bool) -> TranscriptLines:
        """The transcript for hooks of an agent that has said and heard `before`."""
        session_id = self.store.session_id
        path = self.paths.lines(session_id, agent_id)
        lines = TranscriptLines(path, session_id=session_id, cwd=cwd, worker=worker, redact=self.redact)
        lines.begin(before)
        return lines

    def _tool_context(
        self, *, agent_id: str, task_id: str | None, cwd: Path, policy: Policy, processes: Processes, hooks: HookRunner
    ) -> ToolContext:
        session_id = self.store.session_id
        scratch, spill = self.paths.scratch(session_id), self.paths.spill(session_id)
        added = (root for root in self.rights.policy.roots if root != self.cwd)
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
                **tracing.traceparent(session_id, task_id),
                **self.environment,
                TASK_MARKER: task_id or session_id,
                "COORDINATOR_SESSION_ID": session_id,
            },
            settings=self.settings.tools,
            clock=self.store.clock,
            permissions=policy,
            approver=Announced(self.questions, hooks) if self.questions else None,
            hooks=HookedTools(hooks, self.toolboxes.facts),
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

    async def _session_start(self) -> Sequence[Message]:
        """What session-start hooks tell the session's own agent again after a compaction."""
        verdict = await self.hooks.session_start("compact")
        return tuple(user(text, kind="attachment", meta=True, data={"source": "session_start"}) for text in verdict.context)


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


def _awaits(store: Store, parent: str) -> bool:
    """Whether a task that `parent` (a task, or the session itself) began works towards a report."""
    live = store.read(lambda conn: registry.live(conn, store.session_id))
    return any(task.parent_id == parent and task.reports for task in live)
