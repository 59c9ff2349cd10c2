"""One process tree, found and ended, from this process or from any other.

How a process is known to belong to the tree (each way catches what another misses):

1. the root itself, known by pid *and* start time, so that a reused pid is never taken for it;
2. the parent walk: children of members, also of those that called `setsid` or cleared their environment;
3. the session of the root, and of members that lead one: catches `timeout`, which makes a process group of its own,
   and orphans whose parent is gone;
4. the marker in the environment (`COORDINATOR_TASK_ID=…`, `COORDINATOR_SHELL_ID=…`): catches daemons that forked
   twice and lead their own session;
5. the mark in a resource limit that nothing else uses (Linux, `marked`): it is inherited over fork and exec, and a
   process that cleared its environment still bears it.

What is once known stays known from scan to scan. Not to be found is one kind only, and only where the fifth way is not
to be had: a process that cleared its environment *and* leads a session of its own *and* lost its parent before the
first scan saw it. Under `set_subreaper` it is at least a child of this process, not of init.

Ending is TERM, a grace period, KILL, repeated until two scans in a row find nothing; what is left is named. This
process and its ancestors are never signalled. A zombie counts as gone. Those that became ours by adoption are reaped
here: at once where we know them as such, else when nobody else has reaped them for `ZOMBIE_AGE` seconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b

import psutil
from msgspec import Struct

from worker_agent.config import Clock, SystemClock

TASK_MARKER = "COORDINATOR_TASK_ID"
SHELL_MARKER = "COORDINATOR_SHELL_ID"

KILL_BOUND = 3.0  # seconds of scanning after the first KILL; what lives then is a survivor
LAST_BLOW = 1.0  # seconds to kill what is below a process that leaves at once
REAP_PATIENCE = 0.1  # seconds that asyncio has to reap its own child before a zombie of the tree counts as adopted
ZOMBIE_AGE = 1.0  # the same for a zombie of which we know nothing
SAME_START = 1.5  # seconds by which two readings of one start time may differ: the boot time is read off a clock
_GONE = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})


class Survivor(Struct, frozen=True):
    """A process that lives: `start_time` in seconds since the epoch, `cmdline` joined by blanks, shortened."""

    pid: int
    start_time: float
    cmdline: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.cmdline})"


class _Row(Struct, frozen=True):
    pid: int
    parent: int
    session: int
    group: int
    start: float
    gone: bool


def start_time(pid: int) -> float | None:
    """When the process began, in seconds since the epoch; None if there is none."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def set_subreaper(wanted: bool = True) -> bool:
    """Make this process the parent of orphans below it (Linux), so that a daemon stays findable; or, with False, stop
    it. Whether it worked."""
    if sys.platform != "linux":
        return False
    import ctypes

    pr_set_child_subreaper = 36
    _adopted.expect(wanted)
    return bool(ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, int(wanted), 0, 0, 0) == 0)


def find_tree(pid: int | None, start_time: float | None = None, marker: str | None = None) -> list[Survivor]:
    """What lives of a tree now, oldest first. `marker` is `NAME=value` or the bare value of either marker variable."""
    return _named(ProcessTree(pid, start_time, marker).scan())


async def end_tree(
    pid: int | None,
    start_time: float | None = None,
    marker: str | None = None,
    grace: float = 2.0,
    *,
    clock: Clock | None = None,
) -> list[Survivor]:
    """End a whole tree and prove it: what it returns still lives. Takes at most `grace` + `KILL_BOUND`
    seconds and a bit."""
    return await ProcessTree(pid, start_time, marker).end(grace, clock or SystemClock())


def kill_below(bound: float = LAST_BLOW) -> list[Survivor]:
    """KILL to everything below this process, without a grace period and without letting anything else run meanwhile: for
    a process that leaves now. What still lives after `bound` seconds."""
    deadline, empty = time.monotonic() + bound, 0
    while empty < 2:
        rows = _below(_table(), os.getpid())
        empty = 0 if rows else empty + 1
        if rows and time.monotonic() >= deadline:
            return _named(rows)
        for row in rows:
            _signal(row, signal.SIGKILL)
        time.sleep(0.005 if rows else 0)
    return []


