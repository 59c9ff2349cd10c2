"""Git worktrees for workers that must not share a tree.

1. Creation is serialised within the process: git locks the repository, and parallel `worktree add` fails.
2. A worktree is removed only if it is *proven* clean: `git status` ran and said nothing, and the branch has no commit
   beyond its base. Whatever cannot be asked counts as unclear, and unclear is kept and said.
3. No branch is ever deleted that has a commit of its own.
4. Nothing of the repository runs (`worker_agent/git`): the tree is filled in a step of its own, after its own settings
   were read, which may be others than the main tree's. What is left out by that stands in `Worktree.left_out`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from msgspec import Struct

from worker_agent.errors import ConfigError
from worker_agent.git import NOT_INTO, Done, left_out, place_of, run_git

# Ignored files that a run of the tools leaves behind; any other ignored file may be somebody's work.
CACHES = ("__pycache__/", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/")


class Worktree(Struct, frozen=True):
    """`base` is the commit it began at, `repository` the top directory of the main tree. `left_out`: what git would have
    run and we did not, in words."""

    path: Path
    branch: str
    base: str
    repository: Path
    left_out: tuple[str, ...] = ()


class Closed(Struct, frozen=True):
    """What became of a worktree: removed, or kept and why."""

    removed: bool
    why: str = ""


class Worktrees:
    """Makes and ends worktrees under `directory`. Belongs to one event loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = asyncio.Lock()

    async def create(self, cwd: Path, task_id: str) -> Worktree:
        """A worktree of the repository around `cwd` on a new branch. Raises `ConfigError` in words where it cannot
        be."""
        top = await top_of(cwd)
        base = await run_git(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if base.code:
            raise ConfigError("isolation worktree needs a first commit, and this repository has none")
        path, branch = self._directory / task_id, f"coordinator/{task_id}"
        async with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            made = await run_git(top, "worktree", "add", "--no-checkout", "-b", branch, str(path), base.text)
            if made.code:
                raise ConfigError(f"git worktree add failed: {made.words}")
            filled = await run_git(path, "reset", "--hard", "--quiet")
            if filled.code:
                await run_git(top, "worktree", "remove", "--force", str(path))
                await run_git(top, "update-ref", "-d", f"refs/heads/{branch}", base.text)
                raise ConfigError(f"the new worktree could not be filled: {filled.words}")
        missing = await left_out(path, ("post-checkout",), (await run_git(path, "ls-files", "-z")).names)
        return Worktree(path, branch, base.text, top, missing)

    async def close(self, tree: Worktree) -> Closed:
        """Remove it if it is proven clean and without new commits; else keep it and say why."""
        # A worktree that lost its `.git` would be answered for by a repository around it.
        place = place_of(tree.path)
        if place is None or place.bare or place.directory != tree.path.resolve():
            return Closed(False, "its state could not be read")
        status = await run_git(
            tree.path, "status", "--porcelain", "-z", "--untracked-files=all", "--ignored=matching", NOT_INTO
        )  # fmt: skip
        if status.code:
            return Closed(False, "its state could not be read")
        lines = [line for line in status.names if not (line.startswith("!! ") and line.endswith(CACHES))]
        if lines:
            return Closed(False, f"{len(lines)} file{' is' if len(lines) == 1 else 's are'} not committed")
        head = await run_git(tree.path, "rev-parse", "HEAD")
        tip = await run_git(tree.repository, "rev-parse", "--verify", f"refs/heads/{tree.branch}")
        if head.code or tip.code:
            return Closed(False, "its commits could not be read")
        if head.text != tree.base or tip.text != tree.base:
            return Closed(False, "it has commits of its own")
        async with self._lock:
            gone = await run_git(tree.repository, "worktree", "remove", str(tree.path))
            if gone.code:
                return Closed(False, f"git would not remove it: {gone.words}")
            await run_git(tree.repository, "branch", "-d", tree.branch)
        return Closed(True)


async def top_of(cwd: Path) -> Path:
    """The top directory of the tree that `cwd` lies in. Raises `ConfigError` where there is none, or where the repository's
    settings put it elsewhere: what is done there would be done to files that are no part of it."""
    place = place_of(cwd)
    if place is None or place.bare:
        raise ConfigError(f"isolation worktree needs a git repository, and {cwd} is in none")
    asked: Done = await run_git(place.directory, "rev-parse", "--show-toplevel")
    if asked.code:
        raise ConfigError(f"the repository at {place.directory} cannot be used: {asked.words}")
    if os.path.realpath(asked.text) != str(place.directory):
        raise ConfigError(
            f"the settings of the repository (core.worktree) put its files in {asked.text}, not {place.directory}"
        )
    return place.directory
