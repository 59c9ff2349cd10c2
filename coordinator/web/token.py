"""The token that lets a page change something: kept in the home directory, so that a page that is open stays usable when the
server is started anew. A file that only its owner can read; a confined command of a worker cannot (`tools/places.py`)."""

from __future__ import annotations

import secrets
import stat
from contextlib import suppress
from pathlib import Path

from worker_agent import disk

NAME = "serve-token"
BYTES = 32
LEAST = 16  # characters of a usable one


def token_in(home: Path) -> str:
    """The one of this home; made when there is none that only its owner could read. Raises `OSError`."""
    path = home / NAME
    with suppress(OSError):
        others_may = path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        token = disk.read_regular(path, limit=1_000).decode("ascii", "replace").strip()
        if len(token) >= LEAST and token.isascii() and not others_may:
            return token
    token = secrets.token_urlsafe(BYTES)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk.replace(path, f"{token}\n".encode(), mode=0o600)
    return token
