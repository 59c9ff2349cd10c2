"""What workers on nodes cost the database, and how long they wait: node processes on this machine, a server of its own.

    python -m bench.cluster [--nodes 1 2 4] [--workers 50 200] [--turns 3] [--delay 2.0] [--stops 5]

The work is that of `fanout`: a coordinator starts N workers in one answer; each makes TURNS turns of two reads and reports. The
model is slow: DELAY seconds before each answer. PostgreSQL is Debian's, on loopback, without fsync; all processes share this machine's
cores, so what saturates first here is often the machine: the share of a core that the server used says which.

- start: from a task's creation to the claim of the node that runs it, p50 and p99, by the database's rows.
- message: from a commit in this process to its being heard by another connection, while the work runs, p50 and worst.
- stop: `kill` of a running worker until its node has proven it, p50 and worst of STOPS.
- makespan: from the first task's creation to the last one's end; `ideal` is TURNS + 1 answers one after the other.
- commits/s and the server's CPU (100 is one core) over the makespan; `rows` the messages that are stored.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.program import PYTHON, environment, server
from coordinator.other_processes.kill import kill_task
from tasks import registry
from tasks.connection import Connection
from tasks.db import Database
from tasks.registry import TaskFilter
from tasks.states import TaskStatus
from tasks.watch import Watcher
from tests.support.postgres import Server

EVERY = 0.2  # seconds between two messages, and between two looks


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, but for the last four."""

    start: Sequence[float]
    message: Sequence[float]
    stop: Sequence[float]
    makespan: float
    commits: int
    cpu: float
    rows: int
    completed: int


def measure(postgres: Server, nodes: int, workers: int, turns: int, delay: float, stops: int) -> Figures:
    url = postgres.empty_database()
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        work = Path(made) / "work"
        work.mkdir()
        (work / "file.txt").write_text("x = 1  # a line\n" * 1250)
        base_url = stack.enter_context(server(workers, turns, delay, work / "file.txt"))
        database = Database.open(url)
        stack.callback(database.close)
        slots = -(-workers // nodes)
        for number in range(nodes):
            arguments = ["node", "--name", f"n{number}", "--slots", str(slots)]
            stack.enter_context(process(Path(made) / f"node-{number}", work, url, base_url, arguments, "takes up to"))
        before, used = commits(database), cpu_of(postgres)
        run = ["run", "go", "--backend", "cluster", "--permission-mode", "bypassPermissions"]
        messages, stopped, live = [], [], True
        with process(Path(made) / "run", work, url, base_url, run, None) as running:
            with Watcher(database) as watcher:
                while running.poll() is None:
                    messages.append(heard(database, watcher))
                    if live and (some := runs(database)) and len(some) >= workers // 2:
                        stopped, live = [stop(database, id) for id in some[:stops]], False
                    time.sleep(EVERY)
        tasks = database.read(lambda conn: registry.list_tasks(conn, TaskFilter(ended_sessions=True, texts=False)))
        began, ended = min(task.created_at for task in tasks), max(task.ended_at or 0.0 for task in tasks)
        return Figures(
            start=[task.started_at - task.created_at for task in tasks if task.started_at],
            message=messages,
            stop=stopped,
            makespan=ended - began,
            commits=commits(database) - before,
            cpu=cpu_of(postgres) - used,
            rows=int(database.read(lambda conn: conn.value("SELECT count(*) FROM messages"))),
            completed=sum(task.status is TaskStatus.COMPLETED for task in tasks),
        )


@contextlib.contextmanager
def process(
    home: Path, work: Path, url: str, base_url: str, arguments: Sequence[str], ready: str | None
) -> Iterator[subprocess.Popen[str]]:
    """The command in a home of its own; `ready` is what it says when it is."""
    home.mkdir()
    started = subprocess.Popen(
        [*PYTHON, "coordinator", *arguments], cwd=work, env=environment(home, base_url) | {"COORDINATOR_DATABASE_URL": url},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert started.stderr is not None
        if ready is not None and ready not in (line := started.stderr.readline()):
            raise RuntimeError(f"{arguments[0]} did not begin: {line}{started.stderr.read()}")
        threading.Thread(target=started.stderr.read, daemon=True).start()
        yield started
    finally:
        started.kill()
        started.wait()


def heard(database: Database, watcher: Watcher) -> float:
    """Seconds from a commit to its being heard; the load is the rest of the work, whose commits may come first."""
    began = time.monotonic()
    database.write(lambda conn: None)
    watcher.changed(10.0)
    return time.monotonic() - began


def runs(database: Database) -> list[str]:
    wanted = TaskFilter(statuses=(TaskStatus.RUNNING,), texts=False)
    return [task.id for task in database.read(lambda conn: registry.list_tasks(conn, wanted))]


def stop(database: Database, task_id: str) -> float:
    began = time.monotonic()
    kill_task(database, task_id)
    return time.monotonic() - began


def commits(database: Database) -> int:
    def read(conn: Connection) -> int:
        return int(conn.value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))

    return database.read(read)


def cpu_of(postgres: Server) -> float:
    """CPU seconds of the server so far, with its processes that have ended."""
    pid = int((postgres.directory / "data" / "postmaster.pid").read_text().split()[0])
    root, used = psutil.Process(pid), 0.0
    for one in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            used += times.user + times.system + (times.children_user + times.children_system if one == root else 0.0)
    return used


def row(nodes: int, workers: int, ideal: float, seen: Figures) -> str:
    def ms(values: Sequence[float], share: float) -> str:
        return f"{sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000:,.0f}" if values else "-"

    cells = (
        nodes, workers, f"{seen.completed}", f"{ms(seen.start, 0.5)} / {ms(seen.start, 0.99)}",
        f"{ms(seen.message, 0.5)} / {ms(seen.message, 1)}", f"{ms(seen.stop, 0.5)} / {ms(seen.stop, 1)}",
        f"{seen.makespan:.1f} / {ideal:.1f}", f"{seen.commits / seen.makespan:,.0f}", f"{seen.rows / seen.makespan:,.0f}",
        f"{100 * seen.cpu / seen.makespan:.0f}",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "| nodes | workers | completed | start ms p50 / p99 | message ms p50 / worst | stop ms p50 / worst | makespan s / ideal "
    "| commits/s | rows/s | server % of a core |\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--delay", type=float, default=2.0)
    parser.add_argument("--stops", type=int, default=5)
    options = parser.parse_args()
    postgres = Server()
    try:
        print(f"{os.cpu_count()} cores, load {statistics.fmean(os.getloadavg()):.1f} before\n\n{HEAD}", flush=True)
        for workers in options.workers:
            for nodes in options.nodes:
                seen = measure(postgres, nodes, workers, options.turns, options.delay, options.stops)
                print(row(nodes, workers, (options.turns + 1) * options.delay, seen), flush=True)
    finally:
        postgres.remove()


if __name__ == "__main__":
    sys.exit(main())
