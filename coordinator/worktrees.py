"""Git worktrees for workers that must not share a tree.

1. Creation is serialised within the process: git locks the repository, and parallel `worktree add` fails.
2. A worktree is removed only if it is *proven* clean: `git status` ran and said nothing, and the branch has no commit
   beyond its base. Whatever cannot be asked counts as unclear, and unclear is kept and said.
3. No branch is ever deleted that has a commit of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_agent.config import tool_environment
from worker_agent.errors import ConfigError

GIT_TIMEOUT = 60.0  # seconds
# Ignored files that a run of the tools leaves behind; any other ignored file may be somebody's work.
CACHES = ("__pycache__/", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/")


@dataclass(frozen=True, slots=True)
class Worktree:
    """`base` is the commit it began at, `repository` the top directory of the main tree."""

    path: Path
    branch: str
    base: str
    repository: Path


@dataclass(frozen=True, slots=True)
class Closed:
    """What became of a worktree: removed, or kept and why."""

    removed: bool
    why: str = ""


class Worktrees:
    """Makes and ends worktrees under `directory`. Belongs to one event loop."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = dict(environment) if environment is not None else tool_environment()
        self._lock = asyncio.Lock()

    async def create(self, cwd: Path, task_id: str) -> Worktree:
        """A worktree of the repository around `cwd` on a new branch. Raises `ConfigError` in words where it cannot
        be."""
        code, top = await self._git(cwd, "rev-parse", "--show-toplevel")
        if code:
            raise ConfigError(f"isolation worktree needs a git repository, and {cwd} is in none")
        code, base = await self._git(cwd, "rev-parse", "--verify", "HEAD^{commit}")
        if code:
            raise ConfigError("isolation worktree needs a first commit, and this repository has none")
        path, branch = self._directory / task_id, f"coordinator/{task_id}"
        async with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            code, said = await self._git(cwd, "worktree", "add", "-b", branch, str(path), base)
        if code:
            raise ConfigError(f"git worktree add failed: {said[-500:]}")
        return Worktree(path, branch, base, Path(top))

    async def close(self, tree: Worktree) -> Closed:
        """Remove it if it is proven clean and without new commits; else keep it and say why."""
        # A worktree that lost its `.git` would be answered for by a repository around it.
        code, top = await self._git(tree.path, "rev-parse", "--show-toplevel")
        if code or Path(top).resolve() != tree.path.resolve():
            return Closed(False, "its state could not be read")
        code, status = await self._git(tree.path, "status", "--porcelain", "--untracked-files=all", "--ignored=matching")
        if code:
            return Closed(False, "its state could not be read")
        lines = [line for line in status.splitlines() if not (line.startswith("!! ") and line.endswith(CACHES))]
        if lines:
            return Closed(False, f"{len(lines)} file{' is' if len(lines) == 1 else 's are'} not committed")
        code, head = await self._git(tree.path, "rev-parse", "HEAD")
        code_branch, tip = await self._git(tree.repository, "rev-parse", "--verify", f"refs/heads/{tree.branch}")
        if code or code_branch:
            return Closed(False, "its commits could not be read")
        if head != tree.base or tip != tree.base:
            return Closed(False, "it has commits of its own")
        async with self._lock:
            code, said = await self._git(tree.repository, "worktree", "remove", str(tree.path))
            if code:
                return Closed(False, f"git would not remove it: {said[-200:]}")
            await self._git(tree.repository, "branch", "-d", tree.branch)
        return Closed(True)

    async def _git(self, cwd: Path, *arguments: str) -> tuple[int, str]:
        """Exit code and output of one git command; code -1 if it could not run or took too long."""
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                "-C",
                str(cwd),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
            )
        except OSError as error:
            return -1, str(error)
        try:
            output, _ = await asyncio.wait_for(process.communicate(), GIT_TIMEOUT)
        except (TimeoutError, asyncio.CancelledError) as stop:
            process.kill()
            await process.wait()
            if isinstance(stop, asyncio.CancelledError):
                raise
            return -1, f"git {arguments[0]} did not end within {GIT_TIMEOUT:.0f} s"
        return process.returncode or 0, output.decode(errors="replace").strip()