def not_gone(pids: Iterable[int]) -> set[int]:
    """Those of `pids` that live, or whose session has living members: with one look, however many are asked about."""
    rows = [row for row in _table().values() if not row.gone]
    return set(pids) & ({row.pid for row in rows} | {row.session for row in rows})


def lineage_names() -> list[str]:
    """The names of this process and its ancestors below the first process, as `killall` knows them."""
    process = psutil.Process()
    return [p.name() for p in (process, *process.parents()) if p.pid > 1]


class ProcessTree:
    """What is known of one tree, growing from scan to scan. `begun_here`: this process has just started the root, so
    its session counts even when the root is already gone."""

    def __init__(
        self, pid: int | None, start: float | None = None, marker: str | None = None, *, begun_here: bool = False
    ) -> None:
        self._pid = pid
        self._start = start
        self._entries = _entries(marker)
        self._members: dict[int, float] = {}
        self._orphanable: set[int] = set()  # members first seen below another parent: ours only by adoption
        self._sessions: set[int] = set()
        self._asked: set[int] = set()  # got their TERM
        self._rows: dict[int, _Row] = {}
        if pid is not None and (begun_here or self._same_boot()):
            self._sessions.add(pid)

    def scan(self) -> list[_Row]:
        """The living members, oldest first, without this process and its ancestors."""
        protected = self._look()
        return [row for row in self._living() if row.pid not in protected]

    def living(self) -> list[Survivor]:
        """The living members, named; one that ended before it could be named is none."""
        return [one for one in _named(self.scan()) if not _has_ended(one.pid)]

    async def end(self, grace: float, clock: Clock) -> list[Survivor]:
        """TERM, `grace` seconds, KILL; see `end_tree`."""
        if await self._until_empty(clock, grace, self._terminate):
            await self._until_empty(clock, KILL_BOUND, self._kill)
        await self._reap(clock)
        return _named(self._living())

    # -- looking ------------------------------------------------------------------------------------------------

    def _look(self) -> set[int]:
        """Read the process table and take in every process that belongs; the pids that must not be signalled."""
        self._rows = _table()
        _adopted.reap(self._rows)
        protected = _lineage(self._rows, os.getpid())
        self._forget_reused(protected)
        candidates = [r for r in self._rows.values() if not r.gone and r.pid not in self._members]
        marked = {r.pid for r in candidates if self._entries and _carries(r.pid, self._entries)}
        grown = True
        while grown:
            found = [r for r in candidates if r.pid not in self._members and (r.pid in marked or self._belongs(r))]
            for row in found:
                self._take_in(row)
            grown = bool(found)
        return protected

    def _forget_reused(self, protected: set[int]) -> None:
        for pid, start in list(self._members.items()):
            row = self._rows.get(pid)
            if row is not None and abs(row.start - start) > SAME_START:
                del self._members[pid]
                self._sessions.discard(pid)
        root = self._rows.get(self._pid) if self._pid is not None else None
        if self._pid in protected or (root and self._start and abs(root.start - self._start) > SAME_START):
            self._sessions.discard(self._pid or 0)
            self._pid = None
        elif root is not None and not root.gone and root.pid not in self._members:
            self._take_in(root)

    def _take_in(self, row: _Row) -> None:
        self._members[row.pid] = row.start
        if row.parent != os.getpid():
            self._orphanable.add(row.pid)
        if row.session == row.pid:
            self._sessions.add(row.pid)

    def _belongs(self, row: _Row) -> bool:
        if self._start is not None and row.start < self._start - SAME_START:
            return False  # older than the root
        return row.parent in self._members or row.session in self._sessions

    def _same_boot(self) -> bool:
        return self._start is not None and self._start >= psutil.boot_time() - SAME_START

    def _living(self) -> list[_Row]:
        rows = (self._rows.get(pid) for pid in self._members)
        return sorted((r for r in rows if r is not None and not r.gone), key=lambda r: (r.start, r.pid))

    # -- ending -------------------------------------------------------------------------------------------------

    async def _until_empty(self, clock: Clock, seconds: float, strike: Callable[[list[_Row]], None]) -> bool:
        """Strike whatever each scan finds, until two scans in a row find nothing; whether something is left."""
        deadline = clock.monotonic() + seconds
        pause = 0.005
        empty = 0
        while empty < 2:
            rows = self.scan()
            empty = 0 if rows else empty + 1
            if rows and clock.monotonic() >= deadline:
                return True
            strike(rows)
            if rows:
                await clock.sleep(pause)
                pause = min(pause * 2, 0.1)
        return False

    def _terminate(self, rows: Iterable[_Row]) -> None:
        for row in rows:
            if row.pid in self._asked:
                continue
            self._asked.add(row.pid)
            _signal(row, signal.SIGTERM)
            _signal(row, signal.SIGCONT)  # a stopped process could not act on TERM

    def _kill(self, rows: Iterable[_Row]) -> None:
        rows = list(rows)
        for group in {row.group for row in rows if row.session in self._sessions}:
            _signal_group(group)  # at one blow: a member that forks all the time cannot slip between two scans
        for row in rows:
            _signal(row, signal.SIGKILL)

    async def _reap(self, clock: Clock) -> None:
        """Collect zombies that became ours by adoption. What asyncio started it reaps itself, at once."""
        for pid in self._zombies(self._orphanable):
            _wait_for(pid)
            del self._rows[pid]
        if self._zombies(self._members):
            await clock.sleep(REAP_PATIENCE)
            self._rows = _table()
            for pid in self._zombies(self._members):
                _wait_for(pid)

    def _zombies(self, pids: Iterable[int]) -> list[int]:
        rows = (self._rows.get(pid) for pid in pids)
        return [r.pid for r in rows if r is not None and r.gone and r.parent == os.getpid()]


