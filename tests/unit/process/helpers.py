"""Real processes for the tests: each tree carries a marker of its own, so that no test sees another's."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil

from worker_agent.process import ShellOutcome, find_tree, run_shell
from worker_agent.process_tree import TASK_MARKER, Survivor


class Lab:
    """Runs commands under one fresh marker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.task = f"t{uuid4().hex[:12]}"
        self.started: list[tuple[int, float]] = []

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], TASK_MARKER: self.task}

    async def shell(self, command, **options) -> ShellOutcome:
        options.setdefault("output_file", self.directory / "output.txt")
        options.setdefault("env", self.env)
        options.setdefault("cwd", self.directory)
        options.setdefault("on_start", lambda pid, start: self.started.append((pid, start)))
        return await run_shell(command, **options)

    def run(self, command, **options) -> ShellOutcome:
        return asyncio.run(self.shell(command, **options))

    def alive(self) -> list[Survivor]:
        return find_tree(None, None, self.task)


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `holds` becomes true within `seconds`: for what another process does, which has no event to wait on."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


async def eventually_async(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


@contextmanager
def starting_gun(path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A FIFO for a command to read from, and a function that lets one `read` return. Both ends stay open here, so that no open
    and no write blocks, in whatever order the two sides come."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def fire() -> None:
        os.write(end, b"x\n")

    try:
        yield path, fire
    finally:
        os.close(end)


def zombies_of_ours() -> set[int]:
    """The children of this process that have ended and were not waited for, as the process table has them. No program is
    started to ask: it would be a child, too."""
    return {child.pid for child in psutil.Process().children() if _is_zombie(child)}


def _is_zombie(child: psutil.Process) -> bool:
    try:
        return child.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
