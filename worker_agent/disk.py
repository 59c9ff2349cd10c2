"""Regular files, opened and replaced so that nothing put in their place can hang, mislead or half-write anybody.

Rules of this file:

1. Opened first, looked at then. A look before the opening says nothing about what is opened. The opening never waits: a
   FIFO without a writer, a terminal or a device is told by its kind and closed.
2. `inside` is held on the way, not checked before it: the path is walked from that directory one name at a time, each
   opened relative to the one before and never through a link; a link is read and its target walked the same way. So
   what comes back lay inside at the moment it was opened, whatever is renamed meanwhile.
3. Every failure is an `OSError`, so that who only wants to know whether it worked catches one class; the three of this
   file say why. `strerror` is a predicate without a full stop: "is a socket, no regular file".
4. What is written is written beside the file and renamed over it.

Everything here blocks. The only module that opens files which other people may have made; it knows nothing of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAX_LINKS = 40  # links on one way, as the kernel counts them
MODE = 0o666  # of a new file, before the umask

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY = getattr(os, "O_PATH", 0) | os.O_CLOEXEC  # opens nothing: a place in the file system
_IS_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})  # what opening a link without following it may say


class NotRegular(OSError):
    """A directory, FIFO, socket or device where a regular file was asked for. `mode` is its `st_mode`."""

    def __init__(self, mode: int, path: Path) -> None:
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        kind = kind_of(mode)
        super().__init__(code, f"is {kind}" + ("" if kind == _OTHER else ", no regular file"), str(path))
        self.mode = mode


class Outside(OSError):
    """The path, or a link on its way, leads out of the directory it must stay in."""

    def __init__(self, path: Path, inside: Path) -> None:
        super().__init__(errno.EXDEV, f"leads out of {inside}", str(path))


class TooLarge(OSError):
    """More bytes than the caller takes. `size` is what was seen, at least `limit + 1`."""

    def __init__(self, path: Path, size: int, limit: int) -> None:
        super().__init__(errno.EFBIG, f"has more than {limit:,} bytes", str(path))
        self.size = size


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def real(path: str | Path) -> str:
    """Where `path` really leads, absolute, links followed as far as they exist: `os.path.realpath`, asked of the kernel
    where it can say it, in three calls for the whole way instead of one for each name on it. Raises what `realpath` raises."""
    return _by_the_kernel(path) or os.path.realpath(path)


def _by_the_kernel(path: str | Path) -> str | None:
    """None where it cannot say: nothing is there, or there is no `/proc`."""
    if not hasattr(os, "O_PATH"):
        return None
    try:
        place = os.open(path, _NAME_ONLY)
    except OSError:
        return None
    try:
        found = os.readlink(f"/proc/self/fd/{place}")
    except OSError:
        return None
    finally:
        os.close(place)
    # What was taken away meanwhile, or lies outside of our root, has no name that could be used.
    return found if found.startswith("/") and not found.endswith(" (deleted)") else None


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_regular(path: Path, *, inside: Path | None = None, follow: bool = True) -> BinaryIO:
    """The regular file at `path`, open and unbuffered. With `inside` no link may lead out of that directory; without
    `follow` nothing on the way (below `inside`, or from the root) may be a link. Raises `OSError`."""
    fenced = inside is not None or not follow
    fd = _walk(path, inside or Path(path.anchor), follow) if fenced else os.open(path, _READ)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb", buffering=0)
    os.close(fd)
    raise NotRegular(mode, path)


def read_regular(path: Path, *, limit: int, inside: Path | None = None) -> bytes:
    """All bytes of the regular file at `path`, at most `limit`. Raises `OSError`, `TooLarge` among them."""
    with open_regular(path, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
        data = read_up_to(file, limit + 1) if size <= limit else b""
    if max(size, len(data)) > limit:
        raise TooLarge(path, max(size, len(data)), limit)
    return data


def read_beginning(path: Path, *, limit: int, inside: Path | None = None) -> bytes:
    """The first `limit` bytes of the regular file at `path`, all of them where it has no more. Raises `OSError`."""
    with open_regular(path, inside=inside) as file:
        return read_up_to(file, limit)


def read_up_to(file: BinaryIO, size: int) -> bytes:
    """Up to `size` bytes; fewer only at the end of the file. Also for `/proc`, whose files say they are empty."""
    parts, left = [], size
    while left > 0 and (part := file.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


_KINDS = {
    stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO (named pipe)", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device",
}  # fmt: skip
_OTHER = "no regular file"


def is_inline(value: str) -> bool:
    """Whether the value of a flag is a JSON object itself, not the name of a file that holds one."""
    return value.lstrip().startswith("{")


def named_file(value: str, cwd: Path) -> Path | None:
    """The file that the value of a flag names, from `cwd`; None where it is inline."""
    return None if is_inline(value) else cwd / Path(value).expanduser()


def kind_of(mode: int) -> str:
    """What a thing is, from its `st_mode`, in words."""
    return _KINDS.get(stat.S_IFMT(mode), _OTHER)


# ── the way there ────────────────────────────────────────────────────────────────────────────────────────────────────


def _walk(path: Path, root: Path, follow: bool) -> int:
    """A descriptor of what stands at `path`, reached from `root` without leaving it. Raises `OSError`."""
    roots = (root, Path(os.path.realpath(root)))
    names = _below(path, roots)
    if names is None:
        raise Outside(path, root)
    way, links = [os.open(root, _STEP & ~os.O_NOFOLLOW)], 0
    try:
        while True:
            name, *rest = names or ["."]
            if name == "..":
                if len(way) == 1:
                    raise Outside(path, root)
                os.close(way.pop())
                names = rest
                continue
            try:
                fd = os.open(name, _STEP if rest else _READ | os.O_NOFOLLOW, dir_fd=way[-1])
            except OSError as error:
                links += 1
                names = [*_target(name, way, error, path, root, roots), *rest]
                if links > MAX_LINKS or not follow:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
                continue
            if not rest:
                return fd
            way.append(fd)
            names = rest
    finally:
        for opened in way:
            os.close(opened)


def _target(name: str, way: list[int], error: OSError, path: Path, root: Path, roots: tuple[Path, Path]) -> list[str]:
    """The names to walk instead of the link `name`, `way` cut back to where they begin. Raises `error` where `name` is
    no link, `Outside` where it leads out at once."""
    if error.errno not in _IS_LINK:
        raise error
    try:
        text = os.readlink(name, dir_fd=way[-1])
    except OSError:
        raise error from None
    if not os.path.isabs(text):
        return _parts(Path(text))
    names = _below(Path(text), roots)
    if names is None:
        raise Outside(path, root)
    while len(way) > 1:
        os.close(way.pop())
    return names


def _below(path: Path, roots: tuple[Path, Path]) -> list[str] | None:
    """The names that lead from a root to `path`, None if it does not lie below one by its spelling."""
    return next((_parts(path.relative_to(root)) for root in roots if path.is_relative_to(root)), None)


def _parts(path: Path) -> list[str]:
    return [part for part in path.parts if part != "."]


# ── replacing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def replace(path: Path, data: bytes, *, like: os.stat_result | None = None, mode: int = MODE) -> os.stat_result:
    """Write `data` beside `path` and rename it over it: a reader sees all of the old or all of the new, also after a
    power cut. Mode, owner (as far as permitted) and extended attributes are those of `like`, the state of the file that
    is replaced; a new file gets `mode` less the umask. Raises `OSError`; nothing of it then stays behind."""
    temporary = path.parent / f".coordinator-{secrets.token_hex(6)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb", buffering=0) as file:
            write_all(file, data)
            if like is not None:
                _keep_attributes(file.fileno(), path, like)
            os.fsync(file.fileno())
            info = os.fstat(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return info


def write_all(file: BinaryIO, data: bytes) -> None:
    """All of `data`, however much an unbuffered file takes at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _keep_attributes(fd: int, path: Path, old: os.stat_result) -> None:
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(fd, old.st_uid, old.st_gid)
    for name, value in _extended_attributes(path):
        with contextlib.suppress(OSError):
            os.setxattr(fd, name, value)
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


def _extended_attributes(path: Path) -> Iterator[tuple[str, bytes]]:
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for name in os.listxattr(path):
                with contextlib.suppress(OSError):
                    yield name, os.getxattr(path, name)
