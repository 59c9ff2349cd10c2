"""What stands around an agent's conversation: the last system block and the user context.

Made once per agent and stored as the first row of its transcript, before anything is sent: a resumed agent sends the
same bytes again. What they are made of is read once per directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from coordinator.agents.journal import SURROUNDINGS, TaskJournal, surroundings_row
from worker_agent.config import Clock
from worker_agent.context.injected import system_context, user_context
from worker_agent.context.instructions import Instructions
from worker_agent.tools.trust import SOURCES


class Surroundings:
    """`scratchpad` is the directory that all agents of the session share."""

    def __init__(
        self, *, clock: Clock, scratchpad: Path, trusted: bool, redact: Callable[[str], str], sources: Container[str] = SOURCES
    ) -> None:
        """`sources`: whose instructions count, of `user` and `project`."""
        self._clock = clock
        self._scratchpad = scratchpad
        self._trusted = trusted
        self._redact = redact
        self._sources = sources
        self._read: dict[Path, tuple[str, str | None]] = {}
        self._instructions: dict[Path, Instructions] = {}

    async def of(self, cwd: Path, journal: TaskJournal, told: str | None) -> Mapping[str, Any]:
        """Those of a new agent, stored. `told` stands behind the user context."""
        if cwd not in self._read:
            self._read[cwd] = await self._read_contexts(cwd)
        system, memory = self._read[cwd]
        parts = filter(None, (memory, told and self._redact(told)))
        row = surroundings_row(system, "\n\n".join(parts) or None, self._clock.now())
        await journal.append([row])
        surroundings: Mapping[str, Any] = row.data[SURROUNDINGS]
        return surroundings

    def instructions(self, cwd: Path) -> Instructions:
        """Those that hold for agents in `cwd`."""
        if cwd not in self._instructions:
            user, project = ("user" in self._sources, "project" in self._sources)
            self._instructions[cwd] = Instructions(cwd, Path.home(), trusted=self._trusted, user=user, project=project)
        return self._instructions[cwd]

    async def _read_contexts(self, cwd: Path) -> tuple[str, str | None]:
        now = self._clock.now()
        files = await asyncio.to_thread(self.instructions(cwd).at_start)
        memory = user_context(files, now)
        scratch = f"Scratchpad, shared by all agents of this session: {self._scratchpad}"
        system = await system_context(cwd, now, scratch, trusted=self._trusted)
        return self._redact(system), self._redact(memory.text) if memory else None
