"""Where the program's own log goes: a file under the home directory, to stderr under `--debug`, never anywhere else.

1. What Python prints by itself about an error that nobody caught (a task of the event loop, a thread, a destructor, the
   interpreter's end, a warning) is a record here, so that no traceback reaches a person.
2. The file is opened when something is written, and is private to its owner; a log that cannot be written is no error.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from coordinator.cli.failures import translate
from coordinator.views.terminal_text import literal, without_control
from worker_agent.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.cli.context import Context

NAME = "coordinator.log"
LARGEST = 1_000_000  # bytes; then the file becomes the older of two
FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)


def install(context: Context) -> None:
    """Take over everything that would write to stderr by itself."""
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[LogFile(context)], format=FORMAT, level=logging.WARNING, force=True)
    threading.excepthook = lambda args: uncaught(f"thread {args.thread and args.thread.name}", args.exc_value)
    sys.unraisablehook = lambda args: uncaught(args.err_msg or f"ignored in {args.object!r}", args.exc_value)

    def at_the_top(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        uncaught("nothing caught this", error)
        context.console.error(translate(error).message)

    sys.excepthook = at_the_top


def uncaught(what: str, error: BaseException | None) -> None:
    """Keep an error that nobody foresaw, with where it came from."""
    log.error(what, exc_info=error)


class LogFile(logging.Handler):
    """Appends to the file that the settings name; under `--debug` shows the record instead."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if self._context.debug:
            self._context.console.note(literal(text))
            return
        with suppress(OSError, ConfigError):  # a full disk, settings that cannot be read
            self._append(text)

    def _append(self, text: str) -> None:
        from worker_agent.config import secret_values
        from worker_agent.redaction import Redactor

        path = self._context.paths.logs / NAME
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > LARGEST:
            path.replace(path.with_suffix(".log.1"))
        data = f"{Redactor(secret_values())(without_control(text))}\n".encode(errors="backslashreplace")
        with open(path, "ab", opener=_private) as file:
            file.write(data)


def _private(path: Any, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
