"""`coordinator chat`: talk with the coordinator; what is typed while workers run is read at the next step.

`/quit` or the end of input leaves: workers that still run are waited for, and the person is told so. On a terminal Ctrl+C
ends the turn, again stops the workers, a third time leaves at once. `/resume ID` leaves for another session.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from coordinator.cli import run_flags
from coordinator.cli.chat.conversation import Conversation
from coordinator.cli.chat.plain import PlainChat
from coordinator.cli.commands.run import check, options_of, with_attachments
from coordinator.cli.context import Context
from coordinator.cli.directory import ConfiguredCommand
from coordinator.cli.drive import Drive
from coordinator.options import RunOptions
from worker_agent.structs import replace

# Flags that say which session is meant: the first one.
OF_THE_FIRST: Mapping[str, Any] = {"continue_last": False, "fork_session": False, "session_id": None}


@click.pass_context
def _chat(ctx: click.Context, /, prompt: str | None, **flags: Any) -> int:
    cli = ctx.find_object(Context)
    assert cli is not None
    is_typed = (prompt or "").lstrip().startswith("/")  # it is done as if it were typed
    goal, lines = (None, [prompt or ""]) if is_typed else (prompt or None, [])
    while True:
        options = with_attachments(cli, options_of(ctx, cli, goal, flags), goal, beside=False)
        suggest = options.chat_suggest and _has_screen(cli)  # line by line nobody would see it
        options = replace(options, interactive=True, watched=cli.console.is_terminal, chat_suggest=suggest)
        check(options)
        code, conversation = _talk(cli, options, lines, goal)
        if conversation.next_session is None:
            return code
        goal, lines = None, conversation.unread()
        flags = {**flags, **OF_THE_FIRST, "resume": conversation.next_session}


def _talk(cli: Context, options: RunOptions, lines: Sequence[str], goal: str | None) -> tuple[int, Conversation]:
    """One session: its exit code, and what was talked in it. `goal` is what the person typed on the command line."""
    if _has_screen(cli):
        return _talk_on_a_screen(cli, options, lines, goal)
    chat = PlainChat(cli, lines, begun=options.prompt is not None)
    drive = Drive(
        console=cli.console, options=options, view=chat.view, person=chat.person, on_ready=chat.ready, approver=chat.approver
    )  # fmt: skip
    return drive.run(), chat.conversation


def _has_screen(cli: Context) -> bool:
    """Whether there is a terminal at both ends that can move its cursor."""
    return sys.stdin.isatty() and cli.console.is_terminal and not cli.console.rich.is_dumb_terminal


def _talk_on_a_screen(cli: Context, options: RunOptions, lines: Sequence[str], goal: str | None) -> tuple[int, Conversation]:
    from coordinator.cli.chat.screen import ChatScreen

    screen = ChatScreen(cli, lines, options.cwd, goal=goal)
    drive = Drive(
        console=cli.console, options=options, view=screen, on_ready=screen.ready, approver=screen, beside=screen.editor
    )  # fmt: skip
    return drive.run(), screen.conversation


chat = click.command("chat", cls=ConfiguredCommand, help="Talk with the coordinator; type while workers run.")(
    run_flags.apply(
        [click.argument("prompt", required=False), *run_flags.WORK, *run_flags.CONTINUING, *run_flags.CHAT],
        _chat,
    )
)
