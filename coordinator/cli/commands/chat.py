"""`coordinator chat`: a plain conversation; what is typed while workers run is read at the next step.

A line is a message. `/quit`, `/exit` or the end of input leave: workers that still run are waited for, and the person is
told so. On a terminal Ctrl+C ends the turn, again stops the workers, a third time leaves at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import run_flags
from coordinator.cli.commands.run import check, options_of
from coordinator.cli.console import Console
from coordinator.cli.context import Context
from coordinator.cli.directory import ConfiguredCommand
from coordinator.cli.drive import Drive
from coordinator.cli.person import Person
from coordinator.cli.run_views import PlainView, Started, headline
from coordinator.observed import Observed
from coordinator.views.terminal_text import literal
from worker_agent.events import MessageAdded, Result, TextDelta, Tombstone
from worker_agent.words import counted

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle

LEAVE = frozenset({"/quit", "/exit"})
PROMPT = "> "


class ChatView(PlainView):
    """What the coordinator says on stdout, line by line as it is written; the rest on stderr."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._line = ""
        self._streamed = False

    def started(self, session: Started) -> None:
        self._console.note(f"{headline(session)}\nType a message; /quit leaves.")

    def on(self, observed: Observed) -> None:
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
                self.ask()
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

    def ask(self) -> None:
        """Show that it is the person's turn."""
        if self._console.is_terminal and sys.stdin.isatty():
            self._console.prompt(PROMPT)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._flush("")


class Conversation:
    """Lines typed become messages of the session."""

    def __init__(self, console: Console, view: ChatView, *, begun: bool) -> None:
        self._console = console
        self._view = view
        self._begun = begun
        self._handle: SessionHandle | None = None
        self._left = False
        self._sending: set[asyncio.Task[str | None]] = set()
        self.person = Person(self._line, self._leave)

    def ready(self, handle: SessionHandle) -> None:
        self._handle = handle
        self.person.listen()
        if not self._begun:
            self._view.ask()

    def _line(self, line: str) -> None:
        assert self._handle is not None
        if self._left:
            return
        if line.strip() in LEAVE:
            self._leave()
        elif line.strip():
            task = asyncio.ensure_future(self._handle.send(line))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        else:
            self._view.ask()

    def _leave(self) -> None:
        """What was typed before is sent before."""
        handle = self._handle
        assert handle is not None
        if self._left:
            return
        self._left = True
        if live := handle.live_tasks():
            verbs, those = ("runs and is", "it") if len(live) == 1 else ("run and are", "them")
            self._console.note(f"{counted(len(live), 'task')} still {verbs} waited for; Ctrl+C stops {those}")
        pending = asyncio.gather(*self._sending)
        pending.add_done_callback(lambda _: handle.close())


@click.pass_context
def _chat(ctx: click.Context, /, prompt: str | None, **flags: Any) -> int:
    cli = ctx.find_object(Context)
    assert cli is not None
    options = replace(options_of(ctx, cli, prompt or None, flags), interactive=True, watched=cli.console.is_terminal)
    check(options)
    view = ChatView(cli.console)
    conversation = Conversation(cli.console, view, begun=prompt is not None)
    drive = Drive(console=cli.console, options=options, view=view, person=conversation.person, on_ready=conversation.ready)
    return drive.run()


chat = click.command("chat", cls=ConfiguredCommand, help="Talk with the coordinator; type while workers run.")(
    run_flags.apply(
        [click.argument("prompt", required=False), *run_flags.WORK, *run_flags.CONTINUING],
        _chat,
    )
)
