"""Whether git, when it only reads, runs nothing of the repository it finds: told by reading files, git is not started.

Rules:

1. It must be the session's own repository (`shell_git_harmless.py` says why).
2. Every key of its settings must be on a list of those that run nothing when git reads; of a few the value counts, too.
   What the list lacks asks.
3. `git status` and `git diff` start git again in every directory that the index calls a submodule (by `.gitmodules` or
   not) and that holds a `.git`, under the settings of that one: they must be as harmless as the first one's.
4. The one hook that reading may run is `post-index-change`, wherever `core.hooksPath` says that hooks are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field

from worker_agent import disk
from worker_agent.git import place_of
from worker_agent.tools.shell_sight import Sight

MAX_SETTINGS = 200_000  # bytes of a repository's settings
MAX_INDEX = 64 * 1024 * 1024  # bytes
MAX_SUBMODULES = 100  # looked at, at all depths

_SAFE_SECTIONS = frozenset("user color branch pull push init advice gc fetch rebase tag column maintenance i18n".split())
_SAFE_KEYS = frozenset(
    """core.repositoryformatversion core.filemode core.bare core.logallrefupdates core.ignorecase core.precomposeunicode
    core.autocrlf core.symlinks core.eol core.safecrlf core.quotepath core.abbrev core.sparsecheckout core.sparsecheckoutcone
    core.untrackedcache core.preloadindex core.trustctime core.checkstat core.longpaths core.hidedotfiles core.fscache
    core.commitgraph core.compression index.version index.threads remote.url remote.fetch remote.pushurl
    remote.tagopt remote.prune remote.gh-resolved remote.pushdefault extensions.worktreeconfig extensions.objectformat
    commit.gpgsign merge.conflictstyle merge.ff diff.algorithm diff.renames diff.colormoved diff.mnemonicprefix
    lfs.repositoryformatversion lfs.access log.date submodule.url submodule.active submodule.branch submodule.ignore
    submodule.fetchrecursesubmodules rerere.enabled receive.denycurrentbranch""".split()
)
_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})  # `!command` is the other one
_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"[^"\\\n]*")?\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(?:[ \t]*=[ \t]*([^\\]*))?")
_PLAIN_PATH = re.compile(r"[\w./ @+-]+")  # a value without quotes or comments

_LINK, _DIRECTORY = 0o160000, 0o040000  # modes in an index: a submodule, a directory that is not written out
_MODE_OF_A_LINK = _LINK.to_bytes(4, "big")


def repository_problem(place: Path, sight: Sight) -> str | None:
    """Why git, reading in `place`, may run a program, or read another repository than the session's; None if it does not."""
    own = {found for root in (sight.places.cwd, *sight.places.twins) if (found := _repository(root)) is not None}
    found = _repository(place)
    if found is None:
        return "there is no repository of the session here"
    if found not in own or not (found / ".git").exists():
        return f"{found} is not the repository of the session"
    try:
        return _Reading().problem(found)
    except (OSError, ValueError, LookupError):
        return "the repository's settings cannot be read"


def _repository(place: Path) -> Path | None:
    """The directory in which git would find a repository from `place`."""
    here = Path(os.path.realpath(place))
    for directory in (here, *here.parents):
        if (directory / ".git").exists() or _is_bare(directory):
            return directory
    return None


def _is_bare(directory: Path) -> bool:
    return os.path.lexists(directory / "HEAD") and (directory / "objects").exists() and (directory / "refs").exists()


