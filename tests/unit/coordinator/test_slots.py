"""Slots: never more than the limit, first in first out, given back on every way out."""

import asyncio
from contextlib import nullcontext

from hypothesis import given
from hypothesis import strategies as st

from coordinator.runs.slots import Slots


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_never_more_than_the_limit_run_and_the_first_in_line_goes_first() -> None:
    async def scenario() -> tuple[list[int], int]:
        slots, order, most = Slots(3), [], 0

        async def worker(number: int) -> None:
            nonlocal most
            async with slots.slot(f"a{number}"):
                order.append(number)
                most = max(most, slots.used)
                await asyncio.sleep(0)

        await asyncio.gather(*(worker(i) for i in range(10)))
        assert (slots.used, slots.waiting) == (0, 0)
        return order, most

    assert asyncio.run(scenario()) == (list(range(10)), 3)


def test_a_cancelled_waiter_leaves_the_queue_and_a_slot_just_handed_to_it_goes_on() -> None:
    async def scenario() -> None:
        slots, gate = Slots(1), asyncio.Event()
        ran: list[str] = []

        async def hold(name: str) -> None:
            async with slots.slot(name):
                ran.append(name)
                await gate.wait()

        first, second, third = (asyncio.create_task(hold(n)) for n in ("first", "second", "third"))
        await _settle()
        first.cancel()
        await asyncio.sleep(0)  # the slot is handed to `second`, which has not woken yet
        second.cancel()
        await _settle()
        assert ran == ["first", "third"] and slots.used == 1
        gate.set()
        await third
        assert slots.used == 0

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=25), st.integers(1, 4))
def test_whatever_fails_or_is_cancelled_all_slots_come_back(plan: list[tuple[int, bool, bool]], limit: int) -> None:
    async def scenario() -> None:
        slots = Slots(limit)

        async def worker(name: str, ticks: int, fails: bool) -> None:
            async with slots.slot(name):
                assert slots.used <= limit
                for tick in range(ticks):
                    async with slots.lent(name) if tick % 2 else nullcontext():
                        await asyncio.sleep(0)
                    assert slots.used <= limit
                if fails:
                    raise ValueError

        tasks = [(asyncio.create_task(worker(f"a{number}", ticks, fails)), cancelled)
                 for number, (ticks, fails, cancelled) in enumerate(plan)]  # fmt: skip
        for task, cancelled in tasks:
            await asyncio.sleep(0)
            if cancelled:
                task.cancel()
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert (slots.used, slots.waiting) == (0, 0)

    asyncio.run(scenario())


def test_a_slot_that_is_lent_is_free_for_others_and_its_owner_comes_first_after() -> None:
    async def scenario() -> list[str]:
        slots, gate, order = Slots(1), asyncio.Event(), []

        async def waits_for_a_person() -> None:
            async with slots.slot("first"):
                async with slots.lent("first"), slots.lent("first"):
                    await gate.wait()
                order.append("first again")

        async def other(name: str) -> None:
            async with slots.slot(name):
                order.append(name)
                gate.set()
                await _settle()

        await asyncio.gather(waits_for_a_person(), other("second"), other("third"))
        assert (slots.used, slots.waiting) == (0, 0)
        return order

    assert asyncio.run(scenario()) == ["second", "first again", "third"]
