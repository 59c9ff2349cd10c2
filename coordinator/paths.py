"""Where things lie on disk: everything under one home directory, each kind in a directory of its own.

`COORDINATOR_HOME` moves the whole; without it, it is the user's data directory of the platform. Nothing is created
before it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from worker_agent.config import Settings


class Paths(Struct, frozen=True):
    home: Path

    @classmethod
    def of(cls, settings: Settings) -> Paths:
        """The paths under the home that `settings` name."""
        return cls(settings.home.absolute() if settings.home else _data_directory())

    @property
    def database(self) -> Path:
        return self.home / "coordinator.db"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def trust(self) -> Path:
        """The list of directories whose rules, hooks and agents count."""
        return self.home / "trust.json"

    @property
    def endpoints(self) -> Path:
        """What endpoints taught: windows that they named in refusals."""
        return self.home / "endpoints.json"

    @property
    def plugin_data(self) -> Path:
        """Where each plugin has a directory to keep things in."""
        return self.home / "plugins"

    @property
    def mcp_approvals(self) -> Path:
        """The list of MCP servers that a person approved in repositories nobody trusts."""
        return self.home / "mcp-approvals.json"

    def typed(self, project: Path) -> Path:
        """What was typed in chats of the project at this directory."""
        import hashlib

        return self.home / "typed" / f"{hashlib.sha256(os.fsencode(project)).hexdigest()[:16]}.jsonl"

    def mcp_logs(self, session_id: str) -> Path:
        """What a session's MCP servers wrote to standard error, a file each."""
        return self.spill(session_id) / "mcp"

    @property
    def memory_index(self) -> Path:
        """The full-text index of memory files: a cache, made anew when it is missing."""
        return self.home / "memory-index.db"

    @property
    def memory_lock(self) -> Path:
        """Held by who writes memory files."""
        return self.home / "memory.lock"

    def spill(self, session_id: str) -> Path:
        """Tool results too large for a message."""
        return self.home / "spill" / session_id

    def scratch(self, session_id: str) -> Path:
        """The directory which all agents of a session may read and write unasked."""
        return self.home / "scratch" / session_id

    def transcripts(self, session_id: str) -> Path:
        """One file a task: what the task's `output_file` names."""
        return self.home / "transcripts" / session_id

    def output_file(self, session_id: str, task_id: str) -> Path:
        return self.transcripts(session_id) / f"{task_id}.md"

    def lines(self, session_id: str, agent_id: str) -> Path:
        """An agent's transcript in the shape that hooks read."""
        return self.transcripts(session_id) / f"{agent_id}.jsonl"

    def worktrees(self, session_id: str) -> Path:
        return self.home / "worktrees" / session_id

    @property
    def remotes(self) -> Path:
        """Bare repositories that this program made for sessions without a remote of their own."""
        return self.home / "remotes"

    def workspace(self, session_id: str) -> Path:
        """What this machine has of a session whose workspace is a repository."""
        return self.home / "workspaces" / session_id

    def transfers(self, session_id: str) -> Path:
        """The repository of ours that commits of a session go through."""
        return self.workspace(session_id) / "transfers"

    def prepare(self, session_id: str) -> None:
        """Make the directories every session needs, readable by their owner only."""
        for path in (self.spill(session_id), self.scratch(session_id), self.transcripts(session_id)):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)


def _data_directory() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("coordinator", appauthor=False))
