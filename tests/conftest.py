"""The last limit of time, for what the time limit of a test could not end; and a limit of memory, for what tests leave behind.

pytest-timeout raises in the main thread. What then still waits, for a thread that hangs in a system call or in code that
catches everything, would stand for ever and the whole run with it. So a second, later limit writes all stacks to stderr and
ends the process, whatever it does; under xdist another worker goes on with the rest.

A test of a long conversation leaves many megabytes in cycles of few objects (servers, engines, their tasks), which the collector does
not come to look for: it counts objects, not bytes. So it is called when the process has grown. What was collected to be tested
stays to the end and is never looked at: each look at these millions of objects would take a second.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.skips import LOUD

GRACE = 30.0  # seconds after the limit of a test, or after its session, within which a process must have gone on or ended
GROWTH = 32 * 1024 * 1024  # bytes by which a process may grow before what tests left is collected
_least = sys.maxsize  # bytes resident after the last collection, or least since


def limit_of(item: pytest.Item) -> float:
    """The time limit of a test in seconds, as pytest-timeout has it."""
    marker = item.get_closest_marker("timeout")
    own = marker.args[0] if marker and marker.args else None
    return float(own or item.config.getoption("timeout") or item.config.getini("timeout") or 60)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    faulthandler.dump_traceback_later(3 * limit_of(item) + GRACE, exit=True, file=sys.__stderr__)  # set-up, call, tear-down
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        collect_if_grown()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means: one worker more than there are cores, for at any time some test waits for a process of its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def collect_if_grown() -> None:
    global _least
    _least = min(_least, resident())
    if resident() > _least + GROWTH:
        gc.collect()
        _least = resident()


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """The interpreter joins what threads are left. A worker of xdist waits here for the others, and is ended by its controller."""
    if hasattr(config, "workerinput"):
        return
    faulthandler.dump_traceback_later(GRACE, exit=True, file=sys.__stderr__)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What could not be tested here is said where a person looks last."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and LOUD in (reason := report.longrepr[2]):
            reasons[reason.removeprefix("Skipped: ")] += 1
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{reason}; {count} tests left out", red=True, bold=True)