class _Adopted:
    """Zombies below this process that nobody waits for: orphans of trees, which a sub-reaper inherits."""

    def __init__(self) -> None:
        self.expected = False  # this process is a sub-reaper
        self._seen: dict[tuple[int, float], float] = {}
        self._swept = 0.0

    def expect(self, wanted: bool) -> None:
        """Whether this process is a sub-reaper."""
        self.expected = wanted

    def sweep(self) -> None:
        """Reap what is old enough; costs one system call when there is no zombie at all."""
        now = time.monotonic()
        if not self.expected or now - self._swept < ZOMBIE_AGE:
            return
        try:
            waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if waiting is not None:
            self._swept = now
            self.reap(_table())

    def reap(self, rows: dict[int, _Row]) -> None:
        now = time.monotonic()
        ours = {(r.pid, r.start) for r in rows.values() if r.gone and r.parent == os.getpid()}
        self._seen = {key: self._seen.get(key, now) for key in ours}
        for (pid, _), since in self._seen.items():
            if self.expected and now - since >= ZOMBIE_AGE:
                _wait_for(pid)


_adopted = _Adopted()


def sweep_zombies() -> None:
    """Reap orphans that died as our children. Cheap: to be called now and then where `set_subreaper` is in force."""
    _adopted.sweep()


