"""What endpoints taught, kept from one session to the next: the window that a refusal named, by address and model.

1. A file of a few lines that people can read, and delete. It is read with the first question; what cannot be read is nothing.
2. An entry holds for `HOLDS`: a server may be started again with a larger window, and learning costs one refused call.
3. Several processes may write it at once: each writes the whole file anew, from what it reads just before. What is lost in
   between is learned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from worker_agent import disk
from worker_agent.config import Clock

HOLDS = 30 * 86_400.0  # seconds
LIMIT = 1_000_000  # bytes of the file


class Remembered:
    """What is known of the endpoint at `address`. A user's name or password in the address is not kept."""

    def __init__(self, path: Path, address: str, clock: Clock) -> None:
        self._path = path
        self._address = public_address(address)
        self._clock = clock

    def window(self, model: str) -> int | None:
        """The window of `model` in tokens that this endpoint named in a refusal, if that was not too long ago."""
        models = self._read().get(self._address)
        entry = models.get(model) if isinstance(models, dict) else None
        window, at = (entry.get("window"), entry.get("at")) if isinstance(entry, dict) else (None, None)
        if not (isinstance(window, int) and window > 0 and isinstance(at, (int, float))):
            return None
        return window if 0 <= self._clock.now() - at < HOLDS else None

    def learned(self, model: str, window: int) -> None:
        """Keep a window. A file that cannot be written keeps nothing: the session knows it all the same."""
        endpoints = self._read()
        models = endpoints.get(self._address)
        endpoints[self._address] = (models if isinstance(models, dict) else {}) | {
            model: {"window": window, "at": int(self._clock.now())}
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            disk.replace(self._path, orjson.dumps(endpoints, option=orjson.OPT_INDENT_2), mode=0o600)
        except OSError:
            return

    def _read(self) -> dict[str, Any]:
        try:
            value = orjson.loads(disk.read_regular(self._path, limit=LIMIT))
        except (OSError, orjson.JSONDecodeError):
            return {}
        return dict(value) if isinstance(value, Mapping) else {}


def public_address(address: str) -> str:
    """`address` without a user's name and password."""
    url = urlsplit(address)
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl().rstrip("/")
