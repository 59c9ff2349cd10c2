"""What the whole program costs beside others on the same work: programs in turn, against one server in another process.

    python -m bench.fanout [--quick] [--workers 1 10 50 200] [--pairs 5] [--turns 5] [--delay 0.2] [--peers]

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
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata

from bench.program import OURS as COMMAND
from bench.program import PYTHON, ROOT, Run, measure

ENVIRONMENTS = ROOT / ".bench"  # of the peers; see `peers/install.py`
FLOOR, ON_AIOHTTP, LIMIT, OURS = "SDK floor", "SDK on aiohttp", "limit (aiohttp, orjson)", "coordinator"
PEERS = {"LangGraph": "langgraph", "pydantic-ai": "pydantic_ai", "agno": "agno", "OpenAI Agents": "openai_agents"}


def programs(names: Sequence[str]) -> dict[str, list[str]]:
    """What to start; the number of workers is appended."""
    known = {
        LIMIT: [*PYTHON, "bench.limit"],
        FLOOR: [*PYTHON, "bench.sdk_floor"],
        ON_AIOHTTP: [*PYTHON, "bench.sdk_floor", "--aiohttp"],
        OURS: COMMAND,
    }
    for shown, name in PEERS.items():
        interpreter = ENVIRONMENTS / name / "bin" / "python"
        if interpreter.exists():
            known[shown] = [str(interpreter), "-m", f"bench.peers.{name}_peer"]
    return {name: known[name] for name in names if name in known}


Rounds = dict[str, dict[int, list[Run]]]


def run_all(chosen: dict[str, list[str]], counts: Sequence[int], *, pairs: int, turns: int = 5, delay: float = 0.2) -> Rounds:
    rounds: Rounds = {name: {count: [] for count in counts} for name in chosen}
    for count in counts:
        for number in range(pairs):
            for name, argv in chosen.items():
                rounds[name][count].append(measure(argv, count, turns, delay))
            print(f"N = {count}: round {number + 1} of {pairs}", file=sys.stderr, flush=True)
    return rounds


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def slopes(of: dict[int, list[Run]], count: int) -> list[float]:
    """CPU ms a turn, a value a round."""
    pairs = zip(of[1], of[count], strict=True)
    return [(many.cpu - one.cpu) / (many.requests - one.requests) * 1000 for one, many in pairs]


def slope(of: dict[int, list[Run]], count: int) -> float:
    """CPU ms a turn, by the medians of all rounds."""
    few, many = middle([run.cpu for run in of[1]]), middle([run.cpu for run in of[count]])
    return (many - few) / (middle([run.requests for run in of[count]]) - middle([run.requests for run in of[1]])) * 1000


def table(rounds: Rounds, counts: Sequence[int], *, turns: int = 5, delay: float = 0.2) -> Iterator[str]:
    ideal = (turns + 3) * delay
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
            row += [f"{slope(of, count):.2f}", f"{middle([r.wall / ideal for r in of[count]]):.2f}"]
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
    options = parser.parse_args()
    counts = sorted({1, *(options.workers or ([50] if options.quick else [10, 50, 200]))})
    names = (LIMIT, FLOOR, OURS) if options.quick else (LIMIT, ON_AIOHTTP, FLOOR, OURS)
    chosen = programs((*names, *(PEERS if options.peers else ())))
    pairs = options.pairs or (3 if options.quick else 5)
    rounds = run_all(chosen, counts, pairs=pairs, turns=options.turns, delay=options.delay)
    print("\n".join((*table(rounds, counts, turns=options.turns, delay=options.delay), "", *ratios(rounds, counts))))


if __name__ == "__main__":
    main()
