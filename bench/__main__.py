"""Every figure that has a target, measured in one run: `python -m bench [--peers] [--write]`, about ten minutes on a quiet machine.

Programs run in turn, a ratio is made within one round, and medians are shown with the least and the most. What is measured how
stands at the head of each module. `--write` writes `RESULTS.md`, after every part, so that what was measured is there even if the run is cut off.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import commands, fanout, transcripts
from bench.fanout import FLOOR, LIMIT, ON_AIOHTTP, OURS, PEERS, Rounds, programs, slope
from bench.peers import install
from bench.program import OURS as COMMAND
from bench.program import PROBED, ROOT, Run, measure
from coordinator.session.session import TOGETHER

RESULTS = ROOT / "bench" / "RESULTS.md"
COUNTS = (1, 10, 50, 200)
TURNS, DELAY = 5, 0.2
WAITING = (50, 350)  # workers
TASKS = (0, 1_000, 10_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `values` hold one a round; `target` is what the median may be at most, or `least`, at least."""

    what: str
    target: str
    values: Sequence[float]
    most: float | None = None
    least: float | None = None

    @property
    def line(self) -> str:
        middle = statistics.median(self.values)
        met = (self.most is None or round(middle, 2) <= self.most) and (self.least is None or round(middle, 2) >= self.least)
        spread = f" ({min(self.values):.2f}–{max(self.values):.2f})" if len(self.values) > 1 else ""
        return f"| {self.what} | {self.target} | {middle:.2f}{spread} | {'yes' if met else '**no**'} |"


def at_most(what: str, most: float, values: Sequence[float], unit: str = "×") -> Figure:
    return Figure(what, f"≤ {most:g} {unit}", values, most=most)


def over(ours: dict[int, list[Run]], theirs: dict[int, list[Run]], count: int) -> float:
    """Our CPU a turn over theirs, each by the medians of its runs: a turn is the small difference of two large numbers. No
    number where the machine was too busy to tell them apart."""
    own, other = slope(ours, count), slope(theirs, count)
    return own / other if own > 0 and other > 0 else math.nan


def of_fanout(rounds: Rounds) -> Iterator[Figure]:
    ours, floor, on_aiohttp = rounds[OURS], rounds[FLOOR], rounds[ON_AIOHTTP]
    pairs = list(zip(ours[1], floor[1], strict=True))
    yield at_most("start → first request, over the SDK floor", 0.4, [a.start / b.start for a, b in pairs])
    yield at_most("CPU of a whole run, N = 1, over the floor", 0.6, [a.cpu / b.cpu for a, b in pairs])
    for count in COUNTS[1:]:
        yield at_most(f"CPU a turn, N = {count}, over the floor", 0.35, [over(ours, floor, count)])
        yield at_most(f"CPU a turn, N = {count}, over the SDK on aiohttp", 0.7, [over(ours, on_aiohttp, count)])
    ideal = (TURNS + 3) * DELAY
    for count, most in zip(COUNTS[1:], (1.05, 1.15, 1.5), strict=True):
        yield at_most(f"wall / ideal, N = {count}", most, [run.wall / ideal for run in ours[count]])
        led = [run.wall / (ideal + DELAY) for run in ours[count]]
        yield at_most(
            f"wall / ideal, N = {count}, the leader's answer on a cold prefix counted as part of the ideal", most, led
        )
    yield at_most("peak memory, N = 1, over the floor", 0.7, [a.memory / b.memory for a, b in pairs])
    both = zip(ours[200], floor[200], strict=True)
    yield at_most("peak memory, N = 200, over the floor", 1.0, [a.memory / b.memory for a, b in both])


def of_waiting(pairs: int) -> Iterator[Figure]:
    """What one more worker holds while it waits for its first answer, two seconds long."""
    few, many = WAITING
    found = []
    for _ in range(pairs):
        small, large = (measure(COMMAND, count, 0, 2.0) for count in (few, many))
        found.append((large.memory - small.memory) / (many - few) * 1024)
    yield at_most(f"each further waiting worker (peak at {many} over that at {few})", 150, found, "KB")


def of_a_thousand() -> Iterator[Figure]:
    run = measure(PROBED, 1_000, TURNS, 2.0)
    yield at_most("wall / ideal, N = 1,000, 2 s a call (finishes)", 1.5, [run.wall / ((TURNS + 3) * 2.0)])
    held = [seconds for at, seconds in run.probed["held"] if at >= run.seen["first"]]
    yield at_most("the event loop is held, N = 1,000, at most", 250, [max(held, default=0.0) * 1000], "ms")


