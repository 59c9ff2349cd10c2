"""What a person's lines become: messages of the session, commands, the end of the chat.

Lines are done one after the other, in the order in which they were typed, however long one takes; typing never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coordinator.agents import slash
from coordinator.cli.chat.commands import COMMANDS, Command, Desk, Unusable, own_commands, unknown
from coordinator.cli.context import Context
from coordinator.cli.failures import Failure, translate
from coordinator.other_processes.refusal import Refusal
from coordinator.views.terminal_text import literal
from tasks.errors import DatabaseError, StoreError
from worker_agent.errors import ConfigError
from worker_agent.words import counted

if TYPE_CHECKING:
    from coordinator.session.handle import SessionHandle

CANNOT = (Unusable, Refusal, StoreError, ConfigError, OSError)


class Sight(Protocol):
    """Who shows what becomes of a line."""

    def queued(self, typed: str, sent: str) -> None:
        """`typed` was sent, as `sent`; the coordinator reads it at its next step."""
        ...

    def refused(self, sent: str) -> None:
        """It is not read: a hook refused it."""
        ...

    def done(self) -> None:
        """A line was done that leads to no turn."""
        ...


class Conversation:
    """Belongs to one event loop. `lines` are those to begin with. `next_session` is the one to go on with afterwards;
    `has_left`: the person only waits for what still runs."""

    def __init__(self, cli: Context, sight: Sight, lines: Iterable[str] = ()) -> None:
        self.next_session: str | None = None
        self._cli = cli
        self._console = cli.console
        self._sight = sight
        self._handle: SessionHandle | None = None
        self.has_left = False
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()  # None: the person leaves
        for line in lines:
            self._lines.put_nowait(line)
        self._working: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()

    def ready(self, handle: SessionHandle) -> None:
        self._handle = handle
        self._working = asyncio.create_task(self._work(handle), name="lines of the chat")
        self._working.add_done_callback(lambda work: self._say_why(work, handle))

    def _say_why(self, work: asyncio.Task[None], handle: SessionHandle) -> None:
        """Nobody would read what is typed from here on."""
        if not work.cancelled() and (error := work.exception()) is not None:
            self._tell(translate(error))
            handle.terminate()

    def line(self, text: str) -> None:
        """What the person typed; also before the session is there."""
        self._lines.put_nowait(text)

    def at_once(self, command: str) -> None:
        """A command that waits for no line before it: a message may be held up by its hooks."""
        assert self._handle is not None
        task = asyncio.ensure_future(self._try(self._desk(self._handle), command))
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def unread(self) -> list[str]:
        """What was typed and nobody looked at: it is for the next session."""
        lines = [self._lines.get_nowait() for _ in range(self._lines.qsize())]
        return [line for line in lines if line is not None]

    def leave(self) -> None:
        """What was typed before is done before."""
        self._lines.put_nowait(None)

    # ── lines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, handle: SessionHandle) -> None:
        desk = self._desk(handle)
        while self.next_session is None:
            text = await self._lines.get()
            if text is None:
                self._leave(handle)
            else:
                await self._try(desk, text)

    def _desk(self, handle: SessionHandle) -> Desk:
        return Desk(
            console=self._console, handle=handle, now=self._cli.now, leave=lambda: self._leave(handle), switch=self._switch
        )

    async def _try(self, desk: Desk, text: str) -> None:
        try:
            await self._take(desk, text)
        except DatabaseError:
            return  # the session itself ends by it, and says so
        except CANNOT as error:
            self._tell(Failure(str(error)) if isinstance(error, Unusable) else translate(error))
            self._sight.done()

    def _tell(self, failure: Failure) -> None:
        self._console.error(literal(failure.message), [literal(line) for line in failure.more])

    async def _take(self, desk: Desk, text: str) -> None:
        if not text.strip():
            self._sight.done()
            return
        desk.handle.forget_interrupts()
        name, arguments = slash.called(text) or ("", "")
        if (command := COMMANDS.get(name)) is not None:
            await self._do(command, desk, arguments)
        elif self.has_left:
            self._console.note("not sent: you have left, and only wait for what still runs")
        else:
            await self._say(desk.handle, text, name)

    async def _do(self, command: Command, desk: Desk, arguments: str) -> None:
        await command.run(desk, arguments.strip())
        if not self.has_left:
            self._sight.done()

    async def _say(self, handle: SessionHandle, text: str, name: str) -> None:
        """A message; what `/name` and `@path` in it stand for is read by a thread."""
        sent, notes = await asyncio.to_thread(_meant, text, name, handle)
        for note in notes:
            self._console.note(literal(note))
        sent = handle.redact(sent)
        self._sight.queued(text, sent)
        if await handle.send(sent) is not None:  # a notice has told why
            self._sight.refused(sent)
            self._sight.done()

    # ── leaving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _leave(self, handle: SessionHandle) -> None:
        if self.has_left:
            return
        self.has_left = True
        with suppress(DatabaseError):
            if live := handle.live_tasks():
                verbs, those = ("runs and is", "it") if len(live) == 1 else ("run and are", "them")
                self._console.note(f"{counted(len(live), 'task')} still {verbs} waited for; Ctrl+C stops {those}")
        handle.close()

    def _switch(self, session_id: str) -> None:
        self.next_session = session_id
        assert self._handle is not None
        self._leave(self._handle)


def _meant(text: str, name: str, handle: SessionHandle) -> tuple[str, list[str]]:
    """What is sent for a typed message, and lines for the person. Raises `Unusable`, `ConfigError`. Reads the disk."""
    from coordinator.cli import attached

    notes: list[str] = []
    sent = text
    if name and not Path("/", name).exists():
        own = own_commands(handle.skills.discover())
        if name not in own and all(skill.name != name for skill in handle.skills.discover()):
            raise Unusable(unknown(name, list(own)))
        expanded = slash.expand(text, handle.skills)
        if expanded is not None:
            sent = expanded.prompt
            if expanded.tools:
                notes.append(f"/{name}: what it wants to use unasked is asked for as usual in a chat")
    if "@" in text:
        found = attached.files(text, Path(handle.cwd), media=False)
        notes += found.notes
        sent = "\n\n".join(filter(None, (sent, found.text)))
    return sent, notes
