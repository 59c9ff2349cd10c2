"""The five steps, light to heavy, in this order, and why:

1. tool-result budget – free: it looks only at results that were never sent, so no cache breaks
2. snip – drops what no longer matters, without a model
3. microcompact – clears what can be had again, when the cache is cold anyway
4. collapse – shows finished stretches as summaries that were made ahead of need
5. autocompact – one model call over everything

None runs if the one before has made it needless. The *prefix is precious*: every step but the first breaks the cache
(and the thinking signatures of a model that binds them) from where it changes something, so each acts at its threshold
and in one go; on a binding model the thinking behind the change goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from worker_agent import tool_facts
from worker_agent.config import Clock, Settings
from worker_agent.context import autocompact, collapse, microcompact, snip, tool_result_budget
from worker_agent.context.autocompact import Pressure
from worker_agent.context.tokens import Count, effective_window, estimate, prompt_tokens
from worker_agent.context.values import Clear, Collapse, Decision, Snip, Spill, StripThinking, Tracking, Window
from worker_agent.context.view import apply, collapse_id, draw
from worker_agent.messages import Message
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts

RESULTS_SHARE = 0.5  # of the effective window: what the results of one message may have at most


class Outcome(Struct, frozen=True, kw_only=True):
    """The view after steps 1 to 4, and what step 5 says. `uncertain` are the tokens that are only an estimate."""

    view: tuple[Message, ...]
    tokens: int
    uncertain: int
    pressure: Pressure
    context_management: Mapping[str, Any] | None = None


class Pipeline(Struct):
    """The steps of one agent. `decisions` are those taken so far, oldest first; `staged` what waits to be committed;
    `spill(tool_use_id, text)` writes a result to a file and gives the text that stands for it; `fixed` are the
    characters of system prompt and tools, which every request has; `lasting` names the tools whose results cannot be
    had again, `facts` are what is known of a tool by its name. No call costs time that grows with the turns before the view."""

    settings: Settings
    clock: Clock
    spill: Callable[[str, str], str]
    fixed: int = 0
    lasting: tuple[str, ...] = ()
    facts: Callable[[str], Facts] = tool_facts.of
    collapses: bool = True  # off for good once the endpoint refused an edited history
    decisions: list[Decision] = field(default_factory=list)
    staged: list[Collapse] = field(default_factory=list)
    staging: bool = False  # a summary is being made in the background
    share: float = 0.0  # of the effective window, at the last run
    _new: list[Decision] = field(default_factory=list)
    _spilled: set[str] = field(default_factory=set)  # tool_use_ids
    _stale: str = ""  # the last answer from before a compaction: its usage says nothing any more
    _freed: tuple[str, int] = ("", 0)  # tokens that left the view since this answer
    _drawn: tuple[tuple[Message, ...], int, tuple[Message, ...]] = ((), 0, ())

    def draw(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The view of `messages`. Only what is new since the last call is looked at: new decisions speak of messages
        that were there when they were taken, old ones say nothing of new messages."""
        before, decided, view = self._drawn
        has_grown = before and len(messages) >= len(before) and messages[0] is before[0]
        if has_grown and messages[len(before) - 1] is before[-1]:
            view = view + messages[len(before) :]
            for decision in self.decisions[decided:]:
                view = apply(view, decision)
        else:
            view = draw(messages, self.decisions)
        self._drawn = (messages, len(self.decisions), view)
        return view

    def run(self, messages: tuple[Message, ...], window: Window, tracking: Tracking) -> Outcome:
        """Steps 1 to 4, and what step 5 asks for."""
        context = self.settings.context
        effective = effective_window(window, context)
        self._budget(messages, int(effective * RESULTS_SHARE * window.chars_per_token))
        edits = microcompact.server_edit(window, context, effective, self.lasting)
        self._snip(messages, window, effective)
        if edits is None and (clear := microcompact.plan(self.draw(messages), context, self.clock.now(), self.facts)):
            self._change(clear, messages, window)
        filled = self.tokens(self.draw(messages), window) >= effective * context.collapse_commit
        if context.collapse and self.collapses and filled:
            self.commit(messages, window)
        view = self.draw(messages)
        count = self.count(view, window)
        self.share = count.total / effective
        return Outcome(
            view=view,
            tokens=count.total,
            uncertain=count.estimated,
            pressure=self.pressure(count.total, effective, tracking),
            context_management=edits,
        )

    def count(self, view: Sequence[Message], window: Window) -> Count:
        """About how many tokens the view has; what left it since the last answer is known to be gone."""
        count = prompt_tokens(view, window, stale=self._stale, fixed=self.fixed)
        if count.answer and self._freed[0] == count.answer:
            count = replace(count, known=max(0, count.known - self._freed[1]))
        return count

    def tokens(self, view: Sequence[Message], window: Window) -> int:
        return self.count(view, window).total

    def commit(self, messages: tuple[Message, ...], window: Window) -> bool:
        """Step 4's commit: everything staged becomes a decision. Whether there was anything."""
        staged, self.staged = self.staged, []
        for one in staged:
            if one.block is not None:
                one = replace(one, after=self.draw(messages)[-1].id)
            self._change(one, messages, window)
        return bool(staged)

    def begin_staging(self) -> None:
        """A summary is being made, until `stage` says what came of it."""
        self.staging = True

    def stage(self, summary: Collapse | None) -> None:
        """What came of the summary: it waits to be committed; None where it failed."""
        self.staging = False
        if summary is not None:
            self.staged.append(summary)

    def collapse_no_more(self) -> None:
        """The endpoint refused an edited history: never again."""
        self.collapses = False

    def decide(self, decision: Decision) -> None:
        """Take a decision. It holds from now on, and waits in `take_new` to be recorded before it is sent."""
        self.decisions.append(decision)
        self._new.append(decision)
        if isinstance(decision, Spill):
            self._spilled.update(decision.texts)

    def take_new(self) -> list[Decision]:
        """The decisions that are not recorded yet."""
        new, self._new = self._new, []
        return new

    def restart(self, messages: Sequence[Message]) -> None:
        """A compaction lies behind, `messages` is what stands for the history: only decisions about what it kept still
        say anything, and no usage from before it does."""
        self._take(surviving(self.decisions, messages))
        self.staged.clear()
        self._stale = _last_answer(messages)

    def resume(self, decisions: Iterable[Decision], stale: str) -> None:
        """Go on with recorded decisions; `stale` is the last answer whose usage they outdate ("" = none)."""
        self._take(list(decisions))
        self._stale = stale

    def pressure(self, tokens: int, effective: int, tracking: Tracking) -> Pressure:
        context = self.settings.context
        found = autocompact.pressure(tokens, effective, context, tracking)
        stands_back = context.collapse and self.collapses and self.staging and tokens < effective - context.blocking_buffer
        return Pressure.ROOM if found is Pressure.COMPACT and stands_back else found

    def stretch(self, messages: tuple[Message, ...], window: Window) -> collapse.Stretch | None:
        """What to stage next, in the background; None when there is nothing, or something is staged or being staged."""
        if self.staging or self.staged or not (self.settings.context.collapse and self.collapses):
            return None
        view = self.draw(messages)
        effective = effective_window(window, self.settings.context)
        return collapse.next_stretch(view, window, self.tokens(view, window), effective, self.settings.context)

    def _take(self, decisions: list[Decision]) -> None:
        self.decisions = decisions
        self._spilled = {id for decision in decisions if isinstance(decision, Spill) for id in decision.texts}
        self._drawn = ((), 0, ())
        self._freed = ("", 0)

    def _budget(self, messages: tuple[Message, ...], cap: int) -> None:
        for message in reversed(messages):
            if message.role == "assistant":
                break
            if message.kind != "tool_results" or any(b["tool_use_id"] in self._spilled for b in message.tool_results):
                continue
            spill = tool_result_budget.plan(message, self.settings.tools, self.spill, cap)
            if spill is not None:
                self.decide(spill)

    def _snip(self, messages: tuple[Message, ...], window: Window, effective: int) -> None:
        if window.binds_thinking:
            return
        view = self.draw(messages)
        decision = snip.plan(view, window, self.tokens(view, window), effective, self.settings.context)
        if decision is not None:
            self._change(decision, messages, window)

    def _change(self, decision: Snip | Clear | Collapse, messages: tuple[Message, ...], window: Window) -> None:
        """Take a decision that changes what was sent, and remember how many tokens that freed."""
        view = self.draw(messages)
        answer = self.count(view, window).answer
        self.decide(decision)
        is_from_server = isinstance(decision, Collapse) and decision.block is not None
        # Behind a collapse, as behind a compaction, the few turns that are kept go without their thinking on any model.
        if (window.binds_thinking or isinstance(decision, Collapse)) and not is_from_server and view:
            first = collapse_id(decision.last) if isinstance(decision, Collapse) else ""
            self.decide(StripThinking(view[-1].id, first))
        after = self.draw(messages)
        freed = estimate(view, window.chars_per_token) - estimate(after, window.chars_per_token)
        if answer and self.count(after, window).answer == answer:
            known = self._freed[1] if self._freed[0] == answer else 0
            self._freed = (answer, known + freed)


def _last_answer(messages: Sequence[Message]) -> str:
    return next((message.id for message in reversed(messages) if message.role == "assistant" and message.usage), "")


def surviving(decisions: Iterable[Decision], messages: Sequence[Message]) -> list[Decision]:
    """The decisions that still say something of `messages`, which a compaction left."""
    results = {block["tool_use_id"] for message in messages for block in message.tool_results}
    ids = {message.id for message in messages}
    return [decision for decision in decisions if _speaks_of(decision, results, ids)]


def _speaks_of(decision: Decision, results: set[str], ids: set[str]) -> bool:
    match decision:
        case Spill(texts=texts):
            return not results.isdisjoint(texts)
        case Clear(tool_use_ids=cleared):
            return not results.isdisjoint(cleared)
        case StripThinking(last=last, first=first):
            return last in ids and not first
        case Snip() | Collapse():
            return False
