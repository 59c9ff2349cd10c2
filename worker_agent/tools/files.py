"""Files as the tools see them: names, kinds, text, freshness, replacement.

Rules of this file:

1. A name that is not UTF-8, or holds control characters, is shown with `\\xNN` for each such byte, and a path written
   like that finds the file again. What exists under the literal name wins.
2. Nothing but a regular file is ever read or written; `disk.py` opens it.
3. Text keeps its encoding, its byte-order mark and its line ends. A file that no text codec fits is binary.
4. What is written is written beside the file and renamed over it, with the old permissions. The look at the old bytes
   and the rename stand under one lock of this process, so that of two agents that read the same bytes only one writes.
5. A link is followed for writing only while it stays inside the agent's roots.
6. Every `OSError` leaves as a `ToolError` that says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import errno
import hashlib
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from msgspec import Struct

from worker_agent import disk
from worker_agent.errors import ToolError
from worker_agent.structs import replace
from worker_agent.tools.base import ReadFile, ToolContext

T = TypeVar("T")

EDIT_CAP = 32 * 1024 * 1024  # bytes of the largest file that is changed in memory
SNIFF = 8192  # bytes looked at to tell text from binary

_BOMS = (  # longest first: the mark of UTF-32-LE begins with that of UTF-16-LE
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\udc80-\udcff]")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_LOCKS = tuple(threading.Lock() for _ in range(64))
_ORDER = itertools.count(1)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Target(Struct, frozen=True):
    """A path a model gave: `path` is absolute as given, `real` has its links resolved, `shown` is for the model."""

    path: Path
    real: Path
    shown: str


def resolve(text: str, context: ToolContext) -> Target:
    """The file that `text` names, which need not exist. Relative paths start at the working directory."""
    if "\x00" in text or not text.strip():
        raise ToolError("The path is empty or holds a NUL character. Give an absolute path.")
    path = Path(os.path.join(context.cwd, os.path.expanduser(text)))
    if "\\x" in text and not os.path.lexists(path):
        unescaped = _ESCAPED.sub(lambda m: bytes.fromhex(m[1].decode()), os.fsencode(path))
        if b"\x00" not in unescaped and os.path.lexists(unescaped):
            path = Path(os.fsdecode(unescaped))
    try:
        return Target(path, Path(disk.real(path)), show(path, context))
    except (OSError, UnicodeError, ValueError):
        raise ToolError("The path cannot be used on this system. Give another path.") from None


def show(path: Path | str, context: ToolContext) -> str:
    """`path` for a reader: relative where it lies under the working directory, unprintable bytes as `\\xNN`."""
    text = os.path.normpath(path)
    cwd = os.path.normpath(context.cwd)
    if text.startswith(cwd + os.sep):
        text = text[len(cwd) + 1 :]
    return show_name(text)


def show_name(text: str) -> str:
    """A file name without anything that could not be printed, stored or sent."""
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda m: f"\\x{ord(m[0]) & 0xFF:02x}", text)


def inside(path: Path, context: ToolContext) -> bool:
    """Whether `path`, links resolved, lies in one of the agent's roots."""
    return any(path.is_relative_to(root) or path.is_relative_to(os.path.realpath(root)) for root in context.roots)


def refuse_way_out(target: Target, context: ToolContext) -> None:
    """A link from inside the roots to somewhere outside is not followed for writing: its name hides where it leads."""
    real_roots = [os.path.realpath(root) for root in context.roots]
    if not any(target.real.is_relative_to(root) for root in real_roots) and inside(target.path, context):
        raise ToolError(
            f"{target.shown} is reached through a link that leads outside the working directories, to "
            f"{show_name(str(target.real))}. It was not changed. Name that path itself if it is meant."
        )


# ── kinds and errors ─────────────────────────────────────────────────────────────────────────────────────────────────

_WORDS = {
    errno.EACCES: "cannot be accessed: permission denied. Choose another path, or ask for the permission",
    errno.EPERM: "cannot be changed: the system does not permit it",
    errno.EEXIST: "cannot be made: a part of the path is a file, not a directory",
    errno.ENOTDIR: "does not exist: a part of the path is a file, not a directory",
    errno.EISDIR: "is a directory. Use Glob to see what is in it",
    errno.ELOOP: "is a link that leads back to itself",
    errno.ENAMETOOLONG: "cannot exist: the name is too long",
    errno.ENOSPC: "was not written: no space is left on the device",
    errno.EDQUOT: "was not written: the disk quota is used up",
    errno.EROFS: "was not written: the file system is read-only",
    errno.EBUSY: "was not replaced: it is in use (a mount point?)",
    errno.ETXTBSY: "was not written: it is a program that runs now",
    errno.ENXIO: "is a device or socket without anything behind it",
}


