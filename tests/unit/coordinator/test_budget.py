"""The budget of the tree: no overshoot, refunds, smaller calls, the notice, the last call, refusal."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.agents.budget import REPORT_TOKENS, Amount, CallBudget, Limit, TreeBudget
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


def dollars(model: str, usage: Usage) -> float:
    """What the default model costs."""
    return (2 * usage.input + 2.5 * usage.cache_write_5m + 10 * usage.output) / 1e6


async def spend(tree: TreeBudget, used: Usage, wish: int, calls: list[CallBudget], cap: int = 16_000) -> None:
    """An agent that works until its last call or `wish` calls, each of which used `used` or its cap."""
    agent = tree.agent()
    try:
        for _ in range(wish):
            call = await agent.reserve(request(cap), used.input)
            calls.append(call)
            await asyncio.sleep(0)
            call.settle("m", Usage(input=used.input, output=min(used.output, call.max_tokens or cap)))
            if call.last_call:
                return
    except ModelError as error:
        assert error.kind is ErrorKind.BUDGET
    finally:
        agent.close()


def test_one_agent_spends_most_of_its_budget_before_its_last_call() -> None:
    async def scenario() -> tuple[float, list[int | None], list[bool]]:
        tree, calls = TreeBudget(dollars, Limit(usd=0.90)), []
        await spend(tree, Usage(input=10_000, output=1000), 100, calls)
        return tree.spent.usd, [call.max_tokens for call in calls], [call.last_call for call in calls]

    spent, caps, last = asyncio.run(scenario())
    assert 0.85 * 0.90 < spent <= 0.90
    assert last.index(True) == len(last) - 1 and caps[-1] == REPORT_TOKENS
    smaller = [cap for cap in caps[:-1] if cap is not None]
    assert smaller == sorted(smaller, reverse=True) and 16_000 > smaller[0] > smaller[-1] >= REPORT_TOKENS


def test_eight_agents_share_a_dollar_each_of_them_calls_and_each_reports() -> None:
    async def scenario() -> tuple[float, list[list[CallBudget]]]:
        tree, calls = TreeBudget(dollars, Limit(usd=1.0)), [[] for _ in range(8)]
        await asyncio.gather(*(spend(tree, Usage(input=10_000, output=1000), 100, own) for own in calls))
        return tree.spent.usd, calls

    spent, calls = asyncio.run(scenario())
    assert 0.85 < spent <= 1.0
    assert all(len(own) >= 2 and own[-1].last_call for own in calls)


def test_a_coordinator_gets_what_is_left_after_its_workers() -> None:
    async def scenario() -> list[str]:
        tree, order = TreeBudget(one_a_call, Limit(usd=4.0)), []
        boss, worker = tree.agent(idles=True), tree.agent()
        for agent in (boss, worker):
            (await agent.reserve(request(), 0)).settle("m", Usage(output=1))
        assert not boss.has_room

        async def more(agent, name: str) -> None:
            reservation = await agent.reserve(request(), 0)
            order.append(f"{name} {reservation.last_call}")
            await asyncio.sleep(0)
            reservation.settle("m", Usage(output=1))
            agent.close()

        await asyncio.wait_for(asyncio.gather(more(boss, "boss"), more(worker, "worker")), 5)
        return order

    assert asyncio.run(scenario()) == ["worker True", "boss True"]


def test_a_cancelled_wait_gives_nothing_away() -> None:
    async def scenario() -> tuple[Amount, bool]:
        tree = TreeBudget(per_output_token, Limit(usd=250.0))
        first, second, third = tree.agent(), tree.agent(), tree.agent()
        held = await first.reserve(request(100), 0)
        waiting = [asyncio.create_task(agent.reserve(request(100), 0)) for agent in (second, third)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        held.settle("m", None)
        first.close()
        await asyncio.wait(waiting)
        second.close()
        (await waiting[1]).settle("m", None)
        return tree.held, waiting[0].cancelled()

    assert asyncio.run(scenario()) == (Amount(), True)


def test_a_call_granted_in_the_moment_of_its_cancellation_goes_back() -> None:
    async def scenario() -> Amount:
        tree = TreeBudget(per_output_token, Limit(usd=250.0))
        first, second = tree.agent(), tree.agent()
        held = await first.reserve(request(100), 0)
        waiting = asyncio.create_task(second.reserve(request(100), 0))
        await asyncio.sleep(0)
        held.settle("m", None)
        first.close()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        return tree.held

    assert asyncio.run(scenario()) == Amount()


def test_who_came_last_is_refused_where_not_every_agent_can_report() -> None:
    async def scenario() -> list[int]:
        tree, calls = TreeBudget(one_a_call, Limit(usd=3.0)), [[] for _ in range(3)]
        await asyncio.wait_for(asyncio.gather(*(run_agent(tree, own) for own in calls)), 5)
        return list(map(len, calls))

    assert asyncio.run(scenario()) == [2, 1, 0]


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


@settings(max_examples=60)
@given(
    st.integers(1, 9),
    st.floats(0, 1.5),
    st.integers(0, 30_000),
    st.integers(0, 20_000),
    st.sampled_from((500, 2048, 16_000, 64_000)),
    st.one_of(st.none(), st.integers(0, 60_000)),
)
def test_no_tree_passes_either_limit_whatever_its_calls_use(
    agents: int, usd: float, prompt: int, output: int, cap: int, tokens: int | None
) -> None:
    async def scenario() -> None:
        tree, calls = TreeBudget(dollars, Limit(usd=usd, tokens=tokens)), []
        used = Usage(input=prompt, output=output)
        await asyncio.wait_for(asyncio.gather(*(spend(tree, used, 6, calls, cap) for _ in range(agents))), 5)
        assert tree.spent.within(tree.limit)
        assert tree.held.tokens == 0 and tree.held.usd == pytest.approx(0)
        assert all(call.max_tokens is None or call.max_tokens >= min(cap, REPORT_TOKENS) for call in calls)

    asyncio.run(scenario())
