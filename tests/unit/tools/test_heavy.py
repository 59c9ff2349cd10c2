"""Commands that build or test take turns; what bounds a command holds in its processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.unit.tools.builtin.support import call, context
from worker_agent.tools.builtin.bash import Bash
from worker_agent.tools.heavy import is_heavy, turn


@pytest.mark.parametrize("command", ["make -j4", "cd x && ./gradlew build", "python -m pytest -q", "FOO=1 /usr/bin/cargo test"])
def test_builds_and_tests_are_heavy(command: str) -> None:
    assert is_heavy(command)


@pytest.mark.parametrize("command", ["ls", "git status", "cat Makefile", "grep -r remake .", "sleep 5", "python script.py"])
def test_what_only_looks_is_not(command: str) -> None:
    assert not is_heavy(command)


def test_no_more_heavy_commands_than_allowed_run_at_once_and_others_do_not_wait() -> None:
    running, most, told = 0, 0, []

    async def one(command: str) -> None:
        nonlocal running, most
        async with turn(command, 2, told.append):
            running += is_heavy(command)
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= is_heavy(command)

    async def all_of_them() -> None:
        await asyncio.gather(*(one("make") for _ in range(6)), *(one("ls") for _ in range(6)))

    asyncio.run(all_of_them())
    assert most == 2 and len(told) == 4
    asyncio.run(all_of_them())  # in another loop


def test_a_waiting_command_that_is_cancelled_leaves_its_place() -> None:
    async def work() -> None:
        async def hold() -> None:
            async with turn("make", 1, lambda why: None):
                await asyncio.sleep(3600)

        first = asyncio.create_task(hold())
        second = asyncio.create_task(hold())
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        async with asyncio.timeout(5), turn("make", 1, lambda why: None):
            pass

    asyncio.run(work())


def test_memory_and_niceness_hold_in_every_process_of_a_command(tmp_path: Path) -> None:
    bounded = context(tmp_path, command_memory=100, command_nice=3)
    nicer = str(os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert call(Bash(), bounded, command="nice; sh -c 'nice; ulimit -d'").split() == [nicer, nicer, str(100 * 1024)]
    assert "MemoryError" in call(Bash(), bounded, command="python3 -c 'b = bytearray(300 << 20)'")
