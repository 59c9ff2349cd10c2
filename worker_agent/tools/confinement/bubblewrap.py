"""bubblewrap (`bwrap`): mounts, process, IPC and network namespaces made by a program of its own.

Inside a closed plan: the whole file system to read but what is hidden; own `/tmp`, `/dev` and `/proc`; nothing outside can be
seen or signalled; a wrapper dies with its parent, and what a command left running dies with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache

from msgspec import Struct

from worker_agent.process import Wrapped
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement.handed import handed_over
from worker_agent.tools.confinement.plan import Plan

PROBE_SECONDS = 10.0
# With one of these a process that is root could look past a mask.
_UNMASKING = (
    "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_MKNOD",
)  # fmt: skip


class Bubblewrap(Struct, frozen=True):
    program: str
    name: str = "bubblewrap"
    masks: bool = True
    lacks: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"bubblewrap ({self.program}): files, denied paths, network, signals and other processes"

    def wrap(self, plan: Plan, argv: Sequence[str]) -> Wrapped:
        options = b"\0".join(os.fsencode(option) for option in self._options(plan)) + b"\0"
        fd = handed_over(options)  # not on the command line: `pkill -f` of a path in it would match the wrapper
        return Wrapped(
            (self.program, "--args", str(fd), "--", *argv),
            environment={"TMPDIR": "/tmp"} if plan.closed else {},
            pass_fds=(fd,),
            ends_all=plan.closed,
            close=lambda: os.close(fd),
        )

    def _options(self, plan: Plan) -> Iterator[str]:
        yield from self._closed(plan) if plan.closed else self._guarding()
        for how, path in plan.steps:
            if how == "hide":
                yield from ("--tmpfs", path) if os.path.isdir(path) else ("--ro-bind", "/dev/null", path)
            else:
                yield from ("--ro-bind" if how in ("show", "freeze") else "--bind", path, path)
        for path in plan.paths("hide"):
            if os.path.isdir(path):  # only now: places were made in it for what is shown below
                yield from ("--remount-ro", path)
        yield from ("--chdir", plan.cwd)

    def _closed(self, plan: Plan) -> Iterator[str]:
        yield from ("--die-with-parent", "--cap-drop", "ALL", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
        yield "--unshare-cgroup-try"
        if not plan.network:
            yield "--unshare-net"
        yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
        for path in _kernel_settings():
            yield from ("--ro-bind", path, path)

    def _guarding(self) -> Iterator[str]:
        if os.geteuid() == 0:
            for capability in _UNMASKING:
                yield from ("--cap-drop", capability)
        yield from ("--dev-bind", "/", "/")


@cache
def _kernel_settings() -> tuple[str, ...]:
    """What of `/proc` belongs to no process and may be written by somebody: a new `/proc` is writable, and the kernel lets
    root, without any capability and in whatever namespace, set what holds for the whole machine."""
    return tuple(
        entry.path
        for entry in sorted(os.scandir("/proc"), key=lambda entry: entry.name)
        if not entry.name.isdigit() and not entry.is_symlink() and _may_be_written(entry)
    )


def _may_be_written(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or bool(entry.stat(follow_symlinks=False).st_mode & 0o222)


def find(program: str | None = None) -> tuple[Bubblewrap | None, str]:
    """bubblewrap, if it works here, and why not."""
    found = program or shutil.which("bwrap")
    if found is None:
        return None, "bubblewrap (bwrap) is not installed"
    means = Bubblewrap(found)
    plan = Plan(level=Confine.READ_ONLY, cwd="/", steps=(), writable=(), network=False)
    wrapped = means.wrap(plan, (shutil.which("true") or "true",))
    try:
        done = subprocess.run(
            wrapped.argv,
            capture_output=True,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
            pass_fds=wrapped.pass_fds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"bubblewrap does not start ({error})"
    finally:
        wrapped.close()
    first = next(iter(done.stderr.decode("utf-8", "replace").strip().splitlines()), "")
    if done.returncode:
        return None, f"bubblewrap does not work here ({first or f'exit code {done.returncode}'})"
    return means, ""


__all__ = ["Bubblewrap", "find"]
