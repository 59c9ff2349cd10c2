"""Real processes for the tests: each tree carries a marker of its own, so that no test sees another's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

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
        os.sched_yield()
    return True


async def eventually_async(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


def zombies_of_ours() -> list[int]:
    ps = ["ps", "-o", "pid=,stat=", "--ppid", str(os.getpid())]
    out = subprocess.run(ps, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in out.stdout.splitlines() if line.split()[1].startswith("Z")]