def of_a_long_conversation(pairs: int) -> Iterator[Figure]:
    found = []
    for _ in range(pairs):
        used = measure(COMMAND, 1, 405, 0.0, ["--parts"]).seen["used"]
        found.append((used[404] - used[394]) / (used[24] - used[14]))
    yield at_most("CPU of turn 400 of one conversation of 500 KB, over turn 20 (ten turns around each)", 1.5, found)


def of_latencies(pairs: int) -> Iterator[Figure]:
    for count in (1, 10):
        waits = []
        for _ in range(pairs):
            run = measure(PROBED, count, 10, 0.05, ["--split", "0.2"])
            began = run.probed["began"]
            waits.append(statistics.median(began[call] - at for call, at in run.seen["closed"].items() if call in began) * 1000)
        yield at_most(f"closed tool block → tool running, median, {count} at once", 5, waits, "ms")
    reached = []
    for _ in range(pairs):
        seen = measure(COMMAND, 1, TURNS, DELAY).seen
        asked = min(at for at in seen["asked"] if at > seen["reported"][-1])
        reached.append((asked - seen["reported"][-1] - TOGETHER) * 1000)
    yield at_most(
        f"worker's last byte → the coordinator's request, beyond the {TOGETHER * 1000:.0f} ms of gathering", 20, reached, "ms"
    )


def of_commands(pairs: int) -> Iterator[Figure]:
    found = commands.measured(TASKS, pairs)
    for name in commands.COMMANDS:
        for count in (0, 10_000):
            yield at_most(f"`{name}`, {count:,} tasks, over a bare Python with click and sqlite3", 1.6, found[name, count])
    page = "ps --all -n 20"
    over = [a / b for a, b in zip(found[page, 1_000_000], found[page, 1_000], strict=True)]
    yield at_most("a page of 1,000,000 tasks over that of 1,000", 2.0, over)


def of_transcripts(pairs: int) -> Iterator[Figure]:
    yield Figure("transcript writes, 200 workers, over raw sqlite3", "≥ 0.5 ×", transcripts.ratio(pairs), least=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peers", action="store_true", help="other programs, too, installed at the end if they are not: one round"
    )
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS.md")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    began, figures, tables = time.monotonic(), [], [""]
    chosen = programs((LIMIT, ON_AIOHTTP, FLOOR, OURS))
    beside: dict[str, list[str]] = {}

    def show() -> None:
        head = (
            f"Written by `make bench` in {time.monotonic() - began:.0f} s: {options.pairs} rounds, programs in turn, each ratio within one "
            "round; medians, with the least and the most. Read the ratios: the machine is shared. `PROFILE.md` says where it goes, and "
            "what keeps a figure from its target."
        )
        lines = ["| figure | target | measured | met |", "|---|---|---|---|", *(figure.line for figure in figures)]
        parts = ("# What it costs", head, "\n".join(fanout.versions({**chosen, **beside})), "\n".join(lines), *tables)
        text = "\n\n".join(part for part in parts if part) + "\n"
        if options.write:
            RESULTS.write_text(text)
        print(text if options.pairs and not options.write else lines[-1], flush=True)

    rounds = fanout.run_all(chosen, COUNTS, pairs=options.pairs)
    figures += of_fanout(rounds)
    tables = ["\n".join(fanout.table(rounds, COUNTS)), "\n".join(fanout.ratios(rounds, COUNTS))]
    show()
    few = min(3, options.pairs)
    parts = (of_commands(options.pairs), of_latencies(few), of_waiting(few), of_transcripts(options.pairs))
    for part in (*parts, of_a_long_conversation(few), of_a_thousand()):
        try:
            for figure in part:
                figures.append(figure)
        except RuntimeError as error:  # a run that failed costs its own figure, not those after it
            tables.append(f"Not measured: {str(error)[:300]}")
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
        show()
    if options.peers:
        install.main()
        beside.update(programs((OURS, *PEERS)))
        rounds = fanout.run_all(beside, (1, 50), pairs=1)
        tables += [
            "Beside peers, one round:",
            "\n".join(fanout.table(rounds, (1, 50))),
            "\n".join(fanout.ratios(rounds, (1, 50))),
        ]
        show()


if __name__ == "__main__":
    main()
