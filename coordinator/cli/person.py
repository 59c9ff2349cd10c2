"""The person at the terminal: the lines they type, and the questions they are asked.

One line goes to the oldest open question, if there is one, else to whoever listens. stdin is read on the event loop, never
by a thread: a thread that waits for a line would hold the process open at its end.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
import termios
from collections import deque
from collections.abc import Callable

CHUNK = 65_536  # bytes


class Person:
    """Belongs to one event loop. `on_line` gets lines nobody asked for, `on_end` is called at end of input."""

    def __init__(self, on_line: Callable[[str], None] | None = None, on_end: Callable[[], None] | None = None) -> None:
        self._on_line = on_line
        self._on_end = on_end
        self._questions: deque[asyncio.Future[str | None]] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._reading = False
        self._ended = False

    async def answer(self) -> str | None:
        """The next line typed at a terminal since `forget_what_was_typed`, or the next line of a pipe; None at end of
        input. What a person typed before they saw the question, or the rest of what they pasted, is no answer to it."""
        if self._ended:
            return None
        question: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        try:
            self.listen()
            return await question
        finally:
            if question in self._questions:
                self._questions.remove(question)

    def listen(self) -> None:
        """Begin to read, if that has not begun."""
        if self._reading or self._ended:
            return
        self._reading = True
        try:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._readable)
        except PermissionError:  # a file cannot be waited for; it is all there already
            asyncio.get_running_loop().call_soon(self._read_all)
        except (OSError, ValueError):
            asyncio.get_running_loop().call_soon(self._end)

    def close(self) -> None:
        if self._reading and not self._ended:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._reading = False

    def forget_what_was_typed(self) -> None:
        """To be called before a question is shown, never after: what is typed once it stands there is its answer."""
        if not self._questions and sys.stdin.isatty():
            self._rest = ""
            with contextlib.suppress(OSError, termios.error):  # a terminal that was hung up
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)

    def _readable(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._take(self._decoder.decode(data))
        else:
            self.close()
            self._end()

    def _read_all(self) -> None:
        while data := os.read(sys.stdin.fileno(), CHUNK):
            self._take(self._decoder.decode(data))
        self._end()

    def _take(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._give(line)

    def _give(self, line: str) -> None:
        while self._questions:
            question = self._questions.popleft()
            if not question.done():
                question.set_result(line)
                return
        if self._on_line:
            self._on_line(line)

    def _end(self) -> None:
        if self._rest:
            self._give(self._rest)
        self._ended = True
        for question in self._questions:
            if not question.done():
                question.set_result(None)
        if self._on_end:
            self._on_end()
