"""What lies in a directory that a confinement must know: places that grant rights, and paths that deny rules name.

Rules:

1. A walk is bounded (`MAX_ENTRIES`, `MAX_PLACES`). Beyond, it says so (`TooMuch`): then nothing is promised.
2. It is kept: a directory whose time of change is the same is not read again, so that the second look at 50,000 files
   costs one `stat` for each directory. A directory changed within the clock's tick is read again the next time.
3. Links are not followed. A place is known by its path *and* its inode: what was moved into its place is another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from worker_agent.tool_facts import Access, known
from worker_agent.tools.places import (
    RIGHTS_DIRECTORIES,
    RIGHTS_EXCEPTIONS,
    RIGHTS_FILES,
    RIGHTS_IN_HOME,
    is_git_directory,
)
from worker_agent.tools.rules import Kind, Places, Rule, resolve

MAX_ENTRIES = 100_000  # files and directories of one walk
MAX_PLACES = 400  # that one command's mounts are made for
TICK = 0.05  # seconds within which two changes of a directory may bear one time
# Of a git directory: what git runs, or where it is told what to run. The rest (objects, refs, index, logs) is data.
GIT_RIGHTS = ("hooks", "config", "config.worktree", "commondir", "gitdir", "modules", "info/attributes")
# Directories of other people's packages: nobody opens them as a workspace, and they hold most files of a project.
PACKAGES = frozenset({"node_modules", "site-packages"})

_RIGHTS = frozenset((*RIGHTS_DIRECTORIES, *RIGHTS_FILES))
_WITH_EXCEPTIONS = {name.split("/")[0]: name.split("/", 1)[1] for name in RIGHTS_EXCEPTIONS}


class TooMuch(Exception):
    """A directory is too large to be looked through; the message says which."""


class Place(Struct, frozen=True):
    path: str
    identity: tuple[int, int]  # device, inode


class Walk(Struct):
    """The paths below `root` that `wanted` picks by path, name and whether it is a directory; it does not go into those,
    nor into directories of the names in `passed_over`."""

    root: str
    wanted: Callable[[str, str, bool], bool]
    passed_over: frozenset[str] = frozenset()
    _known: dict[str, tuple[int, tuple[str, ...], tuple[str, ...], int]] = field(default_factory=dict)

    def look(self) -> list[str]:
        """Raises `TooMuch`."""
        found: list[str] = []
        kept: dict[str, tuple[int, tuple[str, ...], tuple[str, ...], int]] = {}
        waiting, entries = [self.root], 0
        while waiting:
            directory = waiting.pop()
            try:
                changed = os.stat(directory, follow_symlinks=False).st_mtime_ns
                known = self._known.get(directory)
                if known is None or known[0] != changed:
                    known = self._read(directory, changed)
            except OSError:
                continue  # gone, or not for us, then not for the command either
            kept[directory] = known
            waiting += known[1]
            found += known[2]
            entries += known[3]
            if entries > MAX_ENTRIES:
                raise TooMuch(f"{self.root} holds more than {MAX_ENTRIES:,} files")
        self._known = kept
        return found

    def _read(self, directory: str, changed: int) -> tuple[int, tuple[str, ...], tuple[str, ...], int]:
        inside, found, count = [], [], 0
        settled = time.time_ns() - changed > TICK * 1e9
        with os.scandir(directory) as entries:
            for entry in entries:
                count += 1
                is_directory = entry.is_dir(follow_symlinks=False)
                if self.wanted(entry.path, entry.name, is_directory):
                    found.append(entry.path)
                elif is_directory and entry.name not in self.passed_over:
                    inside.append(entry.path)
        return (changed if settled else -1, tuple(inside), tuple(found), count)


class Rights(Struct, frozen=True):
    """`frozen` are places that must stay as they are, `pinned` directories that must stay where they are."""

    frozen: frozenset[Place] = frozenset()
    pinned: frozenset[Place] = frozenset()


class RightsWatch:
    """The places below some writable directories that grant rights, those that are there now."""

    def __init__(self, directories: Iterable[Path], home: Path) -> None:
        self._directories = tuple(str(directory) for directory in directories)
        self._walks = [Walk(directory, _names_a_right, PACKAGES) for directory in self._directories]
        inside = f"{os.path.realpath(home)}/"
        self._of_home = [inside + name for directory in self._directories for name in RIGHTS_IN_HOME
                         if (inside + name).startswith(directory.rstrip("/") + "/")]  # fmt: skip

    def look(self) -> Rights:
        """Raises `TooMuch`."""
        frozen: set[Place] = set()
        pinned: set[Place] = set()
        for path in (*self._of_home, *(found for walk in self._walks for found in walk.look())):
            _take_in(path, frozen, pinned)
        for directory in self._directories:  # one that git takes for a repository itself, as a worktree's shared one
            if is_git_directory(Path(directory)):
                _take_in_git(directory, frozen)
        if len(frozen) + len(pinned) > MAX_PLACES:
            raise TooMuch(f"more than {MAX_PLACES} places that grant rights lie in {', '.join(self._directories)}")
        return Rights(frozenset(frozen), frozenset(pinned))


def _names_a_right(path: str, name: str, is_directory: bool) -> bool:
    """Also what only looks like a repository: a directory with a `HEAD` beside `objects`."""
    return name.casefold() in _RIGHTS or (name == "HEAD" and not is_directory and is_git_directory(Path(path).parent))


def _take_in(path: str, frozen: set[Place], pinned: set[Place]) -> None:
    name = os.path.basename(path)
    if name == "HEAD":
        _take_in_git(os.path.dirname(path), frozen)
        return
    place = _place(path)
    if place is None:
        return
    plain_directory = os.path.isdir(path) and not os.path.islink(path)
    folded = name.casefold()
    if plain_directory and folded == ".git":
        pinned.add(place)
        _take_in_git(path, frozen)
    elif plain_directory and folded in _WITH_EXCEPTIONS:
        pinned.add(place)
        frozen.update(filter(None, (_place(entry) for entry in _entries(path) if not _excepted(folded, entry))))
    else:
        frozen.add(place)


def _take_in_git(directory: str, frozen: set[Place]) -> None:
    own = [f"{directory}/{name}" for name in GIT_RIGHTS]
    own += [
        f"{tree}/{name}" for tree in _entries(f"{directory}/worktrees") for name in ("commondir", "gitdir", "config.worktree")
    ]
    frozen.update(filter(None, map(_place, own)))


def _excepted(name: str, entry: str) -> bool:
    return os.path.basename(entry).casefold() == _WITH_EXCEPTIONS[name] and os.path.isdir(entry) and not os.path.islink(entry)


def _entries(directory: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(directory)]
    except OSError:
        return []


def _place(path: str) -> Place | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return Place(path, (found.st_dev, found.st_ino))


class Fence(Struct, frozen=True):
    """Deny rules of one policy, and where their patterns hang."""

    rules: tuple[Rule, ...]
    places: Places


class Denied(Struct, frozen=True):
    """Existing paths that deny rules name, links resolved: `hidden` must not be read, `frozen` not be changed."""

    hidden: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()


class DenyWatch:
    """The paths that deny rules name now."""

    def __init__(self, fences: Sequence[Fence]) -> None:
        self._hidden = [
            walk for fence in fences for rule in fence.rules if _speaks_of(rule, Access.READ) for walk in _walks(rule, fence)
        ]
        self._frozen = [walk for fence in fences for rule in fence.rules
                        if _speaks_of(rule, Access.EDIT) and not _speaks_of(rule, Access.READ) for walk in _walks(rule, fence)]  # fmt: skip

    def look(self) -> Denied:
        """Raises `TooMuch`."""
        hidden = frozenset(str(resolve(Path(path))) for walk in self._hidden for path in walk())
        frozen = frozenset(str(resolve(Path(path))) for walk in self._frozen for path in walk())
        if len(hidden) + len(frozen) > MAX_PLACES:
            raise TooMuch(f"deny rules name more than {MAX_PLACES} files")
        return Denied(hidden, frozen - hidden)


def _speaks_of(rule: Rule, access: Access) -> bool:
    """A rule about paths only: one about the whole tool takes the tool away, not the files from a command."""
    return rule.kind is Kind.PATH and any(rule.names(tool) for tool in known() if tool.access is access)


def _walks(rule: Rule, fence: Fence) -> Iterator[Callable[[], list[str]]]:
    """One look for each directory that the rule's pattern hangs on."""
    directories, pattern, matches = rule.reach(fence.places)
    for directory in directories:
        fixed = _fixed(pattern)
        if fixed is not None and fixed == pattern.strip("/").removesuffix("/**").removesuffix("/*"):
            yield partial(_if_there, os.path.join(directory, fixed))
            continue
        base = os.path.join(directory, fixed or "").rstrip("/") or "/"
        cut = len(str(directory).rstrip("/")) + 1

        def wanted(path: str, _name: str, is_directory: bool, cut: int = cut) -> bool:
            below = path[cut:]
            return matches(below) or (is_directory and matches(below + "/_"))

        yield Walk(base, wanted).look


def _if_there(path: str) -> list[str]:
    return [path] if os.path.lexists(path) else []


def _fixed(pattern: str) -> str | None:
    """The leading parts of an anchored pattern that are no wildcards; None for one that is meant at any depth."""
    body = pattern.strip("/").removesuffix("/**").removesuffix("/*")
    if "/" not in body and not pattern.startswith("/"):
        return None
    parts: list[str] = []
    for part in body.split("/"):
        if any(char in part for char in "*?[\\"):
            break
        parts.append(part)
    return "/".join(parts)


__all__ = ["Denied", "DenyWatch", "Fence", "Place", "Rights", "RightsWatch", "TooMuch", "Walk"]
