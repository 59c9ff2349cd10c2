"""The files a person may mean by `@path`: those of the repository, as git lists them, else what a bounded walk finds.

The list is made in the background and kept for `AGE`; while it is made the old one is used. What is ignored is not offered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from worker_agent.git import place_of, run_git

AGE = 10.0  # seconds until the list is made anew, when somebody asks
MOST = 200_000  # files of a list
LONGEST_WALK = 20_000  # entries looked at, without git
TIMEOUT = 10.0  # seconds for git
OFFERED = 50
SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "target", "dist", "build"})


class Files:
    """Belongs to one event loop. Paths are relative to `cwd`."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._names: Sequence[str] = ()
        self._made_at = float("-inf")
        self._making: asyncio.Task[None] | None = None

    async def matching(self, text: str) -> list[str]:
        """The files whose path holds `text`, those it begins or names best first; at most `OFFERED`."""
        loop = asyncio.get_running_loop()
        if self._making is None and loop.time() - self._made_at > AGE:
            self._making = asyncio.create_task(self._make(), name="files of the project")
        if self._making is not None and not self._names:
            await asyncio.shield(self._making)
        return await asyncio.to_thread(best, self._names, text)

    async def _make(self) -> None:
        try:
            self._names = await listed(self._cwd)
        finally:
            self._made_at = asyncio.get_running_loop().time()
            self._making = None


async def listed(cwd: Path) -> Sequence[str]:
    """The files below `cwd`, relative to it."""
    if place_of(cwd) is not None:
        done = await run_git(
            cwd, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", timeout=TIMEOUT,
            max_output=64_000_000,
        )  # fmt: skip
        if done.code == 0:
            return done.names[:MOST]
    return await asyncio.to_thread(lambda: list(_walked(cwd)))


def _walked(cwd: Path) -> Iterator[str]:
    """Level by level, so that what is near is found before the bound is reached; hidden directories are left out."""
    level, seen = [""], 0
    while level and seen < LONGEST_WALK:
        below = []
        for directory in level:
            for entry in _entries(cwd / directory):
                seen += 1
                if seen > LONGEST_WALK:
                    return
                name = f"{directory}{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    yield name
                elif not entry.name.startswith(".") and entry.name not in SKIPPED:
                    below.append(f"{name}/")
        level = below


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def best(names: Sequence[str], text: str) -> list[str]:
    """Those that hold `text` in any case: first whose file name begins with it, then whose path does, then any other."""
    wanted = text.lower()
    ranked: list[tuple[int, int, str]] = []
    for name in names:
        low = name.lower()
        at = low.find(wanted)
        if at >= 0:
            in_name = low.rfind("/") + 1
            rank = 0 if low.startswith(wanted, in_name) else 1 if at == 0 else 2 if at > in_name else 3
            ranked.append((rank, len(name), name))
    return [name for _, _, name in sorted(ranked)[:OFFERED]]