class _Reading(Struct):
    """One look at a repository and the submodules in it. Its methods raise `OSError` and `ValueError` for what cannot be read."""

    seen: set[Path] = field(default_factory=set)

    def problem(self, tree: Path, name: str = "") -> str | None:
        """Of the repository that is checked out at `tree`; `name` is its path in the outermost one if it is a submodule."""
        self.seen.add(tree)
        if len(self.seen) > MAX_SUBMODULES:
            return f"it holds more than {MAX_SUBMODULES} submodules"
        place = place_of(tree)
        if place is None or place.bare or place.directory != tree:
            return f"{tree} is no repository as git would find it"
        git, shared = place.git, place.common
        whose = f"the submodule {name}'s" if name else "the repository's"
        files = [file for file in (shared / "config", git / "config.worktree", shared / "config.worktree") if file.exists()]
        settings = [setting for file in files for setting in _settings(_text(file))]
        for key, value in settings:
            if not _runs_nothing(key, value, tree, git, submodule=bool(name)):
                return f"{whose} setting `{key}` may run a program"
        homes = [tree / value for key, value in settings if key == "core.hookspath" and value]
        if any(os.path.lexists(home / "post-index-change") for home in (shared / "hooks", *homes)):
            return f"{whose} hook post-index-change runs a program"
        if (shared / "objects/info/alternates").exists():
            return f"{whose} objects lie elsewhere"
        return self._submodules_problem(tree, git, name, wide=("extensions.objectformat", "sha256") in settings)

    def _submodules_problem(self, tree: Path, git: Path, name: str, wide: bool) -> str | None:
        if any(git.glob("sharedindex.*")):
            return "its index is split, so that its submodules are not known"
        index = git / "index"
        if not index.exists():
            return None
        state = index.stat()
        for link in _links(str(index), state.st_mtime_ns, state.st_size, state.st_ino, wide):
            below = Path(os.path.realpath(tree / link))
            if not os.path.lexists(below / ".git"):
                continue  # not checked out: nothing is started in it
            if below in self.seen:
                return f"the submodule {link} is there twice"
            if problem := self.problem(below, os.path.join(name, link)):
                return problem
        return None


def _text(path: Path) -> str:
    return disk.read_regular(path, limit=MAX_SETTINGS).decode()


def _settings(text: str) -> Iterator[tuple[str, str | None]]:
    """Pairs of key and value; a line that is not understood is a key of its own. A line ends where it does for git."""
    section = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        if "\r" in line:
            yield "(a line end in a line)", None
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if match := _SECTION.fullmatch(line):
            section = match[1].lower()
        elif match := _KEY.fullmatch(line):
            yield f"{section}.{match[1].lower()}", match[2]
        else:
            yield line[:40], None


def _runs_nothing(key: str, value: str | None, tree: Path, git: Path, *, submodule: bool) -> bool:
    if key == "submodule.update":
        return value in _UPDATES
    if key == "core.hookspath":
        return value is not None and _PLAIN_PATH.fullmatch(value) is not None
    if key == "core.worktree":  # git writes it for a submodule, and it leads to where the submodule is
        return submodule and value is not None and bool(_PLAIN_PATH.fullmatch(value)) and os.path.samefile(git / value, tree)
    return key.partition(".")[0] in _SAFE_SECTIONS or key in _SAFE_KEYS


@lru_cache(maxsize=64)
def _links(index: str, _changed: int, _size: int, _inode: int, wide: bool) -> tuple[str, ...]:
    """The paths that an index calls submodules. `wide`: of a repository with SHA-256. Raises `OSError`, `ValueError`."""
    data = disk.read_regular(Path(index), limit=MAX_INDEX)
    version = int.from_bytes(data[4:8], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("no index that is known")
    if _MODE_OF_A_LINK not in data and _DIRECTORY.to_bytes(4, "big") not in data:
        return ()
    found = []
    for mode, name in _entries(data, version, 32 if wide else 20):
        if mode == _DIRECTORY:
            raise ValueError("a directory that is not written out")
        if mode == _LINK:
            found.append(os.fsdecode(name))
    return tuple(found)


def _entries(data: bytes, version: int, digest: int) -> Iterator[tuple[int, bytes]]:
    """Mode and name of every entry (gitformat-index)."""
    at, name = 12, b""
    for _ in range(int.from_bytes(data[8:12], "big")):
        flags = at + 40 + digest
        extended = version >= 3 and data[flags] & 0x40
        begin = flags + (4 if extended else 2)
        kept = b""
        if version == 4:  # the name of the entry before without its last bytes, then the rest
            cut, begin = _number(data, begin)
            kept = name[: len(name) - cut]
        end = data.index(b"\0", begin)
        name = kept + data[begin:end]
        yield int.from_bytes(data[at + 24 : at + 28], "big"), name
        at = end + 1 if version == 4 else at + (end - at) // 8 * 8 + 8


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of git's variable width, and where it ends."""
    number = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        number = ((number + 1) << 7) | (data[at] & 0x7F)
    return number, at + 1
