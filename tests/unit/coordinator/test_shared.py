"""Several processes on one session and one account, as far as they share: each has a writer and an event loop's objects of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coordinator.agents.budget import Limit, TreeBudget
from coordinator.cluster.limits import Minute, SharedLimits
from coordinator.cluster.shared_files import MOST, SharedDirectory, SharedFiles
from coordinator.cluster.shares import BudgetShares
from coordinator.other_processes import lease
from coordinator.store import Store
from coordinator.wakes import Signal
from tasks import fleet, leases, ledger, nodes, sessions
from tasks.db import Database
from tasks.nodes import NewNode
from tasks.writer import Writer
from tests.unit.api.clock import ManualClock, settle
from tests.unit.coordinator.test_budget import per_output_token, request
from worker_agent.api.limiter import Limiter
from worker_agent.config import RetrySettings, SystemClock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage

HOLDERS = (fleet.OWNER, "h1", "h2")


@pytest.fixture
def times() -> list[Callable[[], float]]:
    """The clock of the database, for a test to put another in its place."""
    return [time.time]


@pytest.fixture
def stores(tmp_path: Path, times: list[Callable[[], float]]) -> Iterator[list[Store]]:
    """One for each process: the session's own, two nodes."""
    database = Database.open(tmp_path / "store.db", clock=lambda: times[0]())
    session = database.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model="m", options={}))
    owner, clock = leases.this_owner(), SystemClock()
    fence = lease.acquire(database, session.id, owner, clock)
    for holder in HOLDERS[1:]:
        new = NewNode(name=holder, holder=holder, host="x", pid=1, version="1", slots=1)
        database.write(lambda conn, new=new: nodes.join(conn, new))
    made = [Store(database, Writer(database), session.id, owner, clock, fence, failed=Signal()) for _ in HOLDERS]
    yield made
    for store in made:
        store.writer.close()
    database.close()


def trees(stores: list[Store], limit: Limit) -> list[TreeBudget]:
    return [
        TreeBudget(per_output_token, limit, shares=BudgetShares(store, holder, limit))
        for store, holder in zip(stores, HOLDERS, strict=True)
    ]


async def work(store: Store, tree: TreeBudget, calls: int, output: int, used: list[int]) -> None:
    """An agent with so many calls, each booked as a real one is: after it is settled."""
    agent = tree.agent()
    try:
        for _ in range(calls):
            held = await agent.reserve(request(200), 0)
            await asyncio.sleep(0)
            spent = min(output, held.max_tokens or output)
            held.settle("m", Usage(output=spent))
            used.append(spent)
            store.submit(
                lambda conn, spent=spent: ledger.book(
                    conn, response_id=None, session_id=store.session_id, agent_id="a", task_id=None, model="m", purpose="turn",
                    input_tokens=0, cache_write_5m_tokens=0, cache_write_1h_tokens=0, cache_read_tokens=0,
                    output_tokens=spent, cost_usd=float(spent),
                )
            )  # fmt: skip
            if held.last_call:
                return
    finally:
        agent.close()


def test_three_processes_never_spend_more_than_the_limit_and_nearly_all_of_it(stores: list[Store]) -> None:
    async def run() -> list[int]:
        used: list[int] = []

        async def refused(store: Store, tree: TreeBudget) -> None:
            with suppress(ModelError):
                await work(store, tree, 100, 100, used)

        made = trees(stores, Limit(usd=10_000.0))
        await asyncio.gather(*(refused(store, tree) for store, tree in zip(stores, made, strict=True) for _ in range(4)))
        await asyncio.gather(*(store.writer.flush() for store in stores))
        return used

    used = asyncio.run(run())
    assert 9_000 < sum(used) <= 10_000
    total = stores[0].read(lambda conn: ledger.total(conn, session_id=stores[0].session_id))
    assert total.known_cost_usd == sum(used)


