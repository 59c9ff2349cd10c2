"""The kernel itself: Landlock, and user, mount and network namespaces where they are allowed. No program to install.

Landlock grants and cannot take away below a grant. Without namespaces a command can be kept from writing anywhere (reading
is granted entry by entry around what must not be read), but a working directory cannot be given without what lies in it:
WORKSPACE is then not held, and neither are deny rules about paths at GUARD.

The launcher (`launcher.py`) does the work in the process that becomes the command. It costs some 20 ms a command; doing the
same between fork and exec would cost a third, but it would run Python in the child of a process with threads, where any lock
may be held for ever. On PyPI there was nothing to build on: a development version, a 0.1, and a supervisor in a binary wheel.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from worker_agent.process import Wrapped
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement.handed import handed_over
from worker_agent.tools.confinement.plan import EMPTY, Plan, Step, lies_in

LAUNCHER = Path(__file__).with_name("launcher.py")
PROBE_SECONDS = 10.0
LEAST_SIGNALS = 6  # the version of Landlock that holds signals and abstract sockets
_OF_THIS_PROCESS = ("self", "thread-self")


class Native(Struct, frozen=True):
    """`abi` is Landlock's version. `namespaces`: mounts and network of its own are to be had."""

    abi: int
    namespaces: bool

    @property
    def name(self) -> str:
        return "Landlock with namespaces" if self.namespaces else "Landlock"

    @property
    def masks(self) -> bool:
        return self.namespaces

    @property
    def lacks(self) -> tuple[str, ...]:
        lacks = []
        if not self.namespaces:
            lacks.append(
                "this system allows no user namespaces, so nothing inside a working directory can be kept from a command"
            )
        if self.abi < LEAST_SIGNALS:
            lacks.append(f"Landlock is of version {self.abi} here, and signals are held from version {LEAST_SIGNALS} on")
        return tuple(lacks)

    def describe(self) -> str:
        held = "files, denied paths, network" if self.namespaces else "files outside the working directory, sockets"
        signals = " and signals" if self.abi >= LEAST_SIGNALS else ""
        missing = "".join(f"; {lack}" for lack in self.lacks)
        return f"{self.name} (version {self.abi}): {held}{signals}{missing}"

    def wrap(self, plan: Plan, argv: Sequence[str]) -> Wrapped:
        program = shutil.which(argv[0])
        if program is None:
            raise FileNotFoundError(2, os.strerror(2), argv[0])
        own = None if self.namespaces or not plan.closed else tempfile.mkdtemp(prefix="coordinator-")
        fd = handed_over(marshal.dumps(self._told(plan, own)))

        def close() -> None:
            os.close(fd)
            if own:
                shutil.rmtree(own, ignore_errors=True)

        return Wrapped(
            (sys.executable, "-I", "-S", str(LAUNCHER), str(fd), "--", program, *argv[1:]),
            environment={"TMPDIR": own or "/tmp"} if plan.closed else {},
            pass_fds=(fd,),
            close=close,
        )

    def _told(self, plan: Plan, own: str | None) -> dict[str, object]:
        temporary = [own] if own else [*EMPTY]
        return {
            "closed": plan.closed,
            "namespaces": self.namespaces,
            "network": plan.network,
            "cwd": plan.cwd,
            "empty": [path for path in EMPTY if os.path.isdir(path)] if plan.closed else [],
            "steps": [tuple(step) for step in plan.steps] if self.namespaces else [],
            "listed": ["/"] if self.namespaces else [],
            "readable": self._readable(plan) if plan.closed else [],
            "granted": [*plan.writable, *temporary],
            "sockets": self._sockets(plan),
            "metadata": plan.level is Confine.READ_ONLY and not self.namespaces and _filters(),
        }

    def _sockets(self, plan: Plan) -> str:
        if plan.network or not _filters():
            return "any"
        if plan.level is Confine.READ_ONLY:
            return "none"
        return "any" if self.namespaces else "local"

    def _readable(self, plan: Plan) -> list[str]:
        if self.namespaces:  # masks hide what is not to be read; devices are granted one by one
            return [entry.path for entry in os.scandir("/") if entry.name != "dev"]
        shown, hidden, denied = plan.paths("show", "write"), plan.paths("hide"), _denied(plan)
        readable = list(_around("/", [*hidden, *EMPTY]))
        for path in shown:
            if not lies_in(path, denied):  # a place that lies deeper is hidden after it was shown
                readable += _around(path, [place for place in hidden if place != path and lies_in(place, (path,))])
        return readable


def _filters() -> bool:
    return os.uname().machine in ("x86_64", "aarch64")


def _denied(plan: Plan) -> list[str]:
    """What no place shows again: the hidden steps behind the last shown one."""
    last = max((i for i, step in enumerate(plan.steps) if step.how in ("show", "write")), default=-1)
    return [step.path for step in plan.steps[last + 1 :] if step.how == "hide"]


def _around(directory: str, hidden: Sequence[str]) -> Iterator[str]:
    """The fewest places that together hold all of `directory` but what is hidden. What is made later in a directory that
    had to be split up cannot be read."""
    below = [path for path in hidden if lies_in(path, (directory,))]
    if directory in below or directory == "/dev":
        return
    if directory != "/proc" and not below:
        yield directory
        return
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if directory == "/proc" and (entry.name.isdigit() or entry.name in _OF_THIS_PROCESS):
            continue  # others' environments: Landlock does not hold them
        if entry.is_symlink():
            continue  # it is judged where it leads to
        yield from (
            _around(entry.path, below)
            if entry.is_dir(follow_symlinks=False)
            else (() if entry.path in below else (entry.path,))
        )


def find() -> tuple[Native | None, str]:
    """What this kernel gives, tried by effect, and why not."""
    if not sys.platform.startswith("linux"):
        return None, "Landlock is Linux's"
    abi = ctypes.CDLL(None).syscall(444, None, 0, 1)
    if abi < 1:
        return None, "this kernel has no Landlock"
    problem = ""
    for namespaces in (True, False):
        means = Native(abi, namespaces)
        problem = _problem(means)
        if not problem:
            return means, ""
    return None, f"Landlock does not work here ({problem})"


def _problem(means: Native) -> str:
    plan = Plan(level=Confine.READ_ONLY, cwd="/", steps=(Step("hide", "/etc/hostname"),), writable=(), network=False)
    wrapped = means.wrap(plan, ("true",))
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
        return str(error)
    finally:
        wrapped.close()
    return "" if done.returncode == 0 else done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


__all__ = ["Native", "find"]