def explain(error: OSError, target: Target) -> ToolError:
    """The failure in words, with a suggestion where a name was mistyped."""
    if error.errno == errno.ENOENT:
        return ToolError(f"{target.shown} does not exist.{_suggestion(target.path)}")
    words = _WORDS.get(error.errno or 0, f"cannot be used: {os.strerror(error.errno or errno.EIO)}")
    return ToolError(f"{target.shown} {words}.")


@contextlib.contextmanager
def explained(target: Target) -> Iterator[None]:
    try:
        yield
    except disk.NotRegular:
        raise  # told by its kind, where it was opened
    except OSError as error:
        raise explain(error, target) from None


def _suggestion(path: Path) -> str:
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, 1000)]
    except FileNotFoundError:
        return " Its directory does not exist either; use Glob to find the file."
    except OSError:
        return " Use Glob to find the file."
    close = difflib.get_close_matches(path.name, names, n=3)
    return f" Its directory has: {', '.join(map(show_name, close))}." if close else " Use Glob to find the file."


def open_regular(target: Target) -> BinaryIO:
    """An open regular file, or a `ToolError` for anything else. Never waits for a writer at the other end."""
    try:
        with explained(target):
            return disk.open_regular(target.real)
    except disk.NotRegular as other:
        directory = stat.S_ISDIR(other.mode)
        advice = "Use Glob to see what is in it." if directory else "It cannot be read or written as a file."
        raise ToolError(f"{target.shown} is {disk.kind_of(other.mode)}. {advice}") from None


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Text(Struct, frozen=True):
    """The text of a file with what it takes to write it back byte for byte. Line ends stand in `text` as they are.
    `newline` is the one line end of the file, "" if it has none, None if it mixes them."""

    text: str
    encoding: str = "utf-8"
    errors: str = "strict"
    bom: bytes = b""

    @property
    def newline(self) -> str | None:
        lf, crlf, cr = self.text.count("\n"), self.text.count("\r\n"), self.text.count("\r")
        if not cr:
            return "\n" if lf else ""
        if crlf == lf == cr:
            return "\r\n"
        return "\r" if not lf else None

    @property
    def dominant_newline(self) -> str:
        crlf = self.text.count("\r\n")
        return self.newline or ("\r\n" if crlf * 2 > self.text.count("\n") else "\n")

    def encode(self) -> bytes:
        return self.bom + self.text.encode(self.encoding, self.errors)

    def lines(self) -> list[str]:
        """The lines without their ends, numbered as ripgrep numbers them; a last line end makes no line of its own."""
        newline = "\r" if self.newline == "\r" else "\n"
        lines = self.text.split(newline)
        if lines[-1] == "":
            lines.pop()
        return [line[:-1] if line.endswith("\r") else line for line in lines] if "\r" in self.text else lines


def decode(data: bytes) -> Text | None:
    """`data` as text, or None if it is binary. `decode(data).encode() == data` always.

    A mark decides; then UTF-8; then, for text that is UTF-8 but for a few broken bytes, UTF-8 with those bytes kept;
    then Windows-1252 or Latin-1."""
    for bom, encoding in _BOMS:
        if data.startswith(bom) and (text := _try(data[len(bom) :], encoding)) is not None:
            return Text(text, encoding, bom=bom)
    bom = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    if b"\x00" in data:
        return None
    if (text := _try(data, "utf-8")) is not None:
        return Text(text)
    if bom or _MULTIBYTE.search(data):
        return Text(data[len(bom) :].decode("utf-8", "surrogateescape"), "utf-8", "surrogateescape", bom)
    if (text := _try(data, "cp1252")) is not None:
        return Text(text, "cp1252")
    return Text(data.decode("latin-1"), "latin-1")


def printable(line: str) -> str:
    """A piece of decoded text as it can be stored and sent: a byte that fitted no character becomes U+FFFD."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _try(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def with_text(old: Text, text: str, added: str, target: Target) -> Text:
    """`old` with another text; `added` is what the model wrote of it, which the file's encoding must hold."""
    try:
        added.encode("utf-8")
        added.encode(old.encoding)
    except UnicodeEncodeError as error:
        bad = added[error.start]
        raise ToolError(
            f"{target.shown} is encoded as {error.encoding}, which cannot hold U+{ord(bad):04X}. Write it another way "
            "(an escape of the language, or ASCII), or convert the file first."
        ) from None
    new = replace(old, text=text)
    again = decode(new.encode())
    if again is None or (again.encoding != new.encoding and again.text != text):
        raise ToolError(f"With this text {target.shown} would be taken for binary or for another encoding. Not written.")
    return new


