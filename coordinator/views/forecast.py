"""What is left of a session, as far as the workers that ended say it: pure, over the objects of its tasks.

Rules:

1. It is of the workers there are now. What the coordinator does itself and asks for next nobody knows: that comes on top.
2. A worker is expected to end as those of its kind did that took longer than it has taken so far; where fewer than `LEAST` of its
   kind are done, as all that are. Where fewer than `ALIKE` of them took longer, nothing is said: it is beyond what is known.
3. A range, never a number: from the quicker quarter to the slower one; of fewer than five, from the least to the most.
4. A worker that waits for a person ends nobody knows when: its time is left out, and it is counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from coordinator.views.values import iso, state

LEAST = 3  # workers that are done, before anything is said
ALIKE = 2  # of them that took longer than one has so far

Json = Mapping[str, Any]
Range = tuple[float, float]


class Forecast(Struct, frozen=True):
    """Of `workers` that have not ended, by `done` that have. `ends_at` in seconds since the epoch, the earlier and the later time
    by which those that wait for nobody have ended; `cost_usd` what all of them cost from here on. None where nothing can be
    said."""

    workers: int
    done: int
    waiting: int
    ends_at: Range | None
    cost_usd: Range | None

    def to_json(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "done": self.done,
            "waiting": self.waiting,
            "ends_at": self.ends_at and [iso(at) for at in self.ends_at],
            "cost_usd": self.cost_usd and list(self.cost_usd),
        }


def forecast(tasks: Sequence[Json], now: float) -> Forecast | None:
    """Of tasks as in `tasks list`; None where nothing can be said. A worker that nobody drives is left out of it."""
    workers = [task for task in tasks if task["type"] == "local_agent"]
    live = [task for task in workers if task["status"] in ("running", "pending")]
    done = [task for task in workers if task["status"] == "completed" and task["duration_ms"] is not None]
    if not live or len(done) < LEAST:
        return None
    waiting = sum(state(task) == "waiting" for task in live)
    ends_at, cost = _ends_at(live, done, now), _cost(live, done)
    return Forecast(len(live), len(done), waiting, ends_at, cost) if ends_at or cost else None


def _alike(task: Json, done: Sequence[Json]) -> Sequence[Json]:
    same = [one for one in done if one["agent"] == task["agent"]]
    return same if len(same) >= LEAST else done


def _range(known: Sequence[float], beyond: float) -> Range | None:
    """What of `known` is more than `beyond`: its quarters; None where too little is."""
    more = sorted(one for one in known if one > beyond)
    skipped = (len(more) - 1) // 4
    return (more[skipped], more[-1 - skipped]) if len(more) >= ALIKE else None


def _ends_at(live: Sequence[Json], done: Sequence[Json], now: float) -> Range | None:
    running: list[Range] = []
    queued: list[Range] = []
    for task in live:
        so_far = (task["duration_ms"] or 0) / 1000
        if state(task) == "waiting":
            continue
        if (took := _range([one["duration_ms"] / 1000 for one in _alike(task, done)], so_far)) is None:
            return None
        (running if task["status"] == "running" else queued).append((took[0] - so_far, took[1] - so_far))
    if not running and not queued:
        return None
    return _last(running, queued, now, 0), _last(running, queued, now, 1)


def _last(running: Sequence[Range], queued: Sequence[Range], now: float, which: int) -> float:
    """When the last has ended, if each takes the quicker (0) or the slower (1) time: what is queued begins in the order in which
    what runs ends."""
    slots = [now + left[which] for left in running] or [now]
    heapq.heapify(slots)
    last = max(slots)
    for took in queued:
        ends = heapq.heappop(slots) + took[which]
        heapq.heappush(slots, ends)
        last = max(last, ends)
    return last


def _cost(live: Sequence[Json], done: Sequence[Json]) -> Range | None:
    if any(task["cost_usd"] is None for task in done):
        return None  # a price is unknown
    least = most = 0.0
    for task in live:
        so_far = task["cost_usd"] or 0.0
        if (costs := _range([one["cost_usd"] for one in _alike(task, done)], so_far)) is None:
            return None
        least, most = least + costs[0] - so_far, most + costs[1] - so_far
    return least, most
