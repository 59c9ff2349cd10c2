"""The last limit: a test, or the end of a session, that the time limit of its test could not end.

pytest-timeout raises in the main thread. What then still waits, for a thread that hangs in a system call or in code that
catches everything, would stand for ever and the whole run with it. So a second, later limit writes all stacks to stderr and
ends the process, whatever it does; under xdist another worker goes on with the rest.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Generator

import pytest

GRACE = 30.0  # seconds after the limit of a test, or after its session, within which a process must have gone on or ended


def limit_of(item: pytest.Item) -> float:
    """The time limit of a test in seconds, as pytest-timeout has it."""
    marker = item.get_closest_marker("timeout")
    own = marker.args[0] if marker and marker.args else None
    return float(own or item.config.getoption("timeout") or item.config.getini("timeout") or 60)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    faulthandler.dump_traceback_later(3 * limit_of(item) + GRACE, exit=True, file=sys.__stderr__)  # set-up, call, tear-down
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The interpreter joins what threads are left. A worker of xdist waits here for the others, and is ended by its controller."""
    if hasattr(config, "workerinput"):
        return
    faulthandler.dump_traceback_later(GRACE, exit=True, file=sys.__stderr__)
