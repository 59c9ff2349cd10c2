"""What goes wrong inside is one line for a person, and a record with its traceback in the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program

# A run whose loop, threads, tasks, destructors and warnings all break.
BROKEN = """
import asyncio, sys, threading, warnings
from coordinator.session import session
from coordinator.cli import main

class Dying:
    def __del__(self):
        raise ValueError("destructor")

async def forgotten():
    raise ValueError("task")

async def work(self):
    asyncio.get_running_loop().create_task(forgotten())
    await asyncio.sleep(0)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    dying = Dying()
    del dying
    warnings.warn("odd", RuntimeWarning)
    raise RuntimeError("a bug with sk-test-0123456789abcdef")

session.Session._work = work
main.main(sys.argv[1:])
"""


def broken(program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
    secret = program.environment(ANTHROPIC_API_KEY="sk-test-0123456789abcdef")
    return subprocess.run(
        [sys.executable, "-c", BROKEN, "run", "goal", "--offline", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, cwd=program.cwd, env=secret, timeout=50,
    )  # fmt: skip


def log_of(program: Program) -> Path:
    return program.home / "data" / "logs" / "coordinator.log"


def test_no_traceback_reaches_a_person_and_all_of_them_reach_the_log(program: Program) -> None:
    ran = broken(program, "--output-format", "json")
    assert ran.returncode == ExitCode.FAILED
    assert json.loads(ran.stdout)["terminal_reason"] == "not_started", "a program gets its object for this ending, too"
    (line,) = [line for line in ran.stderr.splitlines() if not line.startswith("not trusted")]
    assert line.startswith("coordinator: unexpected RuntimeError: a bug") and "(a bug: " in line
    kept = log_of(program).read_text()
    for said in (
        "ValueError: task",
        "ZeroDivisionError",
        "ValueError: destructor",
        "RuntimeWarning: odd",
        "RuntimeError: a bug",
    ):
        assert said in kept
    assert "sk-test-0123456789abcdef" not in kept
    assert log_of(program).stat().st_mode & 0o077 == 0


def test_under_debug_it_is_shown_and_not_kept(program: Program) -> None:
    ran = broken(program, "--debug")
    assert ran.stderr.count("Traceback") >= 4 and "ZeroDivisionError" in ran.stderr
    assert not log_of(program).exists()


def test_a_log_that_cannot_be_written_is_no_error(program: Program) -> None:
    (program.home / "data").mkdir(parents=True)
    (program.home / "data" / "logs").write_text("in the way")
    ran = broken(program)
    assert ran.returncode == ExitCode.FAILED
    assert "Traceback" not in ran.stderr and ran.stderr.count("coordinator: ") == 1


@pytest.mark.parametrize("arguments", [("tasks", "list"), ("--version",)])
def test_nothing_is_made_where_nothing_is_said(program: Program, arguments: tuple[str, ...]) -> None:
    assert program(*arguments).code == 0
    assert not log_of(program).exists()
