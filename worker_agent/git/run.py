"""One call of git, within bounds: clean environment, closed input, its process tree ended."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from worker_agent.config import SystemClock
from worker_agent.errors import ConfigError
from worker_agent.git.place import place_of
from worker_agent.git.quiet import filters, own_environment, program, settings_of
from worker_agent.process_tree import SHELL_MARKER, ProcessTree, start_time

TIMEOUT = 60.0  # seconds
MAX_OUTPUT = 64 * 1024 * 1024  # bytes of standard output
MAX_WORDS = 64 * 1024  # bytes of standard error that are kept
MAX_COMPLAINT = 400  # characters of what git complains of
GRACE = 2.0  # seconds between TERM, at which git removes its lock files, and KILL
CHUNK = 64 * 1024
NONE: Mapping[str, str] = MappingProxyType({})


class Done(Struct, frozen=True):
    """How a call ended. `code` is git's own; -1: it could not run, or was ended at a bound, and `err` says which in one
    line. `out` is standard output as it came, `err` standard error as text."""

    code: int
    out: bytes = b""
    err: str = ""
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Standard output as text, without white space at its ends; bytes that are no UTF-8 as the file system's names."""
        return os.fsdecode(self.out).strip()

    @property
    def words(self) -> str:
        """What git complains of, on one line, without its hints."""
        said = (self.err or os.fsdecode(self.out)).strip().splitlines()
        return " ".join(line.strip() for line in said if not line.startswith("hint:"))[:MAX_COMPLAINT] or "failed"

    @property
    def names(self) -> list[str]:
        """Standard output as the names that `-z` ends with NUL."""
        return os.fsdecode(self.out).split("\0")[:-1]


async def run_git(
    directory: Path, *arguments: str, timeout: float = TIMEOUT, max_output: int = MAX_OUTPUT, input: bytes = b"",
    settings: Mapping[str, str] = NONE, variables: Mapping[str, str] = NONE,
) -> Done:  # fmt: skip
    """Run git in `directory`; never raises but for cancellation, before which its process tree is ended. `timeout` in
    seconds, `max_output` in bytes. `settings` beat those that keep it quiet; `variables` are added to its environment
    (`GIT_INDEX_FILE`)."""
    try:
        environment = own_environment(await asyncio.to_thread(settings_of, directory), variables)
        given = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        argv = [program(environment), "-C", str(directory), *given, *arguments]
    except ConfigError as error:
        return Done(-1, err=str(error))
    marker = secrets.token_hex(8)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if input else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, SHELL_MARKER: marker},
            start_new_session=True,
        )
    except OSError as error:
        return Done(-1, err=f"git cannot be started: {error.strerror or error}")
    tree = ProcessTree(process.pid, start_time(process.pid), f"{SHELL_MARKER}={marker}", begun_here=True)
    return await _attended(process, tree, arguments[0], timeout, max_output, input)


def git_now(
    directory: Path, *arguments: str, timeout: float = TIMEOUT, max_output: int = MAX_OUTPUT, input: bytes = b"",
    settings: Mapping[str, str] = NONE, variables: Mapping[str, str] = NONE,
) -> Done:  # fmt: skip
    """`run_git` where no event loop runs."""
    call = run_git(
        directory, *arguments, timeout=timeout, max_output=max_output, input=input, settings=settings, variables=variables
    )  # fmt: skip
    return asyncio.run(call)


async def filtered(directory: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """Which of the files `names` (relative to `directory`, the top of a tree) belong to a filter that is configured, by the
    filter's name. Filters are never run by us: such a file stands in a tree of ours as git stores it, and must not be
    stored by us as it stands in a tree. Raises `ConfigError` when it cannot be told."""
    configured = filters(await asyncio.to_thread(settings_of, directory))
    asked = b"".join(os.fsencode(name) + b"\0" for name in names)
    if not configured or not asked:
        return {}
    done = await run_git(directory, "check-attr", "-z", "--stdin", "filter", input=asked)
    if done.code:
        raise ConfigError(f"the filters of {directory} cannot be told: {done.words}")
    fields = done.names
    found: dict[str, list[str]] = {}
    for name, value in zip(fields[::3], fields[2::3], strict=True):
        if value in configured:
            found.setdefault(value, []).append(name)
    return found


async def left_out(directory: Path, hooks: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """What git would have run in the tree `directory` and ours did not, in words: those of `hooks` that the repository
    has, and the filters of the files `names`. Raises `ConfigError` when it cannot be told."""
    place = place_of(directory)
    if place is None:
        return ()
    settings = await asyncio.to_thread(settings_of, directory)
    home = place.directory / os.path.expanduser(settings.get("core.hookspath") or place.common / "hooks")
    there = [f"the hook {name}" for name in hooks if os.access(home / name, os.X_OK)]
    marked = await filtered(directory, names)
    return (*there, *(f"the filter {name} ({len(found)} file{'s'[: len(found) > 1]})" for name, found in marked.items()))


def quoted(path: Path) -> str:
    """As it stands in a variable that lists paths with colons between them (`GIT_ALTERNATE_OBJECT_DIRECTORIES`)."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def _attended(
    process: asyncio.subprocess.Process, tree: ProcessTree, verb: str, timeout: float, max_output: int, input: bytes
) -> Done:
    try:
        async with asyncio.timeout(timeout):
            out, err, _, _ = await asyncio.gather(
                _all_of(process.stdout, max_output), _beginning(process.stderr), _fed(process.stdin, input), process.wait()
            )
    except TimeoutError:
        await _ended(process, tree)
        return Done(-1, err=f"git {verb} did not end within {timeout:.0f} s", timed_out=True)
    except _TooMuch:
        await _ended(process, tree)
        return Done(-1, err=f"git {verb} gave more than {max_output:,} bytes")
    except asyncio.CancelledError:
        await _ended(process, tree)
        raise
    return Done(process.returncode or 0, out, err.decode("utf-8", "replace"))


class _TooMuch(Exception):
    """More output than may be."""


async def _all_of(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    assert stream is not None
    pieces, size = [], 0
    while piece := await stream.read(CHUNK):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise _TooMuch
    return b"".join(pieces)


async def _beginning(stream: asyncio.StreamReader | None) -> bytes:
    """The first `MAX_WORDS` bytes; the rest is read and dropped."""
    assert stream is not None
    kept = b""
    while piece := await stream.read(CHUNK):
        kept += piece[: MAX_WORDS - len(kept)]
    return kept


async def _fed(stream: asyncio.StreamWriter | None, input: bytes) -> None:
    if stream is None:
        return
    try:
        stream.write(input)
        await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended without reading; its code says how
    finally:
        stream.close()


async def _ended(process: asyncio.subprocess.Process, tree: ProcessTree) -> None:
    """End the tree; a cancellation meanwhile is held back until that is done (it is bounded)."""

    async def end() -> None:
        await tree.end(GRACE, SystemClock())
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=GRACE)

    ending = asyncio.ensure_future(end())
    cancelled = False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
