"""A shell command and its whole process tree: started, read within bounds, ended for certain.

Rules:

1. Standard input is closed: what asks for input gets end-of-file, it never waits.
2. The command is over when its shell is over. What it wrote until then is read; a background child that holds the
   pipe is not waited for (`DRAIN` seconds at most). Such a child lives on, is named, and its output is still read.
3. Memory holds the head and the tail of the output, the rest goes to a file; at the file's cap the tree is ended.
4. Time limit, cap and cancellation end the whole tree (`process_tree.py`) before the call returns or raises.
5. The command travels in the environment, not on the command line: `pkill -f` of a word in it does not match its own
   shell. `pkill` and `pgrep` leave out their ancestors where they can: the shell, and the program that runs it.
6. Bytes become text incrementally, with replacement; known secrets are taken out before text reaches file or memory.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import secrets
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field

from worker_agent.config import SystemClock
from worker_agent.process_tree import (
    SHELL_MARKER,
    TASK_MARKER,
    ProcessTree,
    Survivor,
    end_tree,
    find_tree,
    marked,
    set_subreaper,
    start_time,
    sweep_zombies,
)
from worker_agent.structs import replace

__all__ = [
    "SHELL_MARKER", "TASK_MARKER", "ProcessTree", "ShellOutcome", "Survivor", "Wrap", "Wrapped",
    "end_tree", "find_tree", "run_shell", "set_subreaper", "start_time", "sweep_zombies",
]  # fmt: skip

T = TypeVar("T")

DRAIN = 0.1  # seconds to wait for the end of the pipe after the shell ended
CHUNK = 64 * 1024
CARRY = 4096  # characters of an unfinished line kept back, so that a secret is never cut in two
MAX_COMMAND = 100_000  # bytes; the kernel takes 128 KiB in one variable
BINARY_SHARE = 0.1  # share of control and replacement characters from which output counts as binary
_COMMAND = "COORDINATOR_COMMAND"
_BASH = ("--noprofile", "--norc", "-c")
_SH = ("/bin/sh", "-c")

# The command is evaluated on line 1, so that line numbers in messages are its own. The directory it ends in goes to a
# private descriptor: by the trap when it calls `exit`, and by hand where it set a trap of its own.
_PRELUDE = """\
trap 'command pwd -P >&{fd} 2>/dev/null || :' EXIT; \
pkill() {{ if command pkill -A -h >/dev/null 2>&1; then command pkill -A "$@"; else command pkill "$@"; fi; }}; \
pgrep() {{ if command pgrep -A -h >/dev/null 2>&1; then command pgrep -A "$@"; else command pgrep "$@"; fi; }}; \
eval "unset {name}; ${name}"
set -- "$?"
command pwd -P >&{fd} 2>/dev/null || :
exit "$1"
"""


def _nothing() -> None:
    pass


class Wrapped(Struct, frozen=True):
    """A command inside a confinement. `environment` comes on top of the command's own, `pass_fds` stay open in it.
    `close` frees what the wrapping holds, at the end and in every case. `finish` looks at what the command left behind, from
    a thread; what it answers is told with the outcome, a sentence each. `ends_all`: what the command leaves running ends with
    it; what is seen of that afterwards is on its way out, and no background process."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()
    ends_all: bool = False
    close: Callable[[], None] = _nothing
    finish: Callable[[], Sequence[str]] | None = None


Wrap = Callable[[Sequence[str], Path], Wrapped]
"""argv and directory → the command confined. Called from a thread: it may look through directories. Raises `OSError`."""


