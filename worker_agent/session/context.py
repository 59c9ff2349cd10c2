"""`AgentContext`: the context steps of one agent, with a model to summarise by and a journal to record in.

The steps themselves are pure (`context/`); here is what needs a client: the summary of a compaction (by the server
where the model offers it and binds its thinking, else by a call on the agent's own prefix, so that the cache serves it)
and the background summaries of collapses (by the small model). A call that summarises never compacts itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from worker_agent import events as e
from worker_agent import messages as m
from worker_agent import prompts
from worker_agent.api.client import BlockClosed, Finished, ModelClient, ModelInfo, ModelRequest, Started
from worker_agent.api.limiter import Limiter
from worker_agent.api.retry import RetrySchedule
from worker_agent.config import Clock, Settings
from worker_agent.context import autocompact, rebuild
from worker_agent.context.autocompact import Pressure
from worker_agent.context.pipeline import Pipeline
from worker_agent.context.spill import spill_text
from worker_agent.context.tokens import effective_window, estimate
from worker_agent.context.values import Compacted, Decision, Prepared, Snip, Spill, Tracking, from_message, to_message
from worker_agent.context.view import without_media
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.loop.ports import Budget, Journal, Nothing
from worker_agent.messages import Block, Message, Usage
from worker_agent.tools.base import ToolContext
from worker_agent.tools.registry import ToolRegistry

MAX_SUMMARY_TRIES = 3
EDITING_BETA = "context-management-2025-06-27"

Rebuild = Callable[[], Awaitable[Sequence[Message]]]


BeforeCompact = Callable[[str, str], Awaitable[tuple[str | None, Sequence[str]]]]
"""(trigger, instructions) → why it must not be, or None; and further instructions. Hooks stand behind it."""

AfterCompact = Callable[[str, str], Awaitable[None]]
"""(trigger, summary)"""


async def _nothing_to_rebuild() -> Sequence[Message]:
    return ()


async def _go_ahead(trigger: str, instructions: str) -> tuple[str | None, Sequence[str]]:
    return None, ()


async def _no_word(trigger: str, summary: str) -> None:
    return None


@dataclass(kw_only=True)
class AgentContext:
    """Satisfies the loop's `ContextPort`. `rebuild_more` gives what belongs behind the files after a compaction: state of
    background agents, plan, skills, listings, hook results. `stored` is the whole transcript of a resumed agent, of
    which the recorded decisions are taken."""

    settings: Settings
    client: ModelClient
    limiter: Limiter
    journal: Journal
    clock: Clock
    registry: ToolRegistry
    tool_context: ToolContext
    system: tuple[str, ...]
    budget: Budget = field(default_factory=Nothing)
    rebuild_more: Rebuild = _nothing_to_rebuild
    before_compact: BeforeCompact = _go_ahead
    after_compact: AfterCompact = _no_word
    on_call: Callable[[e.ModelCalled], None] = field(default=lambda call: None)
    stored: Sequence[Message] = ()
    rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        specs = ((spec.name, spec.description, spec.input_schema) for spec in self.registry.specs())
        fixed = sum(len(text) for text in self.system) + len(m.canonical(tuple(specs)))
        self.pipeline = Pipeline(self.settings, self.clock, self._spill, fixed)
        self._take_up(self.stored)
        self._staging: asyncio.Task[None] | None = None

    # ── the loop's port ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_staged_collapses(self) -> bool:
        return bool(self.pipeline.staged)

    async def prepare(self, messages: tuple[Message, ...], info: ModelInfo, tracking: Tracking) -> Prepared:
        outcome = self.pipeline.run(messages, info, tracking)
        await self._record()
        if outcome.pressure is Pressure.COMPACT:
            compacted = await self.compact(messages, info, "auto")
            if compacted is not None:
                view = self.pipeline.draw(compacted.messages)
                return Prepared(view=view, tokens=outcome.tokens, compacted=compacted)
        return Prepared(
            view=outcome.view,
            tokens=outcome.tokens,
            blocking=outcome.pressure is Pressure.BLOCKED,
            compact_failed=outcome.pressure is Pressure.COMPACT,
            context_management=outcome.context_management,
            betas=(EDITING_BETA,) if outcome.context_management else (),
        )

    def drain_collapses(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        self.pipeline.commit(messages, info)

    async def compact(
        self, messages: tuple[Message, ...], info: ModelInfo, trigger: str, instructions: str = ""
    ) -> Compacted | None:
        refusal, hints = await self.before_compact(trigger, instructions)
        if refusal:
            return None
        effective = effective_window(info, self.settings.context)
        self._spill_giants(messages, info, effective)
        view = self.pipeline.draw(messages)
        if trigger == "media":
            view = tuple(without_media(message) for message in view)
        cut = _cut(view, autocompact.split(view, info, effective))
        summary = await self._summary(view, cut, info, "\n".join(filter(None, (instructions, *hints))))
        if summary is None:
            return None
        text, usage = summary
        on_server = isinstance(text, Message)
        kept_ids = set() if on_server else {message.id for message in view[cut:]}
        compacted = rebuild.compacted(
            trigger=trigger,
            tokens_before=self.pipeline.tokens(view, info),
            summary=text,
            kept=[message for message in messages if message.id in kept_ids],
            rebuilt=[*self._files(info), *await self.rebuild_more()],
            last_id=messages[-1].id if messages else None,
            strip_thinking=not on_server,
            strip_media=trigger == "media",
            at=self.clock.now(),
            usage=usage,
        )
        self.pipeline.restart(compacted.messages)
        await self._record()
        await self.after_compact(trigger, text.text if isinstance(text, Message) else text)
        return compacted

    def turn_ended(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        stretch = self.pipeline.stretch(messages, info)
        if stretch is not None:
            self.pipeline.staging = True
            self._staging = asyncio.create_task(self._stage(stretch.messages, stretch.collapse))

    def largest(self, messages: tuple[Message, ...], info: ModelInfo) -> str:
        sized = [(len(m.canonical(block)), block) for message in messages for block in message.content]
        size, block = max(sized, key=lambda pair: pair[0], default=(0, {"type": "nothing"}))
        tokens = int(size / info.chars_per_token)
        return f"a block of type {block['type']} with {size:,} characters (about {tokens:,} tokens)"

    async def close(self) -> None:
        """End what summarises in the background."""
        if self._staging is not None:
            self._staging.cancel()
            await asyncio.wait((self._staging,))

    # ── summaries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _summary(
        self, view: tuple[Message, ...], cut: int, info: ModelInfo, instructions: str
    ) -> tuple[str | Message, Usage] | None:
        if info.server_compaction and info.binds_thinking and (done := await self._by_server(view, info, instructions)):
            return done
        prompt = prompts.load("compact")
        if instructions:
            prompt += f"\n\nWhat the person asks of this summary: {instructions}"
        past = view[:cut]
        for _ in range(MAX_SUMMARY_TRIES):
            try:
                request = self._request((*past, m.user(prompt, kind="meta", meta=True)), info)
                answer = await self._call(replace(request, tools_allowed=False))
            except ModelError as error:
                past = autocompact.drop_oldest(past)
                if error.kind not in (ErrorKind.PROMPT_TOO_LONG, ErrorKind.REQUEST_TOO_LARGE) or not past:
                    return None
                continue
            text = answer.text.strip()
            return (text, answer.usage or Usage()) if text else None
        return None

    async def _by_server(
        self, view: tuple[Message, ...], info: ModelInfo, instructions: str
    ) -> tuple[Message, Usage] | None:
        try:
            answer = await self._call(replace(self._request(view, info), compact=instructions))
        except ModelError:
            return None  # the client's own summary takes over
        block = next((b for b in answer.content if b.get("type") == "compaction" and b.get("content")), None)
        if block is None:
            return None
        return replace(answer, content=(block,), wire=b"", kind="summary", meta=True), answer.usage or Usage()

    def _request(self, messages: tuple[Message, ...], info: ModelInfo) -> ModelRequest:
        return ModelRequest(
            model=info.id,
            max_tokens=min(self.settings.context.summary_reserve, info.max_output),
            system=self.system,
            tools=self.registry.specs(),
            messages=messages,
            conversation=f"{self.tool_context.agent_id}/summary",
        )

    async def _stage(self, messages: tuple[Message, ...], collapse: Callable[[str], Decision]) -> None:
        try:
            info = await self.client.model_info(self.settings.small_model)
            prompt = m.user(prompts.load("collapse"), kind="meta", meta=True)
            request = ModelRequest(
                model=info.id,
                max_tokens=min(8_000, info.max_output),
                system=(),
                tools=(),
                messages=(m.user(_as_text(messages), kind="meta", meta=True), prompt),
                conversation=f"{self.tool_context.agent_id}/collapse",
            )
            text = (await self._call(request)).text.strip()
            if text:
                self.pipeline.staged.append(collapse(text))
        except ModelError:
            pass  # nothing staged: autocompact takes its place
        finally:
            self.pipeline.staging = False

    async def _call(self, request: ModelRequest) -> Message:
        """One summarising call with the same schedule, limiter and budget as any other."""
        schedule = RetrySchedule(self.settings.retry, self.rng)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._one_try(request)
            except ModelError as error:
                self.limiter.observe(error)
                delay = schedule.delay(error, attempt, deadline_left=None)
                if delay is None:
                    raise
                await self.clock.sleep(delay)

    async def _one_try(self, request: ModelRequest) -> Message:
        tokens = estimate(request.messages, 4.0)
        reservation = await self.budget.reserve(request, tokens)
        began, usage, response_id = self.clock.monotonic(), Usage(), None
        blocks: list[Block] = []
        try:
            async with self.limiter.turn(request.model):
                async for event in self.client.stream(request):
                    match event:
                        case Started():
                            usage, response_id = event.usage, event.response_id
                        case BlockClosed():
                            blocks.append(event.block)
                        case Finished():
                            usage = event.usage
        finally:
            reservation.settle(request.model, usage if response_id else None)
            duration = self.clock.monotonic() - began
            self.on_call(e.ModelCalled(response_id, request.model, usage, duration))
        return m.assistant(blocks, usage=usage, model=request.model, response_id=response_id, at=self.clock.now())

    # ── what is kept and what is read afresh ───────────────────────────────────────────────────────────────────────

    def _spill_giants(self, messages: tuple[Message, ...], info: ModelInfo, effective: int) -> None:
        """Results that alone fill a quarter of the window go to files, wherever they stand: no summary helps there."""
        limit = int(effective * 0.25 * info.chars_per_token)
        texts = {
            block["tool_use_id"]: self._spill(block["tool_use_id"], block["content"])
            for message in self.pipeline.draw(messages)
            for block in message.tool_results
            if isinstance(block.get("content"), str) and len(block["content"]) > limit
        }
        if texts:
            self.pipeline.decide(Spill(texts))

    def _files(self, info: ModelInfo) -> list[Message]:
        """The files last read, afresh, newest first: at most 5, each and all within their caps."""
        context = self.settings.context
        latest = sorted(self.tool_context.read_files.items(), key=lambda item: item[1].order, reverse=True)
        room = int(context.rebuild_files_tokens * info.chars_per_token)
        each = int(context.rebuild_file_tokens * info.chars_per_token)
        found: list[Message] = []
        for path, _ in latest[: context.rebuild_files]:
            try:
                text = path.read_text(encoding="utf-8", errors="replace")[: min(each, room)]
            except OSError:
                continue
            room -= len(text)
            if text:
                shown = f"<system-reminder>\nContent of {path}, read again after the summary:\n{text}\n</system-reminder>"
                found.append(m.user(shown, kind="attachment", meta=True, at=self.clock.now()))
        return found

    def _spill(self, tool_use_id: str, text: str) -> str:
        return spill_text(text, tool_use_id, self.tool_context.spill_dir, self.settings.tools.preview)

    async def _record(self) -> None:
        if decisions := self.pipeline.take_new():
            await self.journal.append([to_message(decision) for decision in decisions])

    def _take_up(self, stored: Sequence[Message]) -> None:
        """Go on with the decisions of a resumed conversation."""
        rows = [message for message in stored if message.kind in ("view", "boundary")]
        self.pipeline.decisions = [from_message(message) for message in rows if message.kind == "view"]
        changes = (row.at for row in rows if row.data.get("decision") not in (Spill.kind, Snip.kind))
        self.pipeline.changed_at = max(changes, default=0.0)


def _cut(view: Sequence[Message], cut: int) -> int:
    """Where the kept messages begin: never with all of the view, and behind every collapse, which is no stored
    message."""
    if cut == 0:
        return len(view)
    collapses = [i for i, message in enumerate(view) if message.data.get("reason") == "collapse"]
    return max(cut, collapses[-1] + 1 if collapses else 0)


def _as_text(messages: Sequence[Message]) -> str:
    """A stretch as plain text for a model that has neither its tools nor its prompt."""
    parts = []
    for message in messages:
        for block in message.content:
            match block.get("type"):
                case "text":
                    parts.append(f"[{message.role}] {block['text']}")
                case "tool_use":
                    parts.append(f"[call] {block['name']} {m.canonical(block['input']).decode()}")
                case "tool_result":
                    content = block.get("content", "")
                    parts.append(f"[result] {content if isinstance(content, str) else m.canonical(content).decode()}")
    return "\n".join(parts)
