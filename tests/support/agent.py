"""One agent under test: the real engine, the real SDK client, the fake API. Nothing is mocked but the model's words.

with FakeAPI([tool_use("Probe", {"n": 1}), text("done")]) as api:
    run = drive(api, tools=[Probe()])
assert run.result.reason == "completed"
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from worker_agent import events as e
from worker_agent import tool_facts
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.limiter import Limiter
from worker_agent.config import RetrySettings, Settings, SystemClock
from worker_agent.loop.agent import Agent
from worker_agent.loop.ports import ContextPort, Step
from worker_agent.loop.state import Terminal
from worker_agent.messages import Message
from worker_agent.session.context import AgentContext
from worker_agent.session.engine import Limits, QueryEngine
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Allow, Decision, Input, Tool, ToolContext, ToolResult
from worker_agent.tools.registry import ToolRegistry

LIMITS = set(Limits.__struct_fields__)
FAST = RetrySettings(first_delay=0.01, max_delay=0.05, silence=5.0)


class MemoryJournal:
    """The journal of an agent that nobody resumes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.steps: list[Step] = []
        self.consumed: list[str] = []

    async def append(self, messages: Sequence[Message], consumed: Sequence[str] = ()) -> None:
        self.messages += messages
        self.consumed += consumed
        stored = {message.id for message in messages}
        self.steps = [step for step in self.steps if step.message_id not in stored]

    async def step(self, step: Step) -> None:
        self.steps.append(step)


class AllowAll:
    mode = "bypassPermissions"

    async def decide(self, tool: Tool, input: Input, context: ToolContext) -> Decision:
        return Allow()

    def removes(self, tool_name: str) -> bool:
        return False

    def denies_path(self, path: Path, tool_name: str = "Read", project: Path | None = None) -> bool:
        return False


class Probe(Tool):
    """A tool that records its calls: `{"n": int}` answers `result n`; `then` decides what it does meanwhile."""

    facts = Facts(name="Probe")
    description = "Answers with its number."
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }

    def __init__(self, *, read_only: bool = True, then: Callable[[int], Any] | None = None, name: str = "Probe") -> None:
        self.read_only = read_only
        self.then = then
        self.facts = tool_facts.of(name)
        self.calls: list[int] = []

    def is_read_only(self, input: Input) -> bool:
        return self.read_only

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        self.calls.append(input["n"])
        if self.then is not None:
            got = self.then(input["n"])
            if asyncio.iscoroutine(got):
                got = await got
            if isinstance(got, ToolResult):
                return got
        return ToolResult(f"result {input['n']}")


@dataclass
class Run:
    """What one prompt brought: every event, the result, and what the journal holds."""

    events: list[e.Event] = field(default_factory=list)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    engine: QueryEngine | None = None

    @property
    def result(self) -> e.Result:
        assert isinstance(self.events[-1], e.Result)
        return self.events[-1]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def notices(self, kind: str) -> list[e.Notice]:
        return [event for event in self.of(e.Notice) if event.kind == kind]

    @property
    def shown_text(self) -> str:
        return "".join(event.text for event in self.of(e.TextDelta))


def tool_context(tmp: Path, **fields: Any) -> ToolContext:
    values: dict[str, Any] = {
        "session_id": "s0",
        "agent_id": "a0",
        "cwd": tmp,
        "roots": (tmp,),
        "spill_dir": tmp / "spill",
        "permissions": AllowAll(),
    }
    return ToolContext(**values | fields)


def engine(
    api: Any,
    tmp: Path = Path("/nonexistent"),
    *,
    tools: Iterable[Tool] = (),
    settings: Settings | None = None,
    journal: MemoryJournal | None = None,
    context_fields: dict[str, Any] | None = None,
    history: tuple[Message, ...] = (),
    stored: Sequence[Message] = (),
    context: ContextPort | None = None,
    summaries: bool = False,
    **fields: Any,
) -> QueryEngine:
    """An engine whose client speaks to `api`. Must be made inside a running event loop; `fields` are those of `Agent` and
    of `Limits`, which bind every prompt; `stored` is the whole transcript of a resumed agent."""
    clock = fields.pop("clock", SystemClock())
    settings = settings or Settings(model="claude-sonnet-5", retry=FAST)
    settings = replace(settings, loop=replace(settings.loop, tool_use_summaries=summaries))
    rng = random.Random(7)
    limits = Limits(**{name: fields.pop(name) for name in LIMITS & fields.keys()})
    agent = Agent(
        client=fields.pop("client", None)
        or AnthropicClient(settings=settings, clock=clock, base_url=api.base_url, api_key="test"),
        limiter=fields.pop("limiter", None) or Limiter(clock, rng),
        registry=ToolRegistry(tools),
        tool_context=tool_context(tmp, **(context_fields or {})),
        system=fields.pop("system", ("You are an agent under test.",)),
        model=fields.pop("model", settings.model),
        settings=settings,
        journal=journal or MemoryJournal(),
        clock=clock,
        rng=rng,
        **fields,
    )
    return Subject(limits, agent, context or AgentContext(agent=agent, stored=stored), history)


class Subject(QueryEngine):
    """An engine all of whose prompts are bound by the same limits."""

    def __init__(self, limits: Limits, *parts: Any) -> None:
        super().__init__(*parts)
        self.limits = limits

    def submit_message(self, prompt: Any, limits: Limits | None = None) -> AsyncGenerator[e.Event, None]:
        return super().submit_message(prompt, limits or self.limits)


async def collect(subject: QueryEngine, prompt: Any, watch: Callable[[e.Event], None] | None = None) -> Run:
    run = Run(journal=subject.agent.journal, engine=subject)
    async for event in subject.submit_message(prompt):
        run.events.append(event)
        if watch is not None:
            watch(event)
    return run


def drive(api: Any, prompt: Any = "do it", *, watch: Any = None, **fields: Any) -> Run:
    """Run one prompt to its result in an event loop of its own; nothing may be left running behind it."""

    async def main() -> Run:
        subject = engine(api, **fields)
        bound = (lambda event: watch(event, subject)) if watch is not None else None
        run = await collect(subject, prompt, bound)
        await subject.context.close()
        await subject.agent.client.close()
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert not left, f"left running: {left}"
        return run

    return asyncio.run(main())


__all__ = ["FAST", "AllowAll", "MemoryJournal", "Probe", "Run", "Terminal", "collect", "drive", "engine", "tool_context"]
