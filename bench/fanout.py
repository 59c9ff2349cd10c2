"""What the whole program costs beside others on the same work: programs in turn, against one server in another process.

    python -m bench.fanout [--quick] [--workers 1 10 50 200] [--pairs 5] [--turns 5] [--delay 0.2] [--peers] [--write]

The work: a coordinator starts N workers in one answer; each makes TURNS turns of two parallel reads of a 20 KB file and
reports; then the coordinator concludes. Every program runs as a process of its own in a fresh home, so that its CPU (user +
system, with its children) and its peak memory are the kernel's numbers. Ours stores everything, the others nothing.

- CPU ms a turn = (CPU(N) - CPU(1)) / (requests(N) - requests(1)): the start is not in it.
- wall/ideal = first request to last answer, over (TURNS + 3) answers of DELAY one after the other.
- start = from the start of the process to its first request.

The machine's noise is in every number: programs alternate, a ratio is made within one round, and its median is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".bench"  # of the peers; see `peers/install.py`
RESULTS = ROOT / "bench" / "RESULTS.md"
FLOOR, ON_AIOHTTP, LIMIT, OURS = "SDK floor", "SDK on aiohttp", "limit (aiohttp, orjson)", "coordinator"
PEERS = {"LangGraph": "langgraph", "pydantic-ai": "pydantic_ai", "agno": "agno", "OpenAI Agents": "openai_agents"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program; seconds and MB."""

    requests: int
    cpu: float
    memory: float
    start: float
    wall: float


def programs(names: Sequence[str]) -> dict[str, list[str]]:
    """What to start; the number of workers is appended."""
    python = [sys.executable, "-m"]
    known = {
        LIMIT: [*python, "bench.limit"],
        FLOOR: [*python, "bench.sdk_floor"],
        ON_AIOHTTP: [*python, "bench.sdk_floor", "--aiohttp"],
        OURS: [*python, "coordinator", "run", "go", "--output-format", "json", "--max-workers"],
    }
    for shown, name in PEERS.items():
        interpreter = ENVIRONMENTS / name / "bin" / "python"
        if interpreter.exists():
            known[shown] = [str(interpreter), "-m", f"bench.peers.{name}_peer"]
    return {name: known[name] for name in names if name in known}


