"""One limiter for the fleet, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
import random
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.api.clock import ManualClock, settle
from worker_agent.api import limiter as module
from worker_agent.api.limiter import Limiter
from worker_agent.errors import ErrorKind, ModelError


def limited(seconds=None, kind=ErrorKind.RATE_LIMIT):
    return ModelError(kind, "slow", retry_after=seconds)


def run(script):
    async def main():
        clock = ManualClock()
        return await script(clock, Limiter(clock, random.Random(7)))

    return asyncio.run(main())


async def starts(clock, limiter, count):
    """Start times of `count` calls that all want to go now, and the tasks."""
    times = []

    async def call():
        async with limiter.turn("m"):
            times.append(clock.monotonic())

    tasks = [asyncio.create_task(call()) for _ in range(count)]
    await settle()
    return times, tasks


def test_without_trouble_nobody_waits():
    async def script(clock, limiter):
        times, tasks = await starts(clock, limiter, 500)
        await asyncio.gather(*tasks)
        assert times == [0.0] * 500 and limiter.limit == math.inf

    run(script)


def test_nobody_sends_before_the_time_the_server_named_and_no_herd_follows():
    async def script(clock, limiter):
        limiter.observe(limited(30.0))
        times, tasks = await starts(clock, limiter, 10)
        await clock.advance(29.9)
        assert times == [] and 0 < limiter.blocked_for <= 0.11
        await clock.advance(60)
        await asyncio.gather(*tasks)
        assert min(times) >= 30.0 and len(set(times)) == 10 and max(times) < 40.0
        assert all(b - a >= module.SPACING * 0.4 for a, b in pairwise(times))

    run(script)


def test_a_block_that_comes_while_others_wait_holds_them_too():
    async def script(clock, limiter):
        limiter.observe(limited(10.0))
        times, tasks = await starts(clock, limiter, 5)
        await clock.advance(5)
        limiter.observe(limited(20.0))
        await clock.advance(19)
        assert times == []
        await clock.advance(20)
        await asyncio.gather(*tasks)
        assert min(times) >= 25.0

    run(script)


def test_a_block_that_comes_while_a_call_stands_in_the_queue_holds_it_too():
    async def script(clock, limiter):
        async def first():
            async with limiter.turn("m"):
                await clock.sleep(1)

        task = asyncio.create_task(first())
        await settle()
        limiter.observe(limited(kind=ErrorKind.OVERLOADED))
        times, waiting = await starts(clock, limiter, 1)
        limiter.observe(limited(30.0))
        await clock.advance(29)
        assert task.done() and times == []
        await clock.advance(10)
        await asyncio.gather(*waiting)

    run(script)


def test_after_the_ramp_calls_start_at_once_again():
    async def script(clock, limiter):
        limiter.observe(limited(1.0))
        await clock.advance(1.0 + module.RAMP + 1)
        times, _ = await starts(clock, limiter, 1)
        assert times == [clock.monotonic()]

    run(script)


def test_an_overload_halves_what_runs_and_answers_let_it_climb_back():
    async def script(clock, limiter):
        release = asyncio.Event()

        async def call():
            async with limiter.turn("m"):
                await release.wait()

        running = [asyncio.create_task(call()) for _ in range(20)]
        await settle()
        for _ in range(20):  # the errors of calls that started together count as one
            limiter.observe(limited(kind=ErrorKind.OVERLOADED))
        assert limiter.limit == 10
        more = [asyncio.create_task(call()) for _ in range(200)]
        await settle()
        assert limiter.running == 20
        release.set()
        await asyncio.gather(*running, *more)
        assert limiter.running == 0 and limiter.limit == math.inf

    run(script)


def test_errors_that_say_nothing_of_limits_change_nothing():
    async def script(clock, limiter):
        for kind in set(ErrorKind) - {ErrorKind.OVERLOADED, ErrorKind.RATE_LIMIT}:
            limiter.observe(limited(60.0, kind))
        assert limiter.blocked_for == 0 and limiter.limit == math.inf

    run(script)


def test_rate_limits_without_a_time_block_longer_each_time_until_one_call_goes_well():
    async def script(clock, limiter):
        waits = []
        for _ in range(8):
            limiter.observe(limited())
            waits.append(limiter.blocked_for)
            await clock.advance(limiter.blocked_for)
        limiter.went_well()
        limiter.observe(limited())
        return [*waits, limiter.blocked_for]

    assert run(script) == [1, 2, 4, 8, 16, 32, 32, 32, 1]


def test_a_wait_of_hours_is_not_waited_for():
    async def script(clock, limiter):
        limiter.observe(limited(100_000.0))
        assert limiter.blocked_for == 0

    run(script)


def test_the_rate_limit_headers_block_when_nothing_remains():
    async def script(clock, limiter):
        reset = datetime.fromtimestamp(clock.now() + 12, UTC).isoformat().replace("+00:00", "Z")
        limiter.headers({"anthropic-ratelimit-tokens-remaining": "10", "anthropic-ratelimit-tokens-reset": reset})
        assert limiter.blocked_for == 0
        limiter.headers({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "soon"})
        assert limiter.blocked_for == 0
        limiter.headers({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": reset})
        assert limiter.blocked_for == pytest.approx(12)

    run(script)


def test_a_cancelled_wait_leaves_its_place_to_the_next():
    async def script(clock, limiter):
        release = asyncio.Event()

        async def call(until):
            async with limiter.turn("m"):
                await until.wait()

        first = asyncio.create_task(call(release))
        await settle()
        limiter.observe(limited(kind=ErrorKind.OVERLOADED))
        assert limiter.limit == 1
        waiting = [asyncio.create_task(call(release)) for _ in range(5)]
        await settle()
        waiting[0].cancel()
        release.set()
        await settle()
        waiting[1].cancel()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert limiter.running == 0 and not limiter._queue

    run(script)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["call", "cancel", "overload", "limit", "wait"]), max_size=40), st.integers())
def test_whatever_happens_no_call_is_lost_and_no_place_leaks(actions, seed):
    async def main():
        clock = ManualClock()
        limiter = Limiter(clock, random.Random(seed))
        tasks = []

        async def call():
            async with limiter.turn("m"):
                assert limiter.running >= 1 and limiter.blocked_for == 0
                await clock.sleep(1)

        for action in actions:
            if action == "call":
                tasks.append(asyncio.create_task(call()))
            elif action == "cancel" and tasks:
                tasks[len(tasks) // 2].cancel()
            elif action == "overload":
                limiter.observe(limited(kind=ErrorKind.OVERLOADED))
            elif action == "limit":
                limiter.observe(limited(2.0))
            else:
                await clock.advance(0.5)
            await settle(3)
        while not all(task.done() for task in tasks):
            await clock.advance(10)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(o is None or isinstance(o, asyncio.CancelledError) for o in outcomes)
        assert limiter.running == 0 and not limiter._queue

    asyncio.run(main())


def test_the_ramp_after_a_block_ends_for_however_many_wait():
    async def script(clock, limiter):
        limiter.observe(limited(2.0))
        waiting = [asyncio.create_task(limiter.wait()) for _ in range(500)]
        await clock.advance(2.0 + module.RAMP + 1.0)
        assert all(task.done() for task in waiting)
        before = clock.monotonic()
        await limiter.wait()
        return clock.monotonic() - before

    assert run(script) == 0.0


# --- prefixes


async def on_prefix(limiter, clock, log, name, began, done):
    async with limiter.prefix("p") as lead:
        log.append((name, clock.monotonic()))
        await began.wait()
        lead.began()
        await done.wait()


def test_the_first_call_on_a_cold_prefix_leads_and_the_others_follow_its_answer():
    async def script(clock, limiter):
        log, began, done = [], asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(on_prefix(limiter, clock, log, n, began, done)) for n in range(5)]
        await settle()
        assert log == [(0, 0.0)]
        await clock.advance(2)
        began.set()
        await settle()
        assert log == [(0, 0.0), *((n, 2.0) for n in range(1, 5))]
        done.set()
        await asyncio.gather(*tasks)
        await clock.advance(100)
        async with limiter.prefix("p"), limiter.prefix("p"):
            assert clock.monotonic() == 102.0

    run(script)


def test_nobody_waits_for_a_slow_leader_longer_than_five_seconds():
    async def script(clock, limiter):
        log, never = [], asyncio.Event()
        tasks = [asyncio.create_task(on_prefix(limiter, clock, log, n, never, never)) for n in range(3)]
        await clock.advance(10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return log

    assert run(script) == [(0, 0.0), (1, 5.0), (2, 5.0)]


def test_when_the_leader_fails_one_other_leads():
    async def script(clock, limiter):
        log, began, never = [], asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(on_prefix(limiter, clock, log, n, began, never)) for n in range(3)]
        await settle()
        tasks[0].cancel()
        await settle()
        assert [name for name, _ in log] == [0, 1]
        tasks[1].cancel()
        await settle()
        assert [name for name, _ in log] == [0, 1, 2]
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(script)


def test_other_prefixes_do_not_wait_and_cold_ones_are_forgotten():
    async def script(clock, limiter):
        for key in range(module.PREFIXES):
            async with limiter.prefix(key) as lead:
                lead.began()
        await clock.advance(module.PREFIX_WARM + 1)
        async with limiter.prefix("new"):
            assert len(limiter._prefixes) == 1

    run(script)
