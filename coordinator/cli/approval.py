"""Asking the person at the terminal whether a call may run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol

from coordinator.cli.console import Console
from coordinator.cli.person import Person
from coordinator.views.terminal_text import one_line
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext

YES = frozenset({"y", "yes"})
NO = frozenset({"n", "no"})
INPUT_WIDTH = 400
ELSEWHERE = "(`coordinator approve` and `deny` answer from elsewhere)"


class Pausing(Protocol):
    """A view that keeps off the terminal while a person is asked."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class TerminalApprover:
    """One question at a time. What is not clearly a yes is a no; where lines have another reader (`pass_on`), what is
    neither goes there and the question stands. `called` says who a task is."""

    def __init__(
        self,
        console: Console,
        person: Person,
        view: Pausing,
        *,
        called: Callable[[str | None], str] = lambda task_id: task_id or "",
        pass_on: Callable[[str], None] | None = None,
    ) -> None:
        self._console = console
        self._person = person
        self._view = view
        self._called = called
        self._pass_on = pass_on
        self._turn = asyncio.Lock()

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        async with self._turn:
            self._view.pause()
            try:
                self._put(tool, input, ask, context)
                answer = await self._answer()
            except asyncio.CancelledError:
                self._console.note("  (answered elsewhere, or it does not wait any more)")
                raise
            finally:
                self._view.resume()
        if answer is not None and answer.strip().lower() in YES:
            return Allow(reason="the person allowed it")
        said = (answer or "").strip().lower()
        return Deny("the person said no" if not said or said in NO else f"the person said: {answer}")

    def _put(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> None:
        who = f"{called}: " if (called := self._called(context.task_id)) else ""
        shown = input.get(tool.facts.main_field) if tool.facts.main_field else None
        what = shown if isinstance(shown, str) else json.dumps(dict(input), ensure_ascii=False)
        what = context.redact(what)
        choice = "[y/N]" if self._pass_on is None else "[y/n]"
        self._person.forget_what_was_typed()
        self._console.note(
            f"{who}{tool.name} {one_line(what, INPUT_WIDTH)}\n  {one_line(ask.reason)}\n  Allow it once? {choice}  {ELSEWHERE}"
        )

    async def _answer(self) -> str | None:
        """The line that answers; None at the end of input."""
        while True:
            answer = await self._person.answer()
            if answer is None or self._pass_on is None or answer.strip().lower() in YES | NO:
                return answer
            if answer.strip():
                self._pass_on(answer)