@contextlib.contextmanager
def server(workers: int, turns: int, delay: float, path: Path) -> Iterator[str]:
    argv = [sys.executable, "-m", "bench.server", str(workers), str(turns), str(delay), str(path)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def environment(home: Path, base_url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "COORDINATOR_"))}
    return kept | {
        "HOME": str(home), "COORDINATOR_HOME": str(home / "coordinator"), "PYTHONPATH": str(ROOT),
        "ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": "x", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip


def measure(argv: Sequence[str], workers: int, turns: int, delay: float) -> Run:
    """Run `argv` in a fresh home against a fresh server. Raises `RuntimeError` if it fails."""
    with tempfile.TemporaryDirectory() as directory:
        home, work = Path(directory) / "home", Path(directory) / "work"
        home.mkdir()
        work.mkdir()
        (work / "file.txt").write_text("x = 1  # a line\n" * 1250)
        with server(workers, turns, delay, work / "file.txt") as base_url:
            began = time.monotonic()
            child = subprocess.Popen(
                [*argv, str(workers)], cwd=work, env=environment(home, base_url), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert child.stdout is not None
            said = child.stdout.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            with urllib.request.urlopen(f"{base_url}/figures") as response:
                seen = json.load(response)
    if child.returncode or seen["first"] is None:
        raise RuntimeError(f"{argv} ended with {child.returncode}: {said.decode(errors='replace')[-800:]}")
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return Run(seen["requests"], cpu, memory, seen["first"] - began, seen["last"] - seen["first"])


Rounds = dict[str, dict[int, list[Run]]]


def run_all(chosen: dict[str, list[str]], counts: Sequence[int], options: argparse.Namespace) -> Rounds:
    rounds: Rounds = {name: {count: [] for count in counts} for name in chosen}
    for count in counts:
        for number in range(options.pairs):
            for name, argv in chosen.items():
                rounds[name][count].append(measure(argv, count, options.turns, options.delay))
            print(f"N = {count}: round {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
    return rounds


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def slopes(of: dict[int, list[Run]], count: int) -> list[float]:
    """CPU ms a turn, a value a round."""
    pairs = zip(of[1], of[count], strict=True)
    return [(many.cpu - one.cpu) / (many.requests - one.requests) * 1000 for one, many in pairs]


def table(rounds: Rounds, counts: Sequence[int], options: argparse.Namespace) -> Iterator[str]:
    ideal = (options.turns + 3) * options.delay
    many = [count for count in counts if count > 1]
    yield "| program | start s | CPU s, N = 1 | RSS MB, N = 1 | " + " | ".join(
        f"CPU ms a turn, N = {count} | wall/ideal | RSS MB" for count in many
    ) + " |"  # fmt: skip
    yield "|" + "---|" * (4 + 3 * len(many))
    for name, of in rounds.items():
        ones = of[1]
        cells = [middle([r.start for r in ones]), middle([r.cpu for r in ones]), middle([r.memory for r in ones])]
        row = [f"{cells[0]:.2f}", f"{cells[1]:.2f}", f"{cells[2]:.0f}"]
        for count in many:
            row += [f"{middle(slopes(of, count)):.2f}", f"{middle([r.wall / ideal for r in of[count]]):.2f}"]
            row.append(f"{middle([r.memory for r in of[count]]):.0f}")
        yield f"| {name} | {' | '.join(row)} |"


def ratios(rounds: Rounds, counts: Sequence[int]) -> Iterator[str]:
    """Ours over another's, in one round each; the median, and the least and the most."""
    yield "| coordinator over | start | CPU of the run, N = 1 | RSS, N = 1 | " + " | ".join(
        f"CPU a turn, N = {count} | RSS" for count in counts if count > 1
    ) + " |"  # fmt: skip
    yield "|" + "---|" * (4 + 2 * (len(counts) - 1))
    ours = rounds[OURS]
    for name, other in rounds.items():
        if name == OURS:
            continue
        cells = [
            _spread([a.start / b.start for a, b in zip(ours[1], other[1], strict=True)]),
            _spread([a.cpu / b.cpu for a, b in zip(ours[1], other[1], strict=True)]),
            _spread([a.memory / b.memory for a, b in zip(ours[1], other[1], strict=True)]),
        ]
        for count in (count for count in counts if count > 1):
            cells.append(_spread([a / b for a, b in zip(slopes(ours, count), slopes(other, count), strict=True)]))
            cells.append(_spread([a.memory / b.memory for a, b in zip(ours[count], other[count], strict=True)]))
        yield f"| {name} | {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{middle(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def versions(chosen: dict[str, list[str]]) -> Iterator[str]:
    yield f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}."
    yield ", ".join(f"{name} {metadata.version(name)}" for name in ("anthropic", "aiohttp", "orjson", "httpx2")) + "."
    packages = {"LangGraph": "langgraph", "pydantic-ai": "pydantic-ai-slim", "agno": "agno", "OpenAI Agents": "openai-agents"}
    for shown, package in packages.items():
        if shown in chosen:
            code = f"from importlib.metadata import version; print(version({package!r}))"
            yield f"{shown} {subprocess.run([chosen[shown][0], '-c', code], capture_output=True, text=True).stdout.strip()}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="floor, limit and ours; under two minutes")
    parser.add_argument("--workers", type=int, nargs="+", default=None)
    parser.add_argument("--pairs", type=int, default=None, help="rounds")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.2, help="seconds before each answer")
    parser.add_argument("--peers", action="store_true", help="those that are installed (bench/peers/install.py), too")
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS.md")
    options = parser.parse_args()
    counts = sorted({1, *(options.workers or ([50] if options.quick else [10, 50, 200]))})
    options.pairs = options.pairs or (3 if options.quick else 5)
    names = (LIMIT, FLOOR, OURS) if options.quick else (LIMIT, ON_AIOHTTP, FLOOR, OURS)
    chosen = programs((*names, *(PEERS if options.peers else ())))
    rounds = run_all(chosen, counts, options)
    text = "\n".join(("\n".join(table(rounds, counts, options)), "", "\n".join(ratios(rounds, counts))))
    print(text)
    if options.write:
        head = f"Written by `make bench` ({options.pairs} rounds, programs in turn; medians). Read the ratios: the machine is shared."
        RESULTS.write_text("\n\n".join(("# What it costs", head, "\n".join(versions(chosen)), text)) + "\n")


if __name__ == "__main__":
    main()
