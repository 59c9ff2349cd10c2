"""What the whole program costs beside a hand-written loop over the vendor's SDK: the same work, the same server, one run.

    python -m bench.fanout [--workers 10 50 200] [--turns 5] [--delay 0.2] [--repeat 1]

The work: a coordinator starts N workers in one answer; each makes TURNS turns of two parallel reads of a 20 KB file and
reports; then the coordinator concludes. The server is the tests' strict fake, in this process; every program runs as a
process of its own, so that its CPU (user + system, with its children) and its peak memory are the kernel's numbers.

- CPU ms a turn = (CPU(N) - CPU(1)) / (requests(N) - requests(1)): the start is not in it.
- wall/ideal = first request to last answer, over (TURNS + 3) answers of DELAY one after the other.
- start = from the start of the process to its first request.

Both store nothing (`sdk floor`) and everything (`coordinator`). The machine's noise is in all of them: read the ratios.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.fake_api.scenarios import Options, fanout
from tests.support.fake_api.server import FakeAPI

Argv = Callable[[int], list[str]]

PROGRAMS: dict[str, Argv] = {
    "sdk floor": lambda workers: [sys.executable, "-m", "bench.sdk_floor", str(workers)],
    "coordinator": lambda workers: [
        *(sys.executable, "-m", "coordinator.cli.main", "run", "go", "--output-format", "json"),
        *("--max-workers", str(workers)),
    ],
}
ROOT = Path(__file__).resolve().parent.parent
STARTS: dict[str, list[str]] = {
    "coordinator --version": ["--version"],
    "coordinator --help": ["--help"],
    "coordinator tasks list": ["tasks", "list"],
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program; seconds and MB."""

    requests: int
    cpu: float
    memory: float
    start: float
    wall: float


def environment(home: Path, base_url: str = "http://127.0.0.1:9") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "COORDINATOR_"))}
    return kept | {
        "HOME": str(home),
        "COORDINATOR_HOME": str(home / "coordinator"),
        "PYTHONPATH": str(ROOT),
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": "x",
    }


def measure(argv: Sequence[str], work: Path, workers: int, turns: int, delay: float) -> Run:
    """Run `argv` in a fresh home against a fresh server. Raises `RuntimeError` if either complains."""
    path = work / "file.txt"
    path.write_text("x = 1  # a line\n" * 1250)
    with tempfile.TemporaryDirectory() as home:
        script = fanout(workers, turns, Options(path=str(path), delay=delay))
        with FakeAPI(script, keep_bodies=False, allow_violations=True) as api:
            began = time.monotonic()
            child = subprocess.Popen(
                argv, cwd=work, env=environment(Path(home), api.base_url), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
            )
            assert child.stdout is not None
            said = child.stdout.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or api.violations:
        raise RuntimeError(f"{argv} ended with {child.returncode}: {said.decode()[-500:]} {api.violations[:3]}")
    answered = [request for request in api.requests if request.ended is not None]
    return Run(
        requests=len(api.requests),
        cpu=used.ru_utime + used.ru_stime,
        memory=used.ru_maxrss / 1024,
        start=api.requests[0].time - began,
        wall=max(request.ended for request in answered) - api.requests[0].time,
    )


def best(argv: Sequence[str], workers: int, options: argparse.Namespace) -> Run:
    """The run of `--repeat` that used the least CPU: what is above it is the noise of the machine."""
    with tempfile.TemporaryDirectory() as work:
        runs = [measure(argv, Path(work), workers, options.turns, options.delay) for _ in range(options.repeat)]
    return min(runs, key=lambda run: run.cpu)


def compare(options: argparse.Namespace) -> None:
    print(f"{'program':12} {'N':>5} {'requests':>8} {'CPU ms/turn':>11} {'wall/ideal':>10} {'RSS MB':>7} {'start s':>8}")
    ideal = (options.turns + 3) * options.delay
    ones = {name: best(argv(1), 1, options) for name, argv in PROGRAMS.items()}
    for name, one in ones.items():
        print(f"{name:12} {1:5} {one.requests:8} {'':11} {one.wall / ideal:10.2f} {one.memory:7.0f} {one.start:8.2f}")
    for workers in options.workers:
        costs = []
        for name, argv in PROGRAMS.items():
            one, run = ones[name], best(argv(workers), workers, options)
            costs.append((run.cpu - one.cpu) / (run.requests - one.requests) * 1000)
            print(
                f"{name:12} {workers:5} {run.requests:8} {costs[-1]:11.2f} {run.wall / ideal:10.2f} {run.memory:7.0f} "
                f"{run.start:8.2f}",
                flush=True,
            )
        print(f"{'':12} coordinator / sdk floor, CPU a turn: {costs[1] / costs[0]:.2f}")


def starts() -> None:
    with tempfile.TemporaryDirectory() as home:
        for name, arguments in STARTS.items():
            took = []
            for _ in range(5):
                argv = [sys.executable, "-m", "coordinator.cli.main", *arguments]
                began = time.perf_counter()
                subprocess.run(argv, env=environment(Path(home)), stdout=subprocess.DEVNULL, check=True)
                took.append(time.perf_counter() - began)
            print(f"{name:24} {min(took):6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[10, 50, 200])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.2, help="seconds before each answer begins")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    compare(options)
    starts()


if __name__ == "__main__":
    main()
