"""What was typed in chats of a project, over sessions: a file a project in the data directory, private to its owner.

One JSON string a line, oldest first, without known secrets. Two chats may append at once: each entry is one write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

from worker_agent import disk
from worker_agent.redaction import Redact

LARGEST = 1_000_000  # bytes; then the older half goes
ENTRY = 20_000  # characters; a longer one (a paste) is not kept


class Typed(History):
    """`redact` takes known secrets out. A file that cannot be read or written costs what was typed, nothing else."""

    def __init__(self, path: Path, redact: Redact) -> None:
        super().__init__()
        self._path = path
        self._redact = redact

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        entries = []
        for line in reversed(self._lines()):
            with suppress(ValueError):  # a line that a full disk cut
                entry = json.loads(line)
                if isinstance(entry, str):
                    entries.append(entry)
        return entries

    def store_string(self, string: str) -> None:
        if len(string) > ENTRY:
            return
        data = f"{json.dumps(self._redact(string))}\n".encode()
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._path.exists() and self._path.stat().st_size + len(data) > LARGEST:
                lines = self._lines()
                disk.replace(self._path, b"".join(line + b"\n" for line in lines[len(lines) // 2 :]), mode=0o600)
            with open(self._path, "ab", opener=_private) as file:
                file.write(data)

    def _lines(self) -> list[bytes]:
        try:
            return disk.read_regular(self._path, limit=2 * LARGEST).splitlines()
        except OSError:
            return []


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