class ShellOutcome(Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is negative for a signal, None if the shell's end was not seen. `output` is what
    was kept, with a line in its middle that says what was left out when `truncated`. `output_file` holds all of it up
    to the cap; None when it fitted. `background` lives on after the shell; `survivors` should be gone and are not.
    `cwd` is the directory the shell ended in, None if unknown. `duration` in seconds, `size` in bytes. `notes` is what a
    confinement has to say."""

    exit_code: int | None
    output: str
    truncated: bool = False
    output_file: Path | None = None
    timed_out: bool = False
    capped: bool = False
    binary: bool = False
    size: int = 0
    duration: float = 0.0
    cwd: Path | None = None
    survivors: tuple[Survivor, ...] = ()
    background: tuple[Survivor, ...] = ()
    pid: int | None = None
    notes: tuple[str, ...] = ()


async def run_shell(
    command: str | Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output_file: Path,
    timeout: float | None = None,
    keep: int = 30_000,
    file_cap: int = 64 * 1024 * 1024,
    live: bool = False,
    grace: float = 2.0,
    wrap: Wrap | None = None,
    redact: Callable[[str], str] = lambda text: text,
    memory: int | None = None,
    nice: int | None = None,
    on_start: Callable[[int, float], None] | None = None,
    on_output: Callable[[str], None] | None = None,
) -> ShellOutcome:
    """Run a shell command (text) or a program (argv) to its end.

    `keep` is in characters, `file_cap` in bytes, times in seconds. `live`: the file is written from the first byte on,
    line by line, for those who follow it. `wrap` confines it; `memory` (MiB a process) and `nice` bound it. `on_start` gets pid and start time.
    `on_output` gets each piece of cleaned text. Raises `OSError` if the program cannot be started, `ValueError` for a
    command that cannot be passed on. On cancellation the tree is ended first."""
    shell = _Shell(command, Path(cwd), env, wrap, memory, nice)
    output = Output(output_file, keep, file_cap, redact, live, on_output)
    try:
        process = await _started(shell, output, grace)
        tree = ProcessTree(process.pid, shell.started, shell.marker, begun_here=True)
        if on_start:
            on_start(process.pid, shell.started)
        outcome = await _attend(shell, process, tree, output, timeout, grace)
    finally:
        try:
            notes = await shell.finish()
        finally:
            shell.close()
            output.close_unless_held()
            sweep_zombies()
    return replace(outcome, notes=notes)


async def _started(shell: _Shell, output: Output, grace: float) -> asyncio.subprocess.Process:
    try:
        return await shell.start(output)
    except asyncio.CancelledError:
        await _to_the_end(end_tree(None, None, shell.marker, grace))  # asyncio ends the shell alone
        raise


async def _attend(
    shell: _Shell,
    process: asyncio.subprocess.Process,
    tree: ProcessTree,
    output: Output,
    timeout: float | None,
    grace: float,
) -> ShellOutcome:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    survivors: list[Survivor] = []
    background: list[Survivor] = []
    ended = asyncio.ensure_future(process.wait())
    try:
        first: set[asyncio.Future[Any]] = {ended, output.capped}
        await asyncio.wait(first, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        timed_out = not ended.done() and not output.capped.done()
        if not ended.done():
            survivors = await _to_the_end(tree.end(grace, SystemClock()))
        await output.drain(DRAIN)
        if ended.done() and not survivors and (not output.ended or _group_lives(process.pid)):
            if shell.ends_all:
                survivors = await _to_the_end(tree.end(grace, SystemClock()))
            else:
                background = tree.living()
    except asyncio.CancelledError:
        await _to_the_end(tree.end(grace, SystemClock()))
        raise
    finally:
        await _settle(ended)
    if background:
        output.hold()
    text = output.text()
    return ShellOutcome(
        exit_code=process.returncode,
        output=text,
        truncated=output.truncated,
        output_file=output.path_if_written(),
        timed_out=timed_out,
        capped=output.capped.done(),
        binary=output.binary,
        size=output.size,
        duration=loop.time() - begun,
        cwd=shell.final_cwd(),
        survivors=tuple(survivors),
        background=tuple(background),
        pid=process.pid,
    )


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await what must not stop half-way: a further cancellation is held back until it is done (it is bounded)."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.result()
        raise asyncio.CancelledError
    return task.result()


async def _settle(ended: asyncio.Future[int]) -> None:
    """Leave no pending task: give the loop a moment to reap the shell, then let go."""
    if not ended.done():
        await asyncio.wait({ended}, timeout=DRAIN)
    if not ended.done():
        ended.cancel()
        await asyncio.wait({ended}, timeout=DRAIN)


def _group_lives(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class _Shell:
    """How one command is started, and the descriptor through which its last directory comes back."""

    def __init__(
        self,
        command: str | Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        wrap: Wrap | None,
        memory: int | None = None,
        nice: int | None = None,
    ) -> None:
        self._memory, self._nice = memory, nice
        self.id = secrets.token_hex(8)
        self.started = 0.0
        self._cwd = cwd
        self._env = {**env, SHELL_MARKER: self.id}
        self._read, self._write = -1, -1
        if isinstance(command, str):
            if "\x00" in command or len(os.fsencode(command)) > MAX_COMMAND:
                raise ValueError(f"a command is text without NUL of at most {MAX_COMMAND:,} bytes")
            self._env[_COMMAND] = command
            self._read, self._write = os.pipe()
            prelude = _PRELUDE.format(fd=self._write, name=_COMMAND)
            bash = shutil.which("bash")
            argv: Sequence[str] = [bash, *_BASH, prelude, "bash"] if bash else [*_SH, prelude, "sh"]
        else:
            argv = list(command)
        self._argv, self._wrap = argv, wrap
        self._wrapped: Wrapped | None = None

    @property
    def marker(self) -> str:
        return f"{SHELL_MARKER}={self.id}"

    @property
    def ends_all(self) -> bool:
        return self._wrapped is not None and self._wrapped.ends_all

    async def start(self, output: Output) -> asyncio.subprocess.Process:
        pass_fds = (self._write,) if self._write >= 0 else ()
        self._wrapped = await self._confined()
        writer = output.open()
        try:
            process = await asyncio.create_subprocess_exec(
                *marked(
                    self._wrapped.argv, shell=self.id, task=self._env.get(TASK_MARKER), memory=self._memory, nice=self._nice
                ),
                cwd=self._cwd,
                env={**self._env, **self._wrapped.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                pass_fds=(*pass_fds, *self._wrapped.pass_fds),
            )
        finally:
            os.close(writer)
        self.started = start_time(process.pid) or SystemClock().now()
        return process

    async def _confined(self) -> Wrapped:
        """The command inside its confinement. What the wrapping holds is freed also when nobody waits for it any more."""
        if self._wrap is None:
            return Wrapped(self._argv)
        making = asyncio.ensure_future(asyncio.to_thread(self._wrap, self._argv, self._cwd))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda made: None if made.cancelled() or made.exception() else made.result().close())
            raise

    async def finish(self) -> tuple[str, ...]:
        """What the confinement says once the command is over; a cancellation does not cut it short."""
        if self._wrapped is None or self._wrapped.finish is None:
            return ()
        return tuple(await _to_the_end(asyncio.to_thread(self._wrapped.finish)))

    def final_cwd(self) -> Path | None:
        if self._read < 0:
            return None
        os.set_blocking(self._read, False)
        try:
            data = os.read(self._read, CHUNK)
        except BlockingIOError:
            return None
        half = data[: len(data) // 2]
        if half + half == data:  # told twice: by hand and by the trap
            data = half
        path = Path(os.fsdecode(data[:-1])) if data.startswith(b"/") else None
        return path if path is not None and path.is_dir() else None

    def close(self) -> None:
        for fd in (self._read, self._write):
            if fd >= 0:
                os.close(fd)
        self._read, self._write = -1, -1
        if self._wrapped is not None:
            self._wrapped.close()


class Output:
    """What a command writes: head and tail in memory, all of it in a file up to the cap. Read by the event loop,
    without a task of its own, so that a background child can be read on after the call."""

    def __init__(
        self,
        path: Path,
        keep: int,
        file_cap: int,
        redact: Callable[[str], str],
        live: bool,
        on_output: Callable[[str], None] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.capped: asyncio.Future[None] = self._loop.create_future()
        self.size = 0
        self._path = path
        self._keep_head, self._keep_tail = keep - keep // 2, keep // 2
        self._file_cap = file_cap
        self._redact = redact
        self._on_output = on_output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._head = ""
        self._tail = ""
        self._characters = 0
        self._fd = -1
        self._file = -1
        self._written = 0
        self._opened = False
        self._unwritable: str | None = None
        self._held = False
        self._eof: asyncio.Future[None] = self._loop.create_future()
        self._live = live

    # -- reading ------------------------------------------------------------------------------------------------

    def open(self) -> int:
        """Open the pipe; gives the descriptor to write to."""
        if self._live:
            self._open_file()
        self._fd, writer = os.pipe()
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._readable)
        return writer

    @property
    def ended(self) -> bool:
        return self._eof.done()

    async def drain(self, seconds: float) -> None:
        """Read what is there, and wait at most `seconds` for the end of the pipe."""
        if not self._eof.done():
            await asyncio.wait({self._eof}, timeout=seconds)

    def hold(self) -> None:
        """Keep reading after the call, into the file, until the pipe ends or the cap is reached."""
        if not self.ended:
            self._flush_pending()
            self._open_file()
            self._held = True

    def close_unless_held(self) -> None:
        if not self._held:
            self._close()

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.size += len(data)
        if self.size >= self._file_cap and not self.capped.done():
            self.capped.set_result(None)
        self._take(self._decoder.decode(data, final=not data))
        if not data or (self._held and self.capped.done()):
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if not self._eof.done():
            self._eof.set_result(None)
        self._flush_pending()
        self._close_file()

    # -- keeping ------------------------------------------------------------------------------------------------

    def _take(self, text: str) -> None:
        self._pending += text
        cut = self._pending.rfind("\n") + 1
        if not cut and len(self._pending) > CHUNK:
            self._pending = self._redact(self._pending)
            cut = max(len(self._pending) - CARRY, 0)
        if cut:
            whole, self._pending = self._pending[:cut], self._pending[cut:]
            self._store(self._redact(whole))

    def _flush_pending(self) -> None:
        if self._pending:
            text, self._pending = self._redact(self._pending), ""
            self._store(text)

    def _store(self, text: str) -> None:
        self._characters += len(text)
        if self._file >= 0:
            self._write(text)
        room = self._keep_head - len(self._head)
        if room > 0:
            self._head += text[:room]
        self._tail += text[max(room, 0) :]
        if self.truncated:
            self._overflow()
        if self._on_output and not self._held:
            self._on_output(text)

    def _overflow(self) -> None:
        if not self._opened and not self.binary:
            self._open_file()
        if len(self._tail) > 2 * self._keep_tail + CHUNK:
            self._tail = self._tail[-self._keep_tail :]

    # -- the file -----------------------------------------------------------------------------------------------

    def _open_file(self) -> None:
        if self._opened or self._unwritable is not None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._unwritable = error.strerror or type(error).__name__
            return
        self._opened = True
        self._write(self._head + self._tail)

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[: max(self._file_cap - self._written, 0)]
        try:
            while data:
                done = os.write(self._file, data)
                self._written += done
                data = data[done:]
        except OSError as error:
            self._unwritable = error.strerror or type(error).__name__
            self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # -- what is told -------------------------------------------------------------------------------------------

    @property
    def truncated(self) -> bool:
        return self._characters > self._keep_head + self._keep_tail

    @property
    def binary(self) -> bool:
        sample = self._head[:8192]
        odd = sum(1 for c in sample if c == "\ufffd" or (c < " " and c not in "\t\n\r\b\f\x1b"))
        return odd > BINARY_SHARE * len(sample) and odd > 2

    def path_if_written(self) -> Path | None:
        return self._path if self._opened and not self.binary else None

    def text(self) -> str:
        """Head and tail, with a line between them that says how much is left out."""
        self._flush_pending()
        if self.binary:
            return ""
        if not self.truncated:
            return self._head + self._tail
        tail = self._tail[-self._keep_tail :]
        left_out = self._characters - len(self._head) - len(tail)
        where = f"; the output is in {self._path}" if self._opened else ""
        if self._unwritable:
            where = f"; it could not be written to a file: {self._unwritable}"
        return f"{self._head}\n[… {left_out:,} characters left out{where} …]\n{tail}"
