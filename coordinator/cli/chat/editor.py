"""The line one types on, at the bottom of the terminal, with what stands around it: prompt_toolkit, and nothing of sessions.

1. The terminal is raw from the first moment to the last: what is typed is never echoed into what is printed. Keys that would be
   signals there (Ctrl+C, Ctrl+Z) are made signals again.
2. Everything that is printed meanwhile goes above: what is drawn is taken away, the lines are written, it is drawn again, all of a
   frame's lines at once.
3. Brackets around pastes stay on all the time, so that three pasted lines are never three prompts.
4. Most terminals fold lines anew when they get narrower: on a resize as many rows more are taken away as the drawn lines then
   fill. prompt_toolkit has no public place for this, hence the overridden `_on_resize`.
5. A terminal that is gone is no error here: whoever owns it notices and ends.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.auto_suggest import AutoSuggest, AutoSuggestFromHistory, Suggestion
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.cursor_shapes import CursorShape
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, has_focus, is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
from prompt_toolkit.key_binding.bindings.auto_suggest import load_auto_suggest_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import AppendAutoSuggestion
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from coordinator.cli.console import Console
from coordinator.cli.render import Line

NEVER = float("-inf")
FRAME = 0.04  # seconds for which lines are gathered before they are printed
ESCAPE = 0.05  # seconds until an escape is a key of its own
ALT = 0.3  # seconds until one stands alone, where a longer key begins with it
MENU = 6  # rows of offers
LONG_PASTE = 12  # lines; longer ones stand as one word on the line
PROMPT = "> "
COLOURS = ("cyan", "green", "red", "yellow", "magenta")
STYLE = Style.from_dict({
    "auto-suggestion": "dim",
    "completion-menu": "bg:default fg:default",
    "completion-menu.completion": "bg:default fg:default",
    "completion-menu.completion.current": "reverse",
    "completion-menu.meta.completion": "bg:default fg:default dim",
    "completion-menu.meta.completion.current": "reverse",
    "scrollbar.background": "", "scrollbar.button": "reverse",
})  # fmt: skip

Lines = Callable[[int, int], Sequence[Line]]
"""Lines for a width and a height of the terminal."""


class Editor:
    """An async context manager: between its ends a person types. `on_line` gets a text and the moment (monotonic) at which its
    first character was typed. `on_stop` is Escape, `on_end` Ctrl+D on an empty line, `on_gone` the end of the terminal."""

    def __init__(
        self,
        console: Console,
        *,
        above: Lines,
        below: Lines,
        on_line: Callable[[str, float], None],
        on_stop: Callable[[], object],
        on_end: Callable[[], object],
        on_gone: Callable[[], object],
        history: History,
        completer: Completer,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._console = console
        self._on_line = on_line
        self._on_stop, self._on_end, self._on_gone = on_stop, on_end, on_gone
        self._above, self._below = above, below
        self._waiting: deque[Callable[[], None]] = deque()  # to be printed
        self._printing: asyncio.TimerHandle | None = None
        self._pastes: dict[str, str] = {}  # what stands on the line for a long paste, and its text
        self._began: float | None = None  # when the text on the line was begun
        self._suggested = ""  # for an empty line
        self._found: list[object] | None = None  # how the terminal was found
        self._buffer = _Line(
            multiline=True,
            history=history,
            completer=completer,
            complete_while_typing=True,
            auto_suggest=_Suggesting(lambda: self._suggested),
            on_text_changed=self._changed,
        )
        self._output = output or _Terminal.of(sys.stdout)
        colours = ColorDepth.DEPTH_1_BIT if console.rich.no_color else None
        self._app = _Application(
            layout=self._layout(),
            key_bindings=merge_key_bindings([load_auto_suggest_bindings(), self._keys()]),
            style=STYLE,
            color_depth=colours,
            cursor=CursorShape._NEVER_CHANGE,
            input=input or create_input(),
            output=self._output,
        )
        self._is_terminal = input is None
        self._running: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    # ── from and to the terminal ───────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Editor:
        with suppress(termios.error, ValueError, OSError):
            self._found = termios.tcgetattr(sys.stdin.fileno())
        self._console.write_above(self.print_above, self._give_back)
        self._running = asyncio.create_task(self._run(), name="editor")
        await self._begun.wait()  # it is drawn before anything that takes long
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._running is not None
        self._print()
        self._leave_brackets()
        if self._app.is_running:
            self._app.exit()
        with suppress(asyncio.CancelledError):
            await self._running
        self._console.write_above(None)
        self._print()

    async def _run(self) -> None:
        try:
            await self._app.run_async(self._begin, handle_sigint=False, set_exception_handler=False)
        except (EOFError, OSError, termios.error):  # the terminal is gone
            self._on_gone()
        finally:
            self._begun.set()

    def _begin(self) -> None:
        """Just before the terminal is raw: a line that was typed while the program started is sent, several (a paste) are only
        put on the line."""
        self._begun.set()
        *lines, rest = self._typed_ahead().split("\n")
        if len(lines) == 1:
            self._on_line(lines[0], NEVER)
        else:
            rest = "\n".join([*lines, rest])
        self._buffer.insert_text(rest)

    def _typed_ahead(self) -> str:
        if not self._is_terminal:
            return ""
        parts, number = [], sys.stdin.fileno()
        with suppress(OSError, ValueError):
            while select.select([number], [], [], 0)[0] and (part := os.read(number, 65_536)):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def _give_back(self) -> None:
        """For who leaves at once: nothing is awaited."""
        self._leave_brackets()
        with suppress(OSError):
            if self._app.is_running:
                self._app.renderer.erase()
        if self._found is not None:
            with suppress(termios.error, ValueError, OSError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._found)  # type: ignore[arg-type]  # as it was read
        self._console.write_above(None)
        self._print()

    def _leave_brackets(self) -> None:
        if isinstance(self._output, _Terminal):
            self._output.leave()

    # ── printing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def print_above(self, write: Callable[[], None]) -> None:
        """As `console.Above`."""
        self._waiting.append(write)
        if self._printing is None:
            self._printing = asyncio.get_running_loop().call_later(FRAME, self._print)

    def _print(self) -> None:
        if self._printing is not None:
            self._printing.cancel()
            self._printing = None
        if not self._waiting:
            return
        if self._app.is_running:
            self._app.renderer.erase()
        while self._waiting:
            self._waiting.popleft()()
        if self._app.is_running:
            self._app.invalidate()

    def refresh(self) -> None:
        """What stands around the line has changed."""
        if self._app.is_running:
            self._app.invalidate()

    def ring(self) -> None:
        """Once, for something that waits for the person."""
        self._output.bell()
        self._output.flush()

    def suggest(self, text: str) -> None:
        """Show `text` in grey on an empty line, to be taken with → or Tab; "" takes it away."""
        self._suggested = text
        if not self._buffer.text:
            self._buffer.suggest(text)
            self.refresh()

    # ── what is drawn ──────────────────────────────────────────────────────────────────────────────────────────────

    def _layout(self) -> Layout:
        search = SearchToolbar()
        line = Window(
            BufferControl(
                self._buffer,
                input_processors=[AppendAutoSuggestion()],
                search_buffer_control=search.control,
                preview_search=True,
            ),
            get_line_prefix=lambda number, wraps: [("bold", PROMPT if not number and not wraps else "  ")],
            height=lambda: Dimension(min=1, max=max(1, self._size.rows // 3)),
            wrap_lines=True,
            dont_extend_height=True,
        )
        menu = CompletionsMenu(max_height=MENU)
        return Layout(
            HSplit([self._around(self._above), line, search, menu, self._around(self._below)], align=VerticalAlign.TOP),
            focused_element=line,
        )

    def _around(self, lines: Lines) -> ConditionalContainer:
        def found() -> Sequence[Line]:
            return lines(self._size.columns, self._size.rows)

        def height() -> Dimension:
            rows = len(found())
            return Dimension(min=0, preferred=rows, max=rows)

        window = Window(FormattedTextControl(lambda: _formatted(found())), height=height, dont_extend_height=True)
        return ConditionalContainer(window, Condition(lambda: bool(found())))

    @property
    def _size(self) -> Size:
        return self._output.get_size()

    # ── keys ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _keys(self) -> KeyBindings:
        keys, typing = KeyBindings(), has_focus(self._buffer) & ~is_searching

        @keys.add(Keys.Enter, filter=typing)
        def _(event: KeyPressEvent) -> None:
            self._enter()

        @keys.add(Keys.Escape, Keys.Enter, filter=typing)
        @keys.add(Keys.ControlJ, filter=typing)
        def _(event: KeyPressEvent) -> None:
            self._buffer.newline(copy_margin=False)

        @keys.add(Keys.Escape, filter=typing)
        def _(event: KeyPressEvent) -> None:
            if self._buffer.complete_state is not None:
                self._buffer.cancel_completion()
            else:
                self._on_stop()

        @keys.add(Keys.Tab, filter=typing & ~has_completions)
        def _(event: KeyPressEvent) -> None:
            if not self._buffer.text and self._suggested:
                self._buffer.insert_text(self._suggested)
            else:
                self._buffer.start_completion(insert_common_part=True)

        @keys.add(Keys.ControlC)
        def _(event: KeyPressEvent) -> None:
            signal.raise_signal(signal.SIGINT)

        @keys.add(Keys.ControlZ)
        def _(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        @keys.add(Keys.ControlD, filter=typing & Condition(lambda: not self._buffer.text))
        def _(event: KeyPressEvent) -> None:
            self._on_end()

        @keys.add(Keys.BracketedPaste, filter=typing)
        def _(event: KeyPressEvent) -> None:
            self._paste(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        return keys

    def _enter(self) -> None:
        buffer = self._buffer
        if buffer.choose():
            return
        if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
            return
        text, began = self._whole(buffer.text), self._began or time.monotonic()
        self._pastes.clear()
        if text.strip():
            self._suggested = ""
            buffer.history.append_string(text)
        buffer.reset()
        self._changed(buffer)
        self._on_line(text, began)

    def _changed(self, buffer: Buffer) -> None:
        if not buffer.text:
            self._began = None
            self._buffer.suggest(self._suggested)
        elif self._began is None:
            self._began = time.monotonic()

    def _paste(self, text: str) -> None:
        text = text.rstrip("\n") if text.count("\n") == 1 and text.endswith("\n") else text
        lines = text.count("\n") + 1
        if lines <= LONG_PASTE and len(text) < LONG_PASTE * 200:
            self._buffer.insert_text(text)
            return
        word = f"[paste {len(self._pastes) + 1}: {lines:,} lines, {len(text):,} characters]"
        self._pastes[word] = text
        self._buffer.insert_text(word)

    def _whole(self, text: str) -> str:
        for word, paste in self._pastes.items():
            text = text.replace(word, paste)
        return text


class _Line(Buffer):
    """What stands on the line."""

    def suggest(self, text: str) -> None:
        """In grey behind it; "" for nothing."""
        self.suggestion = Suggestion(text) if text else None

    def choose(self) -> bool:
        """Whether one of the offers was chosen: it stands on the line, and the others go."""
        chosen = self.complete_state is not None and self.complete_state.current_completion is not None
        self.complete_state = None
        return chosen


class _Application(Application[None]):
    """Rule 4."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(erase_when_done=True, min_redraw_interval=FRAME, terminal_size_polling_interval=None, **parts)
        self.ttimeoutlen, self.timeoutlen = ESCAPE, ALT

    def _on_resize(self) -> None:
        drawn, cursor, columns = self.renderer.last_rendered_screen, self.renderer._cursor_pos, self.output.get_size().columns
        if drawn is not None and self.is_running:
            widths = [max(drawn.data_buffer[y], default=-1) + 1 for y in range(cursor.y)]
            self.output.cursor_up(sum(max(0, width - 1) // columns for width in widths) + cursor.x // columns)
        super()._on_resize()


class _Suggesting(AutoSuggest):
    """On an empty line what the session suggests, else what was typed before and begins so."""

    def __init__(self, suggested: Callable[[], str]) -> None:
        self._suggested = suggested
        self._earlier = AutoSuggestFromHistory()

    def get_suggestion(self, buffer: Buffer, document: Document) -> Suggestion | None:
        if not document.text:
            return Suggestion(text) if (text := self._suggested()) else None
        if document.text.startswith(("/", "!")) or "\n" in document.text:
            return None
        return self._earlier.get_suggestion(buffer, document)


class _Terminal(Vt100_Output):
    """Rules 3 and 5."""

    _is_leaving = False

    def leave(self) -> None:
        """Brackets may go: nothing is typed here any more."""
        self._is_leaving = True

    @classmethod
    def of(cls, stream: TextIO) -> _Terminal:
        def size() -> Size:
            try:
                columns, rows = os.get_terminal_size(stream.fileno())
            except (OSError, ValueError):
                columns, rows = 80, 24
            return Size(rows=rows or 24, columns=columns or 80)

        return cls(stream, size, term=None, enable_cpr=False)

    def disable_bracketed_paste(self) -> None:
        if self._is_leaving:
            super().disable_bracketed_paste()

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._buffer = []


def _formatted(lines: Sequence[Line]) -> StyleAndTextTuples:
    found: StyleAndTextTuples = []
    for i, line in enumerate(lines):
        found += [("", "\n")] if i else []
        found += [(_style(piece.style), piece.text) for piece in line]
    return found


def _style(style: str) -> str:
    """A style as `render` names it, in the names of prompt_toolkit."""
    return " ".join(f"ansi{word}" if word in COLOURS else word for word in style.split())
