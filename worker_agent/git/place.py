"""Where a repository is, and which branch it is on: found as git finds it, by reading files only.

Git goes up from a directory. At each level it takes `.git` (a directory, or a file that names one: worktrees,
submodules), and else the level itself if it looks like a bare repository; `HEAD`, `objects` and `refs` are enough for
that, so that tracked files can make one. Only regular files are read, and little of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from worker_agent.disk import read_beginning

MAX_READ = 4096  # bytes of a `HEAD`, `commondir` or `.git` file
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Place(Struct, frozen=True):
    """A repository as git would find it. `directory` is the level where it was found, `git` its own git directory (a
    worktree has one of its own), `common` the one that all its worktrees share. `bare`: found without a `.git`, as the
    directory itself. All real paths."""

    directory: Path
    git: Path
    common: Path
    bare: bool


def place_of(cwd: Path) -> Place | None:
    """The repository that git, started in `cwd`, would use. Starts nothing."""
    start = Path(os.path.realpath(cwd))
    for level in (start, *start.parents):
        own = level / ".git"
        if not own.is_dir() and os.path.lexists(own):
            linked = _linked(own)
            return Place(level, linked, _common(linked), bare=False) if linked else None  # git too goes no further up
        for git, bare in ((own, False), (level, True)):
            if _is_git_directory(git):
                git = Path(os.path.realpath(git))
                return Place(level, git, _common(git), bare)
    return None


def read_branch(place: Place) -> str | None:
    """The branch of `HEAD`, the first 12 digits of the commit where it is detached; None if neither can be read."""
    head = _head(place.git)
    if head.startswith("refs/heads/"):
        return head.removeprefix("refs/heads/")
    return head[:12] if _COMMIT.fullmatch(head) else None


def _linked(file: Path) -> Path | None:
    """The git directory that a `.git` file names."""
    text = _read(file)
    if not text.startswith("gitdir: "):
        return None
    git = Path(os.path.realpath(file.parent / text.removeprefix("gitdir: ").rstrip("\r\n")))
    return git if _is_git_directory(git) else None


def _is_git_directory(path: Path) -> bool:
    if not _head(path):
        return False
    common = _common(path)
    return all(os.access(common / name, os.X_OK) for name in ("objects", "refs"))


def _head(git: Path) -> str:
    """What `HEAD` names: a reference (`refs/…`) or a commit; empty if it is no `HEAD`."""
    head = git / "HEAD"
    try:
        if head.is_symlink():
            target = os.readlink(head)
            return target if target.startswith("refs/") else ""
    except OSError:
        return ""
    text = _read(head)
    if text.startswith("ref:"):
        target = text.removeprefix("ref:").strip()
        return target if target.startswith("refs/") else ""
    commit = _COMMIT.match(text)
    return commit[0] if commit else ""


def _common(git: Path) -> Path:
    named = _read(git / "commondir").rstrip("\r\n")
    return Path(os.path.realpath(git / named)) if named else git


def _read(path: Path) -> str:
    """The beginning of a regular file, empty if there is none."""
    try:
        return os.fsdecode(read_beginning(path, limit=MAX_READ))
    except OSError:
        return ""
