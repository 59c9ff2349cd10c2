"""The budget of the tree: no overshoot, refunds, the notice, the last call, refusal."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.budget import Amount, Limit, TreeBudget
from worker_agent.api.client import ModelRequest
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage


def one_a_call(model: str, usage: Usage) -> float:
    """A price as if calls were counted."""
    return 1.0


def per_output_token(model: str, usage: Usage) -> float:
    return float(usage.output)


def request(max_tokens: int = 100) -> ModelRequest:
    return ModelRequest(model="m", max_tokens=max_tokens, system=(), tools=(), messages=())


async def run_agent(tree: TreeBudget, calls: list[bool], wish: int = 100) -> None:
    """An agent that wants `wish` calls; notes for each call whether it was the last one."""
    agent = tree.agent()
    try:
        for _ in range(wish):
            reservation = await agent.reserve(request(), 10)
            calls.append(reservation.last_call)
            await asyncio.sleep(0)
            reservation.settle("m", Usage(output=1))
            if reservation.last_call:
                return
    except ModelError as error:
        assert error.kind is ErrorKind.BUDGET
    finally:
        agent.close()


def test_eight_workers_with_a_limit_of_ten_calls_make_exactly_ten() -> None:
    async def scenario() -> tuple[int, Amount]:
        tree, calls = TreeBudget(one_a_call, Limit(usd=10.0)), []
        await asyncio.gather(*(run_agent(tree, calls) for _ in range(8)))
        return len(calls), tree.spent

    calls, spent = asyncio.run(scenario())
    assert (calls, spent.usd) == (10, 10.0)


def test_the_last_call_of_a_lonely_agent_is_its_third_of_three() -> None:
    async def scenario() -> list[bool]:
        calls: list[bool] = []
        await run_agent(TreeBudget(one_a_call, Limit(usd=3.0)), calls)
        return calls

    assert asyncio.run(scenario()) == [False, False, True]


def test_a_call_waits_for_what_others_give_back() -> None:
    async def scenario() -> Amount:
        tree = TreeBudget(per_output_token, Limit(usd=250.0))
        first, second = tree.agent(), tree.agent()
        held = await first.reserve(request(100), 0)
        waiting = asyncio.create_task(second.reserve(request(100), 0))
        await asyncio.sleep(0)
        assert not waiting.done()
        held.settle("m", Usage(output=1))
        first.close()
        reservation = await waiting
        assert not reservation.last_call
        reservation.settle("m", None)
        assert tree.held == Amount()
        return tree.spent

    assert asyncio.run(scenario()) == Amount(1.0, 1)


def test_a_call_waits_for_an_agent_that_runs_its_tools() -> None:
    async def scenario() -> list[bool]:
        tree = TreeBudget(per_output_token, Limit(usd=250.0))
        coordinator, first, second = tree.agent(idles=True), tree.agent(), tree.agent()
        (await coordinator.reserve(request(1), 0)).settle("m", Usage(output=1))
        (await first.reserve(request(100), 0)).settle("m", Usage(output=1))  # its tools run now
        waiting = asyncio.create_task(second.reserve(request(100), 0))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.close()
        return [(await waiting).last_call]

    assert asyncio.run(scenario()) == [False]


def test_agents_that_all_wait_for_each_other_get_their_last_calls() -> None:
    async def scenario() -> list[bool]:
        tree, last = TreeBudget(one_a_call, Limit(usd=4.0)), []
        agents = [tree.agent(), tree.agent()]
        for agent in agents:
            (await agent.reserve(request(), 0)).settle("m", Usage(output=1))

        async def more(agent) -> None:
            reservation = await agent.reserve(request(), 0)
            last.append(reservation.last_call)
            await asyncio.sleep(0)
            reservation.settle("m", Usage(output=1))
            agent.close()

        await asyncio.wait_for(asyncio.gather(*map(more, agents)), 5)
        return last

    assert asyncio.run(scenario()) == [True, True]


def test_settling_twice_books_once() -> None:
    async def scenario() -> Amount:
        tree = TreeBudget(per_output_token, Limit(usd=1000.0))
        reservation = await tree.agent().reserve(request(), 0)
        reservation.settle("m", Usage(output=7))
        reservation.settle("m", Usage(output=7))
        return tree.spent

    assert asyncio.run(scenario()) == Amount(7.0, 7)


def test_each_agent_is_told_once_at_eighty_percent() -> None:
    async def scenario() -> list[list[bool]]:
        tree = TreeBudget(per_output_token, Limit(usd=1000.0), spent=Amount(800.0, 800))
        told = []
        for agent in (tree.agent(), tree.agent()):
            told.append([])
            for _ in range(2):
                reservation = await agent.reserve(request(10), 0)
                told[-1].append(reservation.notice is not None)
                reservation.settle("m", None)
        return told

    assert asyncio.run(scenario()) == [[True, False], [True, False]]


def test_an_unknown_price_cannot_keep_a_limit_in_usd() -> None:
    with pytest.raises(ModelError, match="price of m is unknown"):
        asyncio.run(TreeBudget(lambda model, usage: None, Limit(usd=1.0)).agent().reserve(request(), 0))


def test_output_tokens_can_be_the_limit() -> None:
    async def scenario() -> bool:
        tree = TreeBudget(lambda model, usage: None, Limit(tokens=150))
        return (await tree.agent().reserve(request(100), 0)).last_call

    assert asyncio.run(scenario()) is True


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 12))
def test_no_tree_of_agents_passes_its_limit(agents: int, limit: int, wish: int) -> None:
    async def scenario() -> None:
        tree, calls = TreeBudget(one_a_call, Limit(usd=float(limit))), []
        await asyncio.wait_for(asyncio.gather(*(run_agent(tree, calls, wish) for _ in range(agents))), 5)
        assert len(calls) == tree.spent.usd <= limit
        assert tree.held.usd == pytest.approx(0)

    asyncio.run(scenario())
