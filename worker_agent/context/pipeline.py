"""The five steps, light to heavy, in this order, and why:

1. tool-result budget – free: it looks only at results that were never sent, so no cache breaks
2. snip – drops what no longer matters, without a model
3. microcompact – clears what can be had again, when the cache is cold anyway
4. collapse – shows finished stretches as summaries that were made ahead of need
5. autocompact – one model call over everything

None runs if the one before has made it needless. The *prefix is precious*: every step but the first breaks the cache
(and the thinking signatures of a model that binds them) from where it changes something, so each acts at its threshold
and in one go; on a binding model the thinking before the change goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker_agent.config import Clock, Settings
from worker_agent.context import autocompact, collapse, microcompact, snip, tool_result_budget
from worker_agent.context.autocompact import Pressure
from worker_agent.context.tokens import effective_window, prompt_tokens
from worker_agent.context.values import Clear, Collapse, Decision, Spill, StripThinking, Tracking, Window
from worker_agent.context.view import draw
from worker_agent.messages import Message

SNIP_SHARE = 0.75  # of the effective window


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The view after steps 1 to 4, and what step 5 says."""

    view: tuple[Message, ...]
    tokens: int
    pressure: Pressure
    context_management: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Pipeline:
    """The steps of one agent. `decisions` are those taken so far, oldest first; `staged` what waits to be committed;
    `spill(tool_use_id, text)` writes a result to a file and gives the text that stands for it; `fixed` are the
    characters of system prompt and tools, which every request has."""

    settings: Settings
    clock: Clock
    spill: Callable[[str, str], str]
    fixed: int = 0
    decisions: list[Decision] = field(default_factory=list)
    staged: list[Collapse] = field(default_factory=list)
    staging: bool = False  # a summary is being made in the background
    changed_at: float = 0.0
    _new: list[Decision] = field(default_factory=list)
    _freed: tuple[str, int] = ("", 0)
    _drawn: tuple[tuple[Message, ...], int, tuple[Message, ...]] = ((), 0, ())

    def draw(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The view of `messages`. Only what is new since the last call is looked at, as long as nothing was decided:
        decisions speak of messages that were there when they were taken."""
        before, decided, view = self._drawn
        grown = decided == len(self.decisions) and len(messages) >= len(before)
        if grown and before and messages[len(before) - 1] is before[-1] and messages[0] is before[0]:
            view = view + messages[len(before) :]
        else:
            view = draw(messages, self.decisions)
        self._drawn = (messages, len(self.decisions), view)
        return view

    def run(self, messages: tuple[Message, ...], window: Window, tracking: Tracking) -> Outcome:
        """Steps 1 to 4, and what step 5 asks for."""
        context = self.settings.context
        effective = effective_window(window, context)
        self._budget(messages)
        view = self.draw(messages)
        tokens = self.tokens(view, window)
        tokens = self._snip(view, window, tokens, int(effective * SNIP_SHARE))
        edits = microcompact.server_edit(window, context, effective)
        if edits is None and (clear := microcompact.plan(self.draw(messages), context, self.clock.now())):
            self._change(clear, messages, window)
            tokens = self.tokens(self.draw(messages), window)
        if context.collapse and tokens >= effective * context.collapse_commit and self.commit(messages, window):
            tokens = self.tokens(self.draw(messages), window)
        return Outcome(
            view=self.draw(messages),
            tokens=tokens,
            pressure=self._pressure(tokens, effective, tracking),
            context_management=edits,
        )

    def tokens(self, view: Sequence[Message], window: Window) -> int:
        """About how many tokens the view has; what was snipped since the last answer is known to be gone."""
        answer = next((msg.id for msg in reversed(view) if msg.role == "assistant" and msg.usage), "")
        freed = self._freed[1] if self._freed[0] == answer else 0
        return prompt_tokens(view, window, self.changed_at, self.fixed) - freed

    def commit(self, messages: tuple[Message, ...], window: Window) -> bool:
        """Step 4's commit: everything staged becomes a decision. Whether there was anything."""
        staged, self.staged = self.staged, []
        for one in staged:
            self._change(one, messages, window)
        return bool(staged)

    def decide(self, decision: Decision) -> None:
        """Take a decision. It holds from now on, and waits in `take_new` to be recorded before it is sent."""
        self.decisions.append(decision)
        self._new.append(decision)

    def take_new(self) -> list[Decision]:
        """The decisions that are not recorded yet."""
        new, self._new = self._new, []
        return new

    def restart(self, messages: tuple[Message, ...]) -> None:
        """A compaction lies behind, `messages` is what stands for the history: only decisions about what it kept still
        say anything."""
        ids = {block["tool_use_id"] for message in messages for block in message.tool_results}
        self.decisions = [decision for decision in self.decisions if _speaks_of(decision, ids)]
        self.staged.clear()
        self.changed_at = self.clock.now()

    def _budget(self, messages: tuple[Message, ...]) -> None:
        for message in reversed(messages):
            if message.role == "assistant":
                break
            spill = tool_result_budget.plan(message, self.settings.tools, self.spill)
            if spill is not None and spill not in self.decisions:
                self.decide(spill)

    def _snip(self, view: tuple[Message, ...], window: Window, tokens: int, threshold: int) -> int:
        decision = None if window.binds_thinking else snip.plan(view, window, tokens, threshold)
        if decision is None:
            return tokens
        self.decide(decision)
        answer = next((msg.id for msg in reversed(view) if msg.role == "assistant" and msg.usage), "")
        self._freed = (answer, decision.tokens)
        return tokens - decision.tokens

    def _change(self, decision: Clear | Collapse, messages: tuple[Message, ...], window: Window) -> None:
        self.decide(decision)
        self.changed_at = self.clock.now()
        if window.binds_thinking and messages:
            self.decide(StripThinking(messages[-1].id))

    def _pressure(self, tokens: int, effective: int, tracking: Tracking) -> Pressure:
        context = self.settings.context
        found = autocompact.pressure(tokens, effective, context, tracking)
        stands_back = context.collapse and self.staging and tokens < effective - context.blocking_buffer
        return Pressure.ROOM if found is Pressure.COMPACT and stands_back else found

    def stretch(self, messages: tuple[Message, ...], window: Window) -> collapse.Stretch | None:
        """What to stage next, in the background; None when there is nothing, or something is being staged."""
        if self.staging or not self.settings.context.collapse:
            return None
        view = self.draw(messages)
        effective = effective_window(window, self.settings.context)
        return collapse.next_stretch(view, window, self.tokens(view, window), effective, self.staged)


def _speaks_of(decision: Decision, tool_use_ids: set[str]) -> bool:
    match decision:
        case Spill(texts=texts):
            return not tool_use_ids.isdisjoint(texts)
        case Clear(tool_use_ids=ids):
            return not tool_use_ids.isdisjoint(ids)
        case _:
            return False
