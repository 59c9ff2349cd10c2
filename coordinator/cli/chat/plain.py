"""The chat line by line: for pipes, dumb terminals, and wherever stdout is no terminal.

What the coordinator says goes to stdout as it is written, a line at a time; everything else to stderr. The terminal itself
echoes and edits what is typed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.cli.approval import TerminalApprover
from coordinator.cli.chat.conversation import Conversation
from coordinator.cli.console import Console
from coordinator.cli.context import Context
from coordinator.cli.person import Person
from coordinator.cli.run_views import PlainView, Started, headline
from coordinator.observed import Observed, TaskChanged
from coordinator.views.terminal_text import literal, one_line
from worker_agent.events import MessageAdded, Result, TextDelta, Tombstone
from worker_agent.tools.base import Approver

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle

PROMPT = "> "


class ChatView(PlainView):
    """What the coordinator says on stdout, line by line as it is written; the rest on stderr."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._line = ""
        self._streamed = False
        self._names: dict[str, str] = {}  # of tasks

    def started(self, session: Started) -> None:
        self._console.note(f"{headline(session)}\nType a message; /help lists commands, /quit leaves.")

    def called(self, task_id: str | None) -> str:
        """Who a task is, for a person."""
        if task_id is None:
            return "the coordinator"
        name = self._names.get(task_id)
        return f"{name} ({task_id})" if name else task_id

    def on(self, observed: Observed) -> None:
        if isinstance(observed.event, TaskChanged):
            task = observed.event.task
            self._names[task.id] = one_line(task.name or task.definition or "")
        if observed.task_id is not None:
            super().on(observed)
            return
        match observed.event:
            case TextDelta(text):
                self._stream(text)
            case MessageAdded(message) if message.kind == "answer":
                self._flush(message.text)
            case Tombstone():
                self._line, self._streamed = "", False
            case Result(error=error, turns=turns, text=text):
                if error:
                    self._console.error(literal(error))
                elif not turns:  # a command's answer: no model said it, so nothing has shown it yet
                    self._console.line(literal(text))
                self.done()
            case _:
                super().on(observed)

    def _stream(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        self._streamed = True
        for line in lines:
            self._console.line(literal(line))

    def _flush(self, whole: str) -> None:
        rest = self._line if self._streamed else whole
        self._line, self._streamed = "", False
        if rest:
            self._console.line(literal(rest))

    # ── as the sight of a conversation: the terminal has shown the line itself ─────────────────────────────────────

    def queued(self, typed: str, sent: str) -> None:
        return None

    def refused(self, sent: str) -> None:
        return None

    def done(self) -> None:
        """Show that it is the person's turn."""
        if self._console.is_terminal and sys.stdin.isatty():
            self._console.prompt(PROMPT)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._flush("")


class PlainChat:
    """The parts of one chat line by line, as `Drive` takes them."""

    def __init__(self, cli: Context, lines: Iterable[str], *, begun: bool) -> None:
        """`begun`: it begins with a turn."""
        self._begun = begun
        self.view = ChatView(cli.console)
        self.conversation = Conversation(cli, self.view, lines)
        self.person = Person(self.conversation.line, self.conversation.leave)
        self._console = cli.console

    def ready(self, handle: SessionHandle) -> None:
        self.conversation.ready(handle)
        self.person.listen()
        if not self._begun:
            self.view.done()

    @property
    def approver(self) -> Approver | None:
        """None where nobody can be asked. A line that answers no question is a line as every other."""
        if not sys.stdin.isatty():
            return None
        pass_on: Callable[[str], None] = self.conversation.line
        return TerminalApprover(self._console, self.person, self.view, called=self.view.called, pass_on=pass_on)
