"""The clock of `--timeout` stands while everything waits for a person."""

import asyncio

from coordinator.session.time_limit import TimeLimit
from tests.unit.api.clock import ManualClock


def test_the_time_in_which_everything_waits_does_not_count() -> None:
    async def scenario() -> tuple[float, list[bool]]:
        clock, waits, seen = ManualClock(), False, []
        limit = TimeLimit(clock, 10.0, lambda: waits)
        running = asyncio.create_task(limit.run_out())
        await clock.advance(6.0)
        waits = True
        limit.look()
        await clock.advance(100.0)
        seen.append(running.done())
        waits = False
        limit.look()
        await clock.advance(3.0)
        seen.append(running.done())
        await clock.advance(1.0)
        await running
        return clock.monotonic(), seen

    assert asyncio.run(scenario()) == (110.0, [False, False])


def test_without_a_limit_it_never_runs_out() -> None:
    async def scenario() -> bool:
        clock = ManualClock()
        running = asyncio.create_task(TimeLimit(clock, None, lambda: False).run_out())
        await clock.advance(1e9)
        ended = running.done()
        running.cancel()
        return ended

    assert asyncio.run(scenario()) is False
