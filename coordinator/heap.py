"""Memory that was given back goes back to the system.

A conversation is sent as one piece of many kilobytes, again with every turn. The GNU C library begins to keep such pieces for
itself once it has seen one freed, and a process with two hundred workers stays a fifth larger than what it holds. A fixed bound
keeps pieces from that size on apart; it costs some page faults.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # of <malloc.h>
APART = 128 * 1024  # bytes


def keep_small() -> None:
    """Say so, where the C library can be told."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, APART)