# ── freshness ────────────────────────────────────────────────────────────────────────────────────────────────────────


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def next_order() -> int:
    """A number higher than all before, for `ReadFile.order`."""
    return next(_ORDER)


def remembered(info: os.stat_result, data: bytes | None) -> ReadFile:
    """What to remember of a file that was read or written whole; without `data` its size and time must do."""
    return ReadFile(info.st_mtime_ns, info.st_size, digest_of(data) if data is not None else "", order=next_order())


def is_fresh(known: ReadFile, info: os.stat_result, data: bytes) -> bool:
    """Whether the file still holds what the agent saw. A mere `touch` changes nothing."""
    if known.digest:
        return known.digest == digest_of(data)
    return (known.mtime_ns, known.size) == (info.st_mtime_ns, info.st_size)


def must_be_fresh(target: Target, known: ReadFile | None, info: os.stat_result, data: bytes) -> None:
    if known is None:
        raise ToolError(f"{target.shown} exists and was not read yet. Read it first, then change it.")
    if not is_fresh(known, info, data):
        raise ToolError(
            f"{target.shown} has changed since you read it (another agent, a person or a command wrote it). "
            "Nothing was written. Read it again, then repeat the change on what it says now."
        )


# ── reading and replacing whole files ────────────────────────────────────────────────────────────────────────────────


def load(target: Target, cap: int = EDIT_CAP) -> tuple[bytes, os.stat_result]:
    """The whole file and its state. Over `cap` bytes it is refused."""
    with open_regular(target) as file, explained(target):
        info = os.fstat(file.fileno())
        if info.st_size > cap:
            raise too_large(target, info.st_size, cap)
        data = disk.read_up_to(file, cap + 1)
    if len(data) > cap:
        raise too_large(target, len(data), cap)
    return data, info


def too_large(target: Target, size: int, cap: int) -> ToolError:
    return ToolError(
        f"{target.shown} has {size:,} bytes; up to {cap:,} can be changed here. For larger ones use Bash (a script)."
    )


@contextlib.contextmanager
def locked(real: Path) -> Iterator[None]:
    """Only one thread of this process looks at and replaces `real` at a time."""
    with _LOCKS[hash(real) % len(_LOCKS)]:
        yield


def change(target: Target, known: ReadFile | None, make: Callable[[bytes], bytes]) -> tuple[bytes, os.stat_result]:
    """Read, check that it is what the agent saw, replace by `make(old)`. Returns the new bytes and state. Blocks."""
    with locked(target.real):
        data, info = load(target)
        must_be_fresh(target, known, info, data)
        new = make(data)
        return new, replace_file(target, new, info)


def other_names(target: Target) -> str:
    """What to say, after a change, of a file that has several names (hard links); "" for any other. Asked before it. The
    others are not written through: they may lie outside of every root, and belong to whoever shares the file (a package
    store, a backup)."""
    try:
        count = os.stat(target.real).st_nlink - 1
    except OSError:
        return ""
    if count < 1:
        return ""
    names = "1 other name" if count == 1 else f"{count} other names"
    return (
        f"\n[The file had {names} (hard links). Only {target.shown} was changed and is a file of its own now; under the other "
        f"{'name' if count == 1 else 'names'} the old text stands. `find DIR -samefile` finds them before a change, `ln -f` links them again.]"
    )


def create(target: Target, data: bytes) -> os.stat_result:
    """A file that did not exist, with its directories. Blocks."""
    with locked(target.real):
        if os.path.lexists(target.real):
            raise ToolError(f"{target.shown} exists since a moment ago. Read it first, then change it.")
        with explained(target):
            target.real.parent.mkdir(parents=True, exist_ok=True)
        return replace_file(target, data, None)


def replace_file(target: Target, data: bytes, old: os.stat_result | None) -> os.stat_result:
    """`disk.replace`, its failures in words. Blocks."""
    with explained(target):
        return disk.replace(target.real, data, like=old)


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Run a blocking change in a thread. A cancel waits for it to end first: what was begun is done or not done, never
    under way while the caller has already gone."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: nobody else will ask
        raise
