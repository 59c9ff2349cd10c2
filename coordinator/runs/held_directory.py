"""The directory that a worker works in, held from its first turn on: whether it went meanwhile is seen at the end.

While it is held open its inode is nobody else's, so that a directory of the same name that a tool made anew is told from it.
What was written there went with it, so that the task is not completed, whatever the worker says.
"""

from __future__ import annotations

import os
from pathlib import Path

from worker_agent.errors import ConfigError


def gone(path: Path | str, who: str) -> str:
    return f"the working directory {path} was removed or replaced while the {who} was at work: what it wrote there is lost"


class HeldDirectory:
    """`path`, open until `close`. Raises `ConfigError` where there is no such directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"the working directory {path} cannot be used: {error.strerror}") from None

    @property
    def is_gone(self) -> bool:
        """Whether another directory, or none, stands at the path now."""
        own = os.fstat(self._fd)
        try:
            now = os.stat(self.path)
        except OSError:
            return True
        return (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
