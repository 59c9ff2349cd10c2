"""Which repositories a person trusts: allow rules, hooks, servers and agents that come with one count only then.

A JSON file of ours, keyed by the real path of the repository's root. The file lies in our own directory, never in the
repository. Deny and ask rules need no trust. A file that cannot be read trusts nothing and is never written over.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_agent.config import Clock, SystemClock
from worker_agent.errors import ConfigError


def repository_root(directory: Path) -> Path:
    """The real path of the repository that `directory` lies in; without one, of the directory itself."""
    start = Path(os.path.realpath(directory))
    for candidate in (start, *start.parents):
        if (candidate / ".git").exists():
            return candidate
    return start


@dataclass(frozen=True, slots=True)
class TrustStore:
    """`path` is the JSON file: `{"version": 1, "trusted": {"/real/path": {"since": seconds}}}`."""

    path: Path
    clock: Clock = SystemClock()

    def is_trusted(self, directory: Path) -> bool:
        try:
            return str(repository_root(directory)) in self._read()
        except ConfigError:
            return False

    def trusted(self) -> tuple[Path, ...]:
        """All of them, sorted. Raises `ConfigError`."""
        return tuple(Path(key) for key in sorted(self._read()))

    def trust(self, directory: Path) -> Path:
        """Trust the repository around `directory`; its root. Raises `ConfigError`."""
        root = repository_root(directory)
        if not root.is_dir():
            raise ConfigError(f"{root} is no directory")
        with self._changing() as entries:
            entries[str(root)] = {"since": self.clock.now()}
        return root

    def revoke(self, directory: Path) -> bool:
        """Trust it no more; whether it was trusted. Raises `ConfigError`."""
        with self._changing() as entries:
            return entries.pop(str(repository_root(directory)), None) is not None

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"the list of trusted directories {self.path} cannot be read: {error}") from None
        trusted = data.get("trusted") if isinstance(data, Mapping) else None
        if not isinstance(trusted, dict):
            raise ConfigError(f"{self.path} is no list of trusted directories")
        return trusted

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """One writer at a time; the file is replaced as a whole."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self.path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                entries = self._read()
                yield entries
                new = self.path.with_suffix(".new")
                new.write_text(json.dumps({"version": 1, "trusted": entries}, indent=2, sort_keys=True) + "\n", "utf-8")
                os.replace(new, self.path)
        except OSError as error:
            raise ConfigError(f"the list of trusted directories {self.path} cannot be written: {error}") from None
