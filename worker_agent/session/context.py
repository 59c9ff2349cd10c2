"""`AgentContext`: the context steps of one agent, with a model to summarise by and a journal to record in.

The steps themselves are pure (`context/`); here is when they run and what becomes of what they decide: recorded, so that a
resumed agent has the same view. How a model is asked for a summary says `summaries.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from worker_agent import messages as m
from worker_agent.api.client import ModelInfo
from worker_agent.context import autocompact, rebuild
from worker_agent.context.autocompact import Pressure
from worker_agent.context.collapse import Means, Stretch, means_for
from worker_agent.context.pipeline import Outcome, Pipeline, surviving
from worker_agent.context.spill import spill_text
from worker_agent.context.tokens import effective_window
from worker_agent.context.values import (
    Clear,
    Collapse,
    Compacted,
    Decision,
    Prepared,
    Snip,
    Spill,
    Tracking,
    from_message,
    to_message,
)
from worker_agent.context.view import newest_part, without_media
from worker_agent.errors import ModelError
from worker_agent.loop.agent import Agent
from worker_agent.messages import Block, Message
from worker_agent.session import planning
from worker_agent.session.afresh import files_afresh
from worker_agent.session.summaries import Summaries
from worker_agent.structs import replace

SMALLEST_REFUSED = 2_000  # tokens: less is never taken for a window
MAX_STAGE_FAILURES = 3
GIANT_SHARE = 0.25  # of the effective window: a new result as large as this goes to a file before a compaction
UNCERTAIN_SHARE = 0.02  # of the window: with more estimated than this, a decision at the edge asks the endpoint
EDGE = 1.15  # times the effective window: far beyond it, no exact count is needed
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
    """Satisfies the loop's `ContextPort`. After a compaction `rebuild_tasks` gives the state of the background agents
    and `rebuild_last` what stands at the end: results of session-start hooks. `stored` is the whole transcript of a
    resumed agent, of which the recorded decisions are taken."""

    agent: Agent
    rebuild_tasks: Rebuild = _nothing_to_rebuild
    rebuild_last: Rebuild = _nothing_to_rebuild
    before_compact: BeforeCompact = _go_ahead
    after_compact: AfterCompact = _no_word
    stored: Sequence[Message] = ()

    def __post_init__(self) -> None:
        specs = ((spec.name, spec.description, spec.input_schema) for spec in self.agent.registry.specs() if not spec.deferred)
        fixed = sum(len(text) for text in self.agent.system) + len(m.canonical(tuple(specs)))
        lasting = tuple(tool.name for tool in self.agent.registry if not tool.facts.rerunnable)
        self.pipeline = Pipeline(self.agent.settings, self.agent.clock, self._spill, fixed, lasting, self.agent.registry.facts)
        self._take_up(self.stored)
        self._staging: asyncio.Task[None] | None = None
        self._stage_failures = 0
        self._summaries = Summaries(self.agent)

    # ── the loop's port ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_edited(self) -> bool:
        return any(isinstance(decision, Snip | Clear | Collapse) for decision in self.pipeline.decisions)

    @property
    def has_staged_collapses(self) -> bool:
        return bool(self.pipeline.staged)

    async def prepare(self, messages: tuple[Message, ...], info: ModelInfo, tracking: Tracking) -> Prepared:
        outcome = await self._run(messages, info, tracking)
        tokens, pressure = await self._at_the_edge(outcome, info, tracking)
        if pressure is Pressure.COMPACT and await self._has_late_collapse():
            outcome = await self._run(messages, info, tracking)
            tokens, pressure = outcome.tokens, outcome.pressure
        if pressure is Pressure.COMPACT:
            compacted = await self.compact(messages, info, "auto")
            if compacted is not None:
                view = self.pipeline.draw(compacted.messages)
                return Prepared(
                    view=view,
                    tokens=tokens,
                    compacted=compacted,
                    context_management=outcome.context_management,
                    betas=_betas(outcome),
                )
        return Prepared(
            view=outcome.view,
            tokens=tokens,
            blocking=pressure is Pressure.BLOCKED,
            compact_failed=pressure is Pressure.COMPACT,
            context_management=outcome.context_management,
            betas=_betas(outcome),
        )

    async def _run(self, messages: tuple[Message, ...], info: ModelInfo, tracking: Tracking) -> Outcome:
        """The steps; what they decided is recorded, and how full the window is is said."""
        outcome = self.pipeline.run(messages, info, tracking)
        limit = self.agent.settings.context.collapse_block_spawns
        self.agent.tool_context.fill.say(is_nearly_full=self.pipeline.share >= limit)
        await self._record()
        return outcome

    async def _has_late_collapse(self) -> bool:
        """Whether a summary came since the steps ran. One that is being made is waited for: it is there sooner than one
        that is begun now."""
        if self.pipeline.staging and self._staging is not None:
            await asyncio.wait((self._staging,))
        return self.has_staged_collapses

    async def _at_the_edge(self, outcome: Outcome, info: ModelInfo, tracking: Tracking) -> tuple[int, Pressure]:
        """Before a costly decision that rests on an estimate, the endpoint's own count, where it counts."""
        effective = effective_window(info, self.agent.settings.context)
        uncertain = outcome.uncertain > effective * UNCERTAIN_SHARE and outcome.tokens < effective * EDGE
        if outcome.pressure is Pressure.ROOM or not uncertain:
            return outcome.tokens, outcome.pressure
        counted = await self.agent.client.count_tokens(self._summaries.request(outcome.view, info))
        if counted is None:
            return outcome.tokens, outcome.pressure
        return counted, self.pipeline.pressure(counted, effective, tracking)

    def drain_collapses(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        self.pipeline.commit(messages, info)

    async def compact(
        self, messages: tuple[Message, ...], info: ModelInfo, trigger: str, instructions: str = ""
    ) -> Compacted | None:
        if not any(message.role == "user" or autocompact.is_made(message) for message in messages):
            return None
        refusal, hints = await self.before_compact(trigger, instructions)
        if refusal:
            return None
        info = await self.agent.client.model_info(info.id)  # a refusal may have taught its true window
        if trigger == "reactive":  # or said only that this was too much: then the window is no larger than this
            refused = self.pipeline.tokens(self.pipeline.draw(messages), info)
            info = replace(info, window=min(info.window, max(refused, SMALLEST_REFUSED)))
        if trigger == "edited":  # this endpoint takes no edited history: never again
            self.pipeline.collapse_no_more()
        self._spill_giants(messages, info)
        await self._record()
        view = self.pipeline.draw(messages)
        tokens = self.pipeline.tokens(view, info)
        kept = self._kept(view, messages, info)
        kept_ids = {message.id for message in kept}
        past = tuple(message for message in view if message.id not in kept_ids)
        if trigger == "media":
            past = tuple(without_media(message) for message in past)
        if all(message.kind == "boundary" for message in past):  # nothing but what nobody has answered yet
            if trigger == "auto":
                return None
            past = tuple(without_media(message) for message in view) if trigger == "media" else view
        summary = await self._summaries.of(past, info, "\n".join(filter(None, (instructions, *hints))))
        if summary is None:
            return None
        text, usage = summary
        at = self.agent.clock.now()
        stored_kept = [message for message in messages if message.id in kept_ids]
        compacted = rebuild.compacted(
            trigger=trigger,
            tokens_before=tokens,
            summary=text,
            kept=stored_kept,
            rebuilt=[
                *await files_afresh(self.agent, info),
                *await self.rebuild_tasks(),
                *rebuild.plan_and_skills(messages, stored_kept, at),
                *planning.news(stored_kept, self.agent.tool_context.permissions.mode, at),
                *await self.rebuild_last(),
            ],
            last_id=messages[-1].id if messages else None,
            strip_thinking=not isinstance(text, Message),
            strip_media=trigger == "media",
            at=at,
            usage=usage,
        )
        await self.after_compact(trigger, text.content[0]["content"] if isinstance(text, Message) else text)
        self.pipeline.restart(compacted.messages)  # last, and in one go with the return: an interrupt comes before
        self._stage_failures = 0
        self._forget_shown()
        return compacted

    def turn_ended(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        if self._stage_failures >= MAX_STAGE_FAILURES:
            return
        stretch = self.pipeline.stretch(messages, info)
        if stretch is not None:
            self.pipeline.begin_staging()
            self._staging = asyncio.create_task(self._stage(stretch, info))

    def largest(self, messages: tuple[Message, ...], info: ModelInfo) -> str:
        sized = [(len(m.canonical(block)), block) for message in messages for block in message.content]
        size, block = max(sized, key=lambda pair: pair[0], default=(0, {"type": "nothing"}))
        tokens = int(size / info.chars_per_token)
        return f"{_named(block, messages)} with {size:,} characters (about {tokens:,} tokens)"

    async def close(self) -> None:
        """End what summarises in the background, and let the conversation go."""
        if self._staging is not None:
            self._staging.cancel()
            await asyncio.wait((self._staging,))
        self.pipeline.restart(())
        self.stored = ()

    async def _stage(self, stretch: Stretch, info: ModelInfo) -> None:
        """Summarise `stretch` and stage it. A failure stages nothing: autocompact takes its place."""
        try:
            staged = await self._summaries.collapse(stretch, info)
        except ModelError:
            staged = None
        except BaseException:
            self.pipeline.stage(None)
            raise
        self.pipeline.stage(staged)
        self._stage_failures = self._stage_failures + 1 if staged is None else 0

    # ── what is kept and what is recorded ──────────────────────────────────────────────────────────────────────────

    def _kept(self, view: tuple[Message, ...], messages: tuple[Message, ...], info: ModelInfo) -> tuple[Message, ...]:
        """What a compaction keeps; of what was answered nothing, if nothing would be left to summarise."""
        context = self.agent.settings.context
        rebuilt = rebuild.rebuilt_ids(messages)
        part = newest_part(view) if means_for(info) is Means.SERVER else view
        kept = autocompact.kept(part, info, effective_window(info, context), context.compact_keep, rebuilt)
        left = {message.id for message in view if message.kind != "boundary"} - {message.id for message in kept}
        return kept if left else autocompact.unanswered_prompts(part, rebuilt)

    def _spill_giants(self, messages: tuple[Message, ...], info: ModelInfo) -> None:
        """New results that alone fill a quarter of the window go to files: no summary helps there. What was answered
        already is left alone: it fits, and thinking may be bound to it."""
        effective = effective_window(info, self.agent.settings.context)
        limit = int(effective * GIANT_SHARE * info.chars_per_token)
        texts: dict[str, str] = {}
        for message in reversed(self.pipeline.draw(messages)):
            if message.role == "assistant":
                break
            for block in message.tool_results:
                if isinstance(block.get("content"), str) and len(block["content"]) > limit:
                    texts[block["tool_use_id"]] = self._spill(block["tool_use_id"], block["content"])
        if texts:
            self.pipeline.decide(Spill(texts))

    def _spill(self, tool_use_id: str, text: str) -> str:
        return spill_text(text, tool_use_id, self.agent.tool_context.spill_dir, self.agent.settings.tools.preview)

    def _forget_shown(self) -> None:
        """What stood in the conversation does not any more: no tool may answer "as shown before"."""
        for path, known in self.agent.tool_context.read_files.items():
            if known.ranges:
                self.agent.tool_context.read_files[path] = replace(known, ranges=())

    async def _record(self) -> None:
        if decisions := self.pipeline.take_new():
            if not all(isinstance(decision, Spill) for decision in decisions):
                self._forget_shown()
            # An interrupt must not part what holds from what is recorded.
            await asyncio.shield(self.agent.journal.append([to_message(decision) for decision in decisions]))

    def _take_up(self, stored: Sequence[Message]) -> None:
        """Go on with the decisions of a resumed conversation: those since its last compaction, and those before it that
        speak of what it kept. The usage of an answer older than a change of the view says nothing."""
        decisions: list[Decision] = []
        by_id = {row.id: row for row in stored}
        stale = answer = ""
        for row in stored:
            if row.kind == "view":
                decisions.append(from_message(row))
            elif row.kind == "boundary":
                decisions = surviving(decisions, [by_id[id] for id in row.data["kept"] if id in by_id])
            elif row.role == "assistant" and row.usage:
                answer = row.id
            if row.kind == "boundary" or (row.kind == "view" and not isinstance(decisions[-1], Spill)):
                stale = answer
        self.pipeline.resume(decisions, stale)


def _betas(outcome: Outcome) -> tuple[str, ...]:
    return (EDITING_BETA,) if outcome.context_management else ()


def _named(block: Block, messages: Sequence[Message]) -> str:
    if block["type"] != "tool_result":
        return f"a block of type {block['type']}"
    calls = (call for message in messages for call in message.tool_uses)
    name = next((call["name"] for call in calls if call["id"] == block["tool_use_id"]), None)
    return f"a result of the tool {name}" if name else "a block of type tool_result"
