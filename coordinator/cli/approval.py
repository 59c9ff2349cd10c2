"""Asking the person at the terminal whether a call may run."""

from __future__ import annotations

import asyncio
import json
from typing import Protocol

from coordinator.cli.console import Console
from coordinator.cli.person import Person
from coordinator.views.terminal_text import one_line
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext

YES = frozenset({"y", "yes"})
INPUT_WIDTH = 400


class Pausing(Protocol):
    """A view that keeps off the terminal while a person is asked."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class TerminalApprover:
    """One question at a time; what is not clearly a yes is a no."""

    def __init__(self, console: Console, person: Person, view: Pausing) -> None:
        self._console = console
        self._person = person
        self._view = view
        self._turn = asyncio.Lock()

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        async with self._turn:
            self._view.pause()
            try:
                who = f"{context.task_id}: " if context.task_id else ""
                shown = input.get(tool.facts.main_field) if tool.facts.main_field else None
                what = shown if isinstance(shown, str) else json.dumps(dict(input), ensure_ascii=False)
                what = context.redact(what)
                self._person.forget_what_was_typed()
                self._console.note(
                    f"{who}{tool.name} {one_line(what, INPUT_WIDTH)}\n  {one_line(ask.reason)}\n  Allow it once? [y/N]  (`coordinator approve` and `deny` answer from elsewhere)"
                )
                answer = await self._person.answer()
            except asyncio.CancelledError:
                self._console.note("  (answered elsewhere, or it does not wait any more)")
                raise
            finally:
                self._view.resume()
        if answer is not None and answer.strip().lower() in YES:
            return Allow(reason="the person allowed it")
        return Deny("the person said no" if not (answer or "").strip() else f"the person said: {answer}")
