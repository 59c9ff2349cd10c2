"""Short commands beside a bare Python that imports what they cannot do without: `python -m bench.commands [--tasks 1000 10000]`.

CPU (user + system) of pairs in turn; the median of the ratios. Databases of many tasks are made first, by plain SQL.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tasks import registry, sessions
from tasks.db import Database
from tasks.records import NewTask

BARE = [sys.executable, "-c", "import click, sqlite3"]
COMMANDS: dict[str, list[str]] = {
    "--help": ["--help"], "ps": ["ps"], "ps --all -n 20": ["ps", "--all", "-n", "20"], "kill": ["kill", "azzzzzzzz"],
    "wait": ["wait", "azzzzzzzz"], "send": ["send", "azzzzzzzz", "hi"], "logs": ["logs", "azzzzzzzz"],
}  # fmt: skip


def cpu(argv: Sequence[str], home: Path) -> float:
    child = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"COORDINATOR_HOME": str(home)}
    )
    _, _, used = os.wait4(child.pid, 0)
    return used.ru_utime + used.ru_stime


def fill(home: Path, count: int) -> None:
    """A database with one ended session of `count` tasks, made of copies of one."""
    db = Database.open(home / "coordinator.db")
    session = db.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model="m", options={}))
    task = db.write(lambda conn: registry.create(conn, NewTask(session_id=session.id, description="d", prompt="p" * 100)))
    db.write(lambda conn: registry.kill(conn, task.id, by="bench", notify=False, end_reason="bench"))
    db.close()
    with closing(sqlite3.connect(home / "coordinator.db")) as driver:
        names = [row[1] for row in driver.execute("PRAGMA table_info(tasks)")]
        copied = ", ".join({"id": "'a' || n", "created_at": "created_at + n"}.get(name, name) for name in names)
        driver.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 10000000 UNION ALL SELECT n + 1 FROM numbers WHERE n < {10_000_000 + count}) "
            f"INSERT INTO tasks ({', '.join(names)}) SELECT {copied} FROM tasks, numbers WHERE tasks.id = ?",
            (task.id,),
        )
        driver.execute("UPDATE sessions SET status = 'ended', ended_at = ?, owner_pid = NULL", (time.time(),))
        driver.commit()


def measured(counts: Sequence[int], pairs: int) -> dict[tuple[str, int], list[float]]:
    """CPU over the bare Python's, a value a pair, for each command and number of tasks."""
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        homes = {count: Path(directory) / str(count) for count in counts}
        for count, home in homes.items():
            home.mkdir()
            fill(home, count)
        for name, arguments in COMMANDS.items():
            command = [sys.executable, "-m", "coordinator", *arguments]
            for _ in range(pairs):
                for count, home in homes.items():
                    found.setdefault((name, count), []).append(cpu(command, home) / cpu(BARE, home))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs="*", default=[0, 10_000])
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    found = measured(options.tasks, options.pairs)
    print("| command | " + " | ".join(f"{count:,} tasks" for count in options.tasks) + " |")
    print("|---|" + "---|" * len(options.tasks))
    for name in COMMANDS:
        print(f"| {name} | " + " | ".join(f"{statistics.median(found[name, count]):.2f}" for count in options.tasks) + " |")


if __name__ == "__main__":
    main()
