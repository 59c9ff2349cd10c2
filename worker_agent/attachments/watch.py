"""Files that an agent knows, compared with what is there now.

A file is news when its time or size and then its bytes differ from what the agent knows. Each change is told once. The
agent's own file tools bring `read_files` up to date, so their changes are none. `read_files` itself is never changed here:
a file must be read again before it is edited, whatever a notice showed of it. Work is bounded: only the files last touched
are looked at, small ones at once, larger ones in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from worker_agent import disk
from worker_agent.attachments.changes import Change
from worker_agent.attachments.prefetch import Prefetch, in_thread

WATCHED = 100  # files, those last touched
READ_CAP = 64 * 1024  # bytes of a file compared at once; larger ones are compared in a thread
LATE_CAP = 32 * 1024 * 1024  # bytes of a file compared in a thread
READ_TOTAL = 512 * 1024  # bytes compared at once between two turns
TEXTS_CAP = 256 * 1024  # characters kept of files last seen, to show what changed in them


class Known(Protocol):
    """What is remembered of a file that was read or written; `digest` is sha256 of its bytes, "" where unknown."""

    mtime_ns: int
    size: int
    digest: str


_State = tuple[int, int] | str
"""Time (ns) and size of a regular file; anything else in words."""


class _Seen(Struct, frozen=True):
    """The last look at a file that is not as the agent knows it: `base` is what it knows, `digest` what is there."""

    base: tuple[int, int, str]
    state: _State
    digest: str


class Watch:
    """Compares the files last touched with what the agent knows of them."""

    def __init__(self, read_files: dict[Path, Any], on_failure: Callable[[BaseException], None]) -> None:
        self._read_files = read_files
        self._count = 0  # of read_files that were looked at
        self._order: OrderedDict[Path, None] = OrderedDict()  # latest last
        self._seen: dict[Path, _Seen] = {}
        self._texts: OrderedDict[Path, tuple[str, str]] = OrderedDict()  # digest and text, for diffs
        self._kept = 0  # characters in `_texts`
        self._without_text: dict[Path, None] = {}
        self._snapshots = Prefetch[dict[Path, tuple[str, str]]](on_failure)
        self._digests = Prefetch[list[tuple[Path, _Seen]]](on_failure)

    def begin(self, touched: Iterable[Path]) -> None:
        """Note what was touched, and keep the text of what was read, while it is still as it was read."""
        new = max(0, len(self._read_files) - self._count)
        for path in [*reversed(list(islice(reversed(self._read_files), min(new, WATCHED)))), *touched]:
            if path in self._read_files:
                self._order[path] = None
                self._order.move_to_end(path)
                self._without_text[path] = None
        self._count = len(self._read_files)
        while len(self._order) > WATCHED:
            path, _ = self._order.popitem(last=False)
            self._seen.pop(path, None)
            self._without_text.pop(path, None)
            self._forget_text(path)
        if self._snapshots.is_idle and (wanted := self._wanted()):
            self._snapshots.start(in_thread(_texts_of, wanted))

    def changes(self) -> list[Change]:
        """What differs now from what the agent knows or was told, those last touched first."""
        for path, text in (self._snapshots.take() or {}).items():
            self._keep_text(path, *text)
        found = [self._judged(path, seen, None) for path, seen in self._digests.take() or ()]
        room, late = READ_TOTAL, []
        for path in reversed(self._order):
            if (seen := self._look(path)) is None:
                continue
            if isinstance(seen.state, tuple) and self._needs_bytes(path, seen):
                if (size := seen.state[1]) > min(READ_CAP, room):
                    late.append((path, seen))
                    continue
                room -= size
                found.append(self._compared(path, seen))
            else:
                found.append(self._judged(path, seen, None))
        if late and self._digests.is_idle:
            self._digests.start(in_thread(_digests_of, late))
        return [change for change in found if change is not None]

    async def close(self) -> None:
        await asyncio.gather(self._snapshots.close(), self._digests.close())

    # ── one file ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, path: Path) -> _Seen | None:
        """Its state, where that is another than the last; without a digest yet."""
        known = self._read_files.get(path)
        if known is None:
            return None
        base = _base(known)
        last = self._seen.get(path)
        if last is not None and last.base != base:  # read or written again since
            del self._seen[path]
            last = None
        before = last.state if last else base[:2]
        state = _state(path)
        if state != before and isinstance(state, tuple) and os.path.realpath(path) != str(path):
            state = "lies behind a link now that leads elsewhere"
        return _Seen(base, state, "") if state != before else None

    def _needs_bytes(self, path: Path, seen: _Seen) -> bool:
        """Whether only its bytes can say if it changed; for a large file another size is enough."""
        _, size, digest = seen.base
        return bool(digest) and (seen.state[1] == size or int(seen.state[1]) <= READ_CAP)

    def _compared(self, path: Path, seen: _Seen) -> Change | None:
        found = _read(path)
        if found is None:
            return self._judged(path, seen, None)
        data, state = found
        return self._judged(path, _Seen(seen.base, state, _digest(data)), _text(data))

    def _judged(self, path: Path, seen: _Seen, text: str | None) -> Change | None:
        known = self._read_files.get(path)
        if known is None or _base(known) != seen.base or path not in self._order:
            return None  # read or written again while it was compared
        last = self._seen.get(path)
        before = last.digest if last else seen.base[2]
        self._seen[path] = seen
        if isinstance(seen.state, str):
            return Change(path, seen.state)
        if seen.digest and seen.digest == before:
            return None  # merely touched
        digest, old = self._texts.get(path, ("", None))
        if text is not None:
            self._keep_text(path, seen.digest, text)
        if seen.digest and seen.digest == seen.base[2]:
            return Change(path, "is again as you last read it")
        return Change(path, "changed", old if digest == before else None, text)

    # ── texts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _wanted(self) -> list[tuple[Path, str]]:
        """Files whose text is to be kept, with the digest it must have."""
        wanted, room = [], TEXTS_CAP
        for path in reversed(self._without_text):
            known = self._read_files.get(path)
            if known is not None and known.digest and known.size <= min(READ_CAP, room):
                if self._texts.get(path, ("",))[0] != known.digest:
                    wanted.append((path, known.digest))
                    room -= known.size
        self._without_text.clear()
        return wanted[::-1]

    def _keep_text(self, path: Path, digest: str, text: str) -> None:
        self._forget_text(path)
        self._texts[path] = (digest, text)
        self._kept += len(text)
        while self._kept > TEXTS_CAP:
            self._forget_text(next(iter(self._texts)))

    def _forget_text(self, path: Path) -> None:
        _, text = self._texts.pop(path, ("", ""))
        self._kept -= len(text)


def _base(known: Known) -> tuple[int, int, str]:
    return known.mtime_ns, known.size, known.digest


def _state(path: Path) -> _State:
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "was deleted or moved away"
    except OSError:
        return "can no longer be read"
    if stat.S_ISREG(info.st_mode):
        return info.st_mtime_ns, info.st_size
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link"}
    return f"was replaced by {kinds.get(stat.S_IFMT(info.st_mode), 'something that is no regular file')}"


def _read(path: Path, cap: int = READ_CAP) -> tuple[bytes, tuple[int, int]] | None:
    """Up to `cap` bytes of a regular file that lies where its path says, and its state; None for anything else."""
    try:
        with disk.open_regular(path, follow=False) as file:
            info = os.fstat(file.fileno())
            return disk.read_up_to(file, cap), (info.st_mtime_ns, info.st_size)
    except OSError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(data: bytes) -> str | None:
    try:
        return None if b"\x00" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _texts_of(wanted: list[tuple[Path, str]]) -> dict[Path, tuple[str, str]]:
    """The texts of files that still have the digest named. Blocks."""
    found = {}
    for path, digest in wanted:
        if (read := _read(path)) and _digest(read[0]) == digest and (text := _text(read[0])) is not None:
            found[path] = (digest, text)
    return found


def _digests_of(late: list[tuple[Path, _Seen]]) -> list[tuple[Path, _Seen]]:
    """The same with their digests; those that cannot be read without. Blocks."""
    found = []
    for path, seen in late:
        read = _read(path, LATE_CAP)
        found.append((path, _Seen(seen.base, read[1], _digest(read[0])) if read else seen))
    return found