def _wait_for(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # somebody else did
        os.waitpid(pid, os.WNOHANG)


def _entries(marker: str | None) -> frozenset[tuple[str, str]]:
    if not marker:
        return frozenset()
    name, equals, value = marker.partition("=")
    return frozenset({(name, value)} if equals else {(TASK_MARKER, marker), (SHELL_MARKER, marker)})


def _table() -> dict[int, _Row]:
    rows = {}
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                gone = process.status() in _GONE
                rows[pid] = _Row(pid, process.ppid(), os.getsid(pid), os.getpgid(pid), process.create_time(), gone)
        except (psutil.Error, OSError):
            continue  # it ended while we looked
    return rows


def _below(rows: dict[int, _Row], pid: int) -> list[_Row]:
    """The living descendants of `pid`. A zombie's children are its reaper's, so they are found in the next table."""
    known, found = {pid}, []
    while new := [row for row in rows.values() if row.parent in known and row.pid not in known]:
        known.update(row.pid for row in new)
        found += new
    return [row for row in found if not row.gone]


def _lineage(rows: dict[int, _Row], pid: int) -> set[int]:
    """`pid` and its ancestors."""
    line = {0, 1}
    while pid not in line:
        line.add(pid)
        row = rows.get(pid)
        pid = row.parent if row else 0
    return line


def _carries(pid: int, entries: frozenset[tuple[str, str]]) -> bool:
    """Each mark by itself: a process that lets nobody see its environment (`concealment.py`) still shows its limits."""
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        environ = psutil.Process(pid).environ()
        if any(environ.get(name) == value for name, value in entries):
            return True
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        limits = psutil.Process(pid).rlimit(psutil.RLIMIT_RTTIME) if _marks_limits() else (0, 0)
        return any(_limit_mark(name, value) in limits for name, value in entries)
    return False


# The limit on the CPU time of real-time processes, in microseconds, means nothing to any other process. Its soft value
# names the shell, its hard one the task: far apart, and both longer than anything runs (35 and 36,000 years).
_LIMIT_BASE = {SHELL_MARKER: 1 << 50, TASK_MARKER: 1 << 60}


def marked(
    argv: Sequence[str], *, shell: str, task: str | None, memory: int | None = None, nice: int | None = None
) -> list[str]:
    """The command line that runs `argv` with the marks of its tree in a resource limit, each of its processes bound to `memory`
    MiB of data, `nice` steps behind; as it is where that is not to be had. `prlimit` and `nice` replace themselves by the
    command: no process is added."""
    if shutil.which(argv[0]) is None:  # what is not there is to fail as itself
        return list(argv)
    line, limits = list(argv), []
    if marks := _marks_limits():
        hard = _limit_mark(TASK_MARKER, task) if task else ""
        limits.append(f"--rttime={_limit_mark(SHELL_MARKER, shell)}:{hard}")
    tool = marks or (shutil.which("prlimit") if memory else None)
    if memory:
        limits.append(f"--data={memory * 1024 * 1024}")
    if tool and limits:
        line = [tool, *limits, "--", *line]
    if nice and (program := shutil.which("nice")):
        line = [program, "-n", str(nice), *line]
    return line


def _limit_mark(name: str, value: str) -> int:
    return _LIMIT_BASE[name] + int.from_bytes(blake2b(value.encode(), digest_size=5).digest(), "big")


@cache
def _marks_limits() -> str | None:
    """The program that sets limits; None where there is none, or where this process is bound by a mark itself (then
    whoever set that one finds the trees begun here too)."""
    if sys.platform != "linux":
        return None
    import resource

    unbound = resource.getrlimit(resource.RLIMIT_RTTIME)[1] == resource.RLIM_INFINITY
    return shutil.which("prlimit") if unbound else None


def _signal(row: _Row, number: signal.Signals) -> None:
    begun = start_time(row.pid)
    if begun is None or abs(begun - row.start) > SAME_START:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or not ours to end: the next scan names it
        os.kill(row.pid, number)


def _signal_group(group: int) -> None:
    if group <= 1 or group == os.getpgrp():
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _named(rows: Iterable[_Row]) -> list[Survivor]:
    return [Survivor(row.pid, row.start, _cmdline(row.pid)) for row in rows]


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in _GONE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _cmdline(pid: int, limit: int = 200) -> str:
    try:
        process = psutil.Process(pid)
        text = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "?"
    return text if len(text) <= limit else text[: limit - 1] + "…"
