"""Which repositories a person trusts: allow rules, hooks, servers and agents that come with one count only then.

A JSON file of ours, keyed by the real path of the repository's root. It lies in our own directory, never in the
repository. Deny and ask rules need no trust. A file that cannot be read trusts nothing and is never written over.

Trust is of what was there. Of each file that grants something a digest of just that is kept: not of its bytes, so that a
new deny rule, a comment or an agent's other words need no new trust; of the scripts that its hooks run all bytes
(`hook_scripts.py`). What a file grants counts while it is as it was; where
it has changed since, or came later, the file counts as that of an untrusted directory until the person says so again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from worker_agent.config import Clock, SystemClock
from worker_agent.errors import ConfigError

SOURCES = frozenset({"user", "project", "local"})  # whose files there are, beside an administrator's


def repository_root(directory: Path) -> Path:
    """The real path of the repository that `directory` lies in; without one, of the directory itself."""
    start = Path(os.path.realpath(directory))
    for candidate in (start, *start.parents):
        if (candidate / ".git").exists():
            return candidate
    return start


def place_of(path: Path) -> str:
    """A file's name in the list: the real path of its directory, and its own name as it is written."""
    return os.path.join(os.path.realpath(path.parent), path.name)


def digest(rights: Mapping[str, Any]) -> str:
    """Of what a file grants: the same values give the same digest, in whatever order and layout they are written."""
    text = json.dumps(rights, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Brought(Struct, frozen=True):
    """What one file of a repository grants, as it is now. `rights` are compared with those that were trusted; a file that
    `grants` nothing needs no trust as long as nothing of it was trusted. `words` say it to a person, a piece each;
    `problem` says why the file cannot be used at all."""

    path: Path
    rights: Mapping[str, Any] = field(default_factory=dict)
    grants: bool = False
    words: tuple[str, ...] = ()
    problem: str | None = None


class Trust(Struct, frozen=True):
    """What a person said of the repository around a session's directory (`trusted`), and around others beside it. `roots`
    are those that are trusted, `files` the digests of what their files granted then."""

    trusted: bool = False
    roots: frozenset[Path] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    whatever: bool = False  # everything counts: for who shows what is there

    def of(self, directory: Path) -> bool:
        """Whether the repository around `directory` is trusted."""
        return self.whatever or repository_root(directory) in self.roots

    def counts(self, brought: Brought) -> bool:
        """Whether what a file of a trusted repository grants counts: it is as it was when the person said so."""
        if self.whatever:
            return True
        known = self.files.get(place_of(brought.path))
        return digest(brought.rights) == known if known is not None else not brought.grants


NOTHING = Trust()
EVERYTHING = Trust(trusted=True, whatever=True)


class TrustStore(Struct, frozen=True):
    """`path` is the JSON file: `{"version": 2, "trusted": {"/real/path": {"since": seconds, "files": {"/a/file": digest}}}}`."""

    path: Path
    clock: Clock = SystemClock()

    def of(self, directory: Path, *beside: Path) -> Trust:
        """What holds in `directory`, and for what directories `beside` it bring. Never raises."""
        try:
            entries = self._read()
        except ConfigError:
            return NOTHING
        roots = [root for root in map(repository_root, (directory, *beside)) if str(root) in entries]
        files: dict[str, str] = {}
        for root in roots:
            files |= _files(entries[str(root)])
        return Trust(repository_root(directory) in roots, frozenset(roots), files)

    def trusted(self) -> tuple[Path, ...]:
        """All of them, sorted. Raises `ConfigError`."""
        return tuple(Path(key) for key in sorted(self._read()))

    def trust(self, directory: Path, brought: Iterable[Brought] = ()) -> Path:
        """Trust the repository around `directory`, and of its files what `brought` says they grant; others of it stay as
        they were trusted. Its root. Raises `ConfigError`."""
        root = repository_root(directory)
        if not root.is_dir():
            raise ConfigError(f"{root} is no directory")
        now = {place_of(one.path): digest(one.rights) if one.rights else None for one in brought}
        with self._changing() as entries:
            files = _files(entries.get(str(root))) | now
            kept = {path: known for path, known in files.items() if known is not None and os.path.lexists(path)}
            entries[str(root)] = {"since": self.clock.now(), "files": kept}
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
                new.write_text(json.dumps({"version": 2, "trusted": entries}, indent=2, sort_keys=True) + "\n", "utf-8")
                os.replace(new, self.path)
        except OSError as error:
            raise ConfigError(f"the list of trusted directories {self.path} cannot be written: {error}") from None


def _files(entry: Any) -> dict[str, str]:
    """The digests of one repository; none for an entry of an earlier program, which kept none."""
    files = entry.get("files") if isinstance(entry, Mapping) else None
    return {str(path): str(known) for path, known in files.items()} if isinstance(files, Mapping) else {}
