"""Which servers of an untrusted repository a person let run: each entry by its content, so that a changed one asks again.

A JSON file of ours, keyed by the real path of the repository's root. A file that cannot be read approves nothing and is
never written over.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from worker_agent import disk
from worker_agent.errors import ConfigError
from worker_agent.mcp.config import ServerConfig

MAX_BYTES = 10_000_000


class Approvals(Struct, frozen=True):
    """`path` is the JSON file: `{"version": 1, "approved": {"/real/root": {"name": "digest"}}}`."""

    path: Path

    def holds(self, root: Path, server: ServerConfig) -> bool:
        try:
            return self._read().get(str(root), {}).get(server.name) == server.digest
        except ConfigError:
            return False

    def approve(self, root: Path, server: ServerConfig) -> None:
        """Raises `ConfigError`."""
        with self._changing() as approved:
            approved.setdefault(str(root), {})[server.name] = server.digest

    def revoke(self, root: Path, name: str) -> bool:
        """Whether it was approved. Raises `ConfigError`."""
        with self._changing() as approved:
            return approved.get(str(root), {}).pop(name, None) is not None

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            data = json.loads(disk.read_regular(self.path, limit=MAX_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"the list of approved MCP servers {self.path} cannot be read: {error}") from None
        approved = data.get("approved") if isinstance(data, dict) else None
        if not isinstance(approved, dict) or not all(isinstance(entry, dict) for entry in approved.values()):
            raise ConfigError(f"{self.path} is no list of approved MCP servers")
        return approved

    @contextmanager
    def _changing(self) -> Iterator[dict[str, dict[str, Any]]]:
        """One writer at a time; the file is replaced as a whole."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self.path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                approved = self._read()
                yield approved
                text = json.dumps({"version": 1, "approved": approved}, indent=2, sort_keys=True) + "\n"
                disk.replace(self.path, text.encode(), mode=0o600)
        except OSError as error:
            raise ConfigError(f"the list of approved MCP servers {self.path} cannot be written: {error}") from None
