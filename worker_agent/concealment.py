"""What this process keeps from others of the same user: its credentials.

Rules:

1. `/proc/<pid>/environ` shows a process's first environment for as long as it lives. The values of credentials are written
   over there, after a copy was put where libc and Python look; root cannot read them there either.
2. The process is made one that nobody of the same user may look into (`PR_SET_DUMPABLE` 0): no `/proc/<pid>/environ`, `mem`
   or `fd`, no debugger, no core file. Root still may. A program that it starts is as any other: `exec` undoes it.
3. It is done before anything is begun, and what does not work here is left: a run does not fail for it.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from worker_agent.config import is_secret_name, put_secrets_again

_PR_SET_DUMPABLE = 4
_ENV_START, _ENV_END = 47, 48  # of `/proc/self/stat`, counted behind the name of the program


def conceal() -> None:
    """Keep this process's credentials from others. Linux only; call it once, early, before a thread is there."""
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        _overwrite()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _overwrite() -> None:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    put_secrets_again()
    position = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and value and is_secret_name(name.decode("utf-8", "replace")):
            # No NUL: some readers take two of them for the end of all.
            ctypes.memset(position + len(name) + 1, ord("x"), len(value))
        position += len(entry) + 1
