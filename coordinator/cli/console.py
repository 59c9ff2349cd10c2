"""`Console`: the one way out of every command.

Rules:

1. stdout carries data only; notices, progress and errors go to stderr.
2. Colour and live regions only where stdout is a terminal and NO_COLOR is not set; elsewhere whole plain lines.
3. A pipe that was closed is quiet: what is written after goes nowhere, and `closed` says so to who would write for ever.
   So is a terminal that was hung up: the callback of `when_hung_up` is told.
4. Nothing here interprets text: rich's markup, emoji names and highlighting are off everywhere.
5. While a person types at the bottom of the terminal, whoever draws there (`write_above`) says when lines can be written.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from coordinator.views.terminal_text import columns, escape_json

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from coordinator.cli.render import Grid, Line

Above = Callable[[Callable[[], None]], None]
"""Takes what writes whole lines to the terminal, and calls it, in order, when that disturbs nothing."""


SYNC_ON, SYNC_OFF = "\x1b[?2026h", "\x1b[?2026l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ERASE_LINE, ERASE_BELOW = "\x1b[2K", "\x1b[J"


class Console:
    """stdout and stderr of one command."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._rich: RichConsole | None = None
        self.closed = False
        self._live_region: Region | None = None
        self._on_hangup: Callable[[], object] = lambda: None
        self._above: Above | None = None
        self._give_back: Callable[[], object] = lambda: None
        self._terminals = [stream for stream in (self._out, self._err) if _is_terminal(stream)]
        for stream in (self._out, self._err):
            if isinstance(stream, io.TextIOWrapper):
                with suppress(ValueError):
                    stream.reconfigure(errors="backslashreplace")

    def when_hung_up(self, tell: Callable[[], object]) -> None:
        """Call `tell` once output to a hung-up terminal fails."""
        self._on_hangup = tell

    def write_above(self, above: Above | None, give_back: Callable[[], object] = lambda: None) -> None:
        """From now on what goes to a terminal is given to `above`; None: it is written at once. `give_back` has the
        terminal as it was found."""
        self._above, self._give_back = above, give_back

    def give_back(self) -> None:
        """The process leaves at once: take away what is drawn, and what was done to the terminal."""
        self._give_back()

    @property
    def is_terminal(self) -> bool:
        return _is_terminal(self._out)

    @property
    def has_colour(self) -> bool:
        return self.is_terminal and not self.rich.no_color and self.rich.is_terminal and not self.rich.is_dumb_terminal

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where lines are never cut."""
        return self.size[0] if self.is_terminal else None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal."""
        import shutil

        return shutil.get_terminal_size((80, 24))

    @property
    def rich(self) -> RichConsole:
        if self._rich is None:
            from rich.console import Console as RichConsole

            self._rich = RichConsole(file=self._out, markup=False, emoji=False, highlight=False, soft_wrap=True)
        return self._rich

    def line(self, text: str = "") -> None:
        """One line (or several) of data."""
        self._write(self._out, text + "\n")

    def text(self, text: str) -> None:
        """Data as it is, without a line end."""
        self._write(self._out, text)

    def data(self, data: bytes) -> None:
        """Bytes as they are: for a pipe, whose reader takes them byte for byte."""
        if self.closed:
            return
        with self._quiet_pipe():
            self._out.flush()
            self._out.buffer.write(data)
            self._out.buffer.flush()

    def json(self, value: Any) -> None:
        """`value` as JSON: indented for a person's terminal, one line elsewhere."""
        indent = 2 if self.is_terminal else None
        self.line(self._as_json(value, indent=indent))

    def json_line(self, value: Any) -> None:
        self.line(self._as_json(value, separators=(",", ":")))

    def _as_json(self, value: Any, **form: Any) -> str:
        """JSON that any encoding of stdout can write: where that is not UTF-8, escapes stand for what is not ASCII."""
        import json

        is_utf8 = (getattr(self._out, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
        return escape_json(json.dumps(value, ensure_ascii=not is_utf8, **form))

    def styled(self, line: Line) -> None:
        """One line of pieces with styles; the styles are seen where there is colour."""
        if not self.has_colour:
            self.line("".join(piece.text for piece in line).rstrip())
            return
        from rich.text import Text

        text = Text.assemble(*((piece.text, piece.style) for piece in line))

        def write() -> None:
            with self._quiet_pipe():
                self.rich.print(text)

        self._when_free(self._out, write)

    def _painted(self, line: Line) -> str:
        """The line with its styles as escape codes."""
        from rich.text import Text

        with self.rich.capture() as painted:
            self.rich.print(Text.assemble(*line), end="", soft_wrap=True)
        return painted.get()

    def grid(self, grid: Grid) -> None:
        from coordinator.cli.render import lay_out

        for line in lay_out(grid, self.width):
            self.styled(line)

    def prompt(self, text: str) -> None:
        """A prompt for the person, on stderr, without a line end."""
        self._write(self._err, text)

    def note(self, text: str) -> None:
        """A notice for the person, on stderr; above the live region, where there is one and both are the terminal."""
        if self._live_region is not None and _is_terminal(self._err):
            self._live_region.say_above(text)
        else:
            self._write(self._err, text + "\n")

    def _notes_above(self, region: Region | None) -> None:
        """From now on, where there is one."""
        self._live_region = region

    def error(self, text: str, more: Sequence[str] = ()) -> None:
        self.note("\n".join([f"coordinator: {text}", *(f"  {line}" for line in more)]))

    def region(self) -> Region:
        """A region of the terminal that is drawn anew in place; only where `has_colour`."""
        return Region(self)

    def flush(self) -> None:
        for stream in (self._out, self._err):
            with self._quiet_pipe(stream):
                stream.flush()

    def notice_hangup(self) -> None:
        """Look whether a terminal that was there is gone: nothing says so to who has nothing to write."""
        gone = [stream for stream in self._terminals if not _is_terminal(stream)]
        if gone:
            self._terminals = []
            for stream in gone:
                self._pipe_closed(stream)
            self._on_hangup()

    def _write(self, stream: TextIO, text: str) -> None:
        if stream is self._out and self.closed:
            return

        def write() -> None:
            with self._quiet_pipe(stream):
                stream.write(text)
                stream.flush()

        self._when_free(stream, write)

    def _when_free(self, stream: TextIO, write: Callable[[], None]) -> None:
        if self._above is not None and _is_terminal(stream):
            self._above(write)
        else:
            write()

    def _quiet_pipe(self, stream: TextIO | None = None) -> AbstractContextManager[None]:
        return _QuietPipe(self, self._out if stream is None else stream)

    def _pipe_closed(self, stream: TextIO) -> None:
        """Points the descriptor at nothing, so that the interpreter's own flush at the end is quiet too."""
        if stream is self._out:
            self.closed = True
        with suppress(OSError, AttributeError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class Region:
    """Lines at the bottom of the terminal, drawn anew in place until it is closed; then they are gone. A context
    manager.

    Only lines that changed are written, each after it was erased, a frame in one piece that terminals which know
    synchronised output (mode 2026) show at once: nothing flickers. The cursor is hidden and stands below the last line. After
    a change of size the terminal has wrapped the old lines anew; how many it made of them is worked out from their widths.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Line] = []
        self._size = console.size
        console._notes_above(self)
        self._write(HIDE_CURSOR)

    def draw(self, lines: Sequence[Line]) -> None:
        size, before = self._console.size, self._up()
        if size != self._size:
            before, self._lines, self._size = before + ERASE_BELOW, [], size
        elif list(lines) == self._lines:
            return
        self._write(before + self._changes(list(lines)))

    def say_above(self, text: str) -> None:
        """Lines that stay, above what is drawn in place."""
        again, before = self._lines, self._up()
        self._lines = []
        self._write(before + ERASE_BELOW + text + "\n" + self._changes(again))

    def close(self) -> None:
        self._console._notes_above(None)
        self._write(self._up() + ERASE_BELOW + SHOW_CURSOR)
        self._lines = []

    def _up(self) -> str:
        """To the first line of what is drawn, as the terminal shows it now."""
        width = max(1, self._console.size[0])
        rows = sum(max(1, -(-sum(columns(piece.text) for piece in line) // width)) for line in self._lines)
        return f"\x1b[{rows}A\r" if rows else "\r"

    def _changes(self, lines: list[Line]) -> str:
        """From the first line drawn to below the last of `lines`, whatever was there."""
        old, self._lines = self._lines, lines
        parts = [
            "\x1b[B" if i < len(old) and old[i] == line else f"{ERASE_LINE}{self._console._painted(line)}\n"
            for i, line in enumerate(lines)
        ]
        return "".join((*parts, ERASE_BELOW))

    def _write(self, text: str) -> None:
        self._console._write(self._console._out, f"{SYNC_ON}{text}{SYNC_OFF}")

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _QuietPipe:
    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, BrokenPipeError):
            self._console._pipe_closed(self._stream)
            return True
        if isinstance(error, OSError) and error.errno == errno.EIO and self._stream in self._console._terminals:
            self._console.notice_hangup()
            return True
        return False


def _is_terminal(stream: TextIO) -> bool:
    with suppress(AttributeError, ValueError):
        return stream.isatty()
    return False