def test_most_calls_ask_nobody(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = fleet.take
    monkeypatch.setattr(fleet, "take", lambda *args, **more: asked.append(1) or real(*args, **more))

    async def run() -> None:
        tree = trees(stores, Limit(tokens=1_000_000))[0]
        await work(stores[0], tree, 200, 100, [])

    asyncio.run(run())
    assert 0 < len(asked) < 10


def test_what_one_process_holds_is_not_refused_to_another_but_waited_for(stores: list[Store]) -> None:
    async def run() -> None:
        first, second, _ = trees(stores, Limit(tokens=500))
        holding = first.agent()
        held = await holding.reserve(request(240), 0)
        wanting = asyncio.create_task(second.agent().reserve(request(240), 0))
        await asyncio.sleep(0.1)
        assert not wanting.done()
        held.settle("m", None)
        holding.close()
        await asyncio.sleep(0)
        await stores[0].writer.flush()
        second.news()
        got = await asyncio.wait_for(wanting, 10)
        assert got.max_tokens is None and not got.last_call

    asyncio.run(run())


def test_a_budget_that_is_used_up_is_refused_by_all_and_says_what_all_spent(stores: list[Store]) -> None:
    async def run() -> None:
        first, second, _ = trees(stores, Limit(tokens=400))
        await work(stores[0], first, 2, 190, [])
        await stores[0].writer.flush()
        with pytest.raises(ModelError, match="380 of 400") as told:
            await asyncio.wait_for(second.agent().reserve(request(200), 0), 10)
        assert told.value.kind is ErrorKind.BUDGET

    asyncio.run(run())


def test_a_rate_limit_that_one_process_meets_stops_the_others_for_the_named_time(stores: list[Store]) -> None:
    async def run() -> None:
        clock = ManualClock()
        limiters = [Limiter(clock), Limiter(clock), Limiter(clock)]
        first, second, other = (
            SharedLimits(store, limiter, account, RetrySettings())
            for store, limiter, account in zip(stores, limiters, ("one", "one", "two"), strict=True)
        )
        limiters[0].observe(ModelError(ErrorKind.RATE_LIMIT, "slow down", retry_after=30.0))
        await stores[0].writer.flush()
        for shared in (first, second, other):
            shared.look()
        assert 29 < limiters[1].blocked_for <= 30
        assert limiters[2].blocked_for == 0, "another account"

    asyncio.run(run())


def test_a_minute_is_shared_and_the_next_one_begins_anew(stores: list[Store], times: list[Callable[[], float]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        times[0] = clock.now
        for store in stores:
            store.clock = clock
        settings = RetrySettings(requests_per_minute=10, tokens_per_minute=1_000)
        minutes = [Minute(store, "one", settings) for store in stores[:2]]
        going = [asyncio.create_task(minute.take()) for minute in minutes for _ in range(8)]

        async def done(wanted: int, step: float = 0.0) -> int:
            for _ in range(200):
                await asyncio.sleep(0.005)
                await clock.advance(step)
                if (found := sum(task.done() for task in going)) >= wanted:
                    return found
            return sum(task.done() for task in going)

        assert await done(11) == 10
        assert await done(16, step=1.0) == 16
        assert 59 <= clock.monotonic() < 120
        minutes[0].used(5_000)
        blocked = asyncio.create_task(minutes[0].take())
        await settle()
        assert not blocked.done()
        blocked.cancel()
        await asyncio.gather(blocked, *going, return_exceptions=True)

    asyncio.run(run())


def test_small_files_reach_every_machine_and_nothing_is_written_through_a_link(stores: list[Store], tmp_path: Path) -> None:
    async def run() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.mkdir()
        first, second = SharedDirectory(stores[0], one, "scratch"), SharedDirectory(stores[1], two, "scratch")
        (one / "deep").mkdir()
        (one / "deep" / "a").write_text("a")
        (one / "b").write_text("b")
        (one / "big").write_bytes(b"x" * (MOST + 1))
        (one / "link").symlink_to("/etc/passwd")
        await first.exchange()
        await second.exchange()
        assert sorted(str(p.relative_to(two)) for p in two.rglob("*") if p.is_file()) == ["b", "deep/a"]

        (two / "b").write_text("changed there")
        (two / "deep" / "a").unlink()
        await second.exchange()
        await first.exchange()
        assert (one / "b").read_text() == "changed there" and not (one / "deep" / "a").exists()
        rows = stores[0].read(lambda conn: fleet.files_since(conn, stores[0].session_id, 0))
        await first.exchange()
        await second.exchange()
        assert stores[0].read(lambda conn: fleet.files_since(conn, stores[0].session_id, 0)) == rows, "nothing goes to and fro"

        (outside := tmp_path / "outside").mkdir()
        (two / "deep").rmdir()
        (two / "deep").symlink_to(outside)
        (one / "deep" / "c").write_text("c")
        await first.exchange()
        await second.exchange()
        assert list(outside.iterdir()) == []

    asyncio.run(run())


def test_a_worker_that_moves_finds_its_long_results_and_no_others(stores: list[Store], tmp_path: Path) -> None:
    async def run() -> None:
        here, there = (SharedFiles(store, tmp_path / name / "scratch", tmp_path / name / "spill") for name, store in
                       (("here", stores[0]), ("there", stores[1])))  # fmt: skip
        for agent in ("a1", "a2"):
            (place := tmp_path / "here" / "spill" / agent).mkdir(parents=True)
            (place / "long.txt").write_text(f"the result of {agent}")
            await here.exchange(agent)
        await there.exchange("a1")
        found = [str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*.txt")]
        assert found == ["spill/a1/long.txt"]

    asyncio.run(run())
