"""The first thing that runs: what a signal does while nobody listens yet, or any more; the three standard streams.

A signal that comes while nobody listens, or while the process leaves, ends it at once with its documented code: no
traceback, and never the code of a signal that nobody handled. What was to be ignored (`nohup`) stays ignored.

No `KeyboardInterrupt` before the imports are done: raised in the middle of one it can leave the lock of all imports
taken, and every other thread then waits for ever. What is on disk bears an end at any moment.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}  # of `exit_codes.py`, which is not loaded yet
_last_words: dict[int, bytes] = {}


def leave_on_signals() -> None:
    """From here on a signal ends the process at once."""
    for number in CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    atexit.unregister(_shut_out)
    atexit.register(_shut_out)


def _shut_out() -> None:
    """The interpreter goes, and takes our handlers with it: what comes now must not change the code.

    Ignored, not blocked: a mask holds for one thread only, and a signal to the process would take another one.
    """
    for number in CODES:
        signal.signal(number, signal.SIG_IGN)


def have_last_words(words: Mapping[int, bytes]) -> None:
    """What goes to stdout when a signal ends the process, by the signal's number: made before, as nothing can be then."""
    _last_words.clear()
    _last_words.update(words)


def _leave(number: int, _frame: FrameType | None) -> None:
    with suppress(Exception):  # what was printed and not yet written; the signal may have come in the middle of that
        sys.stdout.flush()
    if number in _last_words:
        with suppress(OSError):
            os.write(1, _last_words[number])
    os._exit(CODES[signal.Signals(number)])


def raise_interrupts() -> None:
    """From here on an interrupt is a `KeyboardInterrupt` again, for commands with something to put away."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_streams() -> None:
    """A standard stream that is closed (`2>&-`) goes nowhere: else the next file that is opened takes its place, and what
    is said to a person is written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            assert nothing == number
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
