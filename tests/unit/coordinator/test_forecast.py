"""What may be said of what is left, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.views.forecast import Forecast, forecast

NOW = 1_000.0


def worker(status: str, seconds: float | None, usd: float | None = None, agent: str = "worker", **more: Any) -> dict[str, Any]:
    known = {"type": "local_agent", "status": status, "agent": agent, "cost_usd": usd, "needs_approval": None}
    return known | {"duration_ms": None if seconds is None else seconds * 1000} | more


DONE = [worker("completed", seconds, usd) for seconds, usd in ((60, 0.6), (80, 0.8), (100, 1.0), (120, 1.2), (140, 1.4))]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([*DONE, worker("running", 10, 0.1)], Forecast(1, 5, 0, (NOW + 70, NOW + 110), (0.7, 1.1))),
        # Beside those that took longer than 90 s it cannot end earlier than they did.
        ([*DONE, worker("running", 90, 0.9)], Forecast(1, 5, 0, (NOW + 10, NOW + 50), (0.1, 0.5))),
        # What is queued takes the slot of what ends first.
        ([*DONE, worker("running", 10, 0.1), worker("pending", None)], Forecast(2, 5, 0, (NOW + 150, NOW + 230), (1.5, 2.3))),
        # Nobody knows when a person answers; what it costs afterwards is known as for any other.
        ([*DONE, worker("running", 10, 0.1, needs_approval="p1")], Forecast(1, 5, 1, None, (0.7, 1.1))),
        # Its own kind says more than all, where enough of it is done.
        (
            [*DONE, *(worker("completed", s, 0.1, "explore") for s in (5, 6, 7)), worker("running", 1, 0.0, "explore")],
            Forecast(1, 8, 0, (NOW + 4, NOW + 6), (0.1, 0.1)),
        ),
        ([*DONE, worker("running", 130, 0.1)], Forecast(1, 5, 0, None, (0.7, 1.1))),  # beyond all but one
        ([*DONE[:4], worker("completed", 9, None), worker("running", 10, 0.1)], Forecast(1, 5, 0, (NOW + 50, NOW + 110), None)),
    ],
)  # fmt: skip
def test_a_range_by_what_ended(tasks: list[dict[str, Any]], expected: Forecast) -> None:
    found = forecast(tasks, NOW)
    assert found is not None
    assert found.ends_at == (expected.ends_at and pytest.approx(expected.ends_at))
    assert found.cost_usd == (expected.cost_usd and pytest.approx(expected.cost_usd))
    assert (found.workers, found.done, found.waiting) == (expected.workers, expected.done, expected.waiting)


@pytest.mark.parametrize(
    "tasks",
    [
        DONE,  # nothing is left
        [*DONE[:2], worker("running", 1, 0.1)],
        [*DONE[:2], worker("failed", 90, 0.9), worker("running", 1, 0.1)],  # an early end is none to go by
        [*DONE, worker("interrupted", 1, 0.1)],  # nobody drives it
        [*DONE, worker("running", 500, 5.0)],  # beyond all that is known
        [*DONE, worker("running", 5, 0.1, type="local_bash")],
    ],
)
def test_nothing_is_said_where_nothing_can_be(tasks: list[dict[str, Any]]) -> None:
    assert forecast(tasks, NOW) is None
