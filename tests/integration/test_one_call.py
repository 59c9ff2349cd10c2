"""Whoever asks a model is within budget, limiter and ledger: turns, summaries of a conversation, lines about tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.agents.budget import Amount, Limit, TreeBudget
from tests.support.agent import Probe, collect, engine
from tests.support.fake_api import FakeAPI, text, tool_use
from worker_agent import events as e
from worker_agent import messages as m
from worker_agent.api.client import ModelRequest
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage
from worker_agent.session.engine import Limits, ask


def dollar_a_thousand(model: str, usage: Usage) -> float:
    return usage.output / 1_000


def request(cap: int) -> ModelRequest:
    return ModelRequest(model="m", max_tokens=cap, system=(), tools=(), messages=(m.user("x"),))


def test_a_compaction_leaves_the_budgets_notice_to_the_agent(tmp_path: Path) -> None:
    async def main(api: FakeAPI) -> list[e.Notice]:
        tree = TreeBudget(dollar_a_thousand, Limit(usd=1_000.0))
        budget = tree.agent(idles=True)
        subject = engine(api, tmp_path, budget=budget)
        await collect(subject, "first")
        tree.spent = Amount(850.0, 0)
        await collect(subject, "/compact")
        run = await collect(subject, "go on")
        await subject.close()
        await subject.agent.client.close()
        return run.notices("budget")

    with FakeAPI([text("one"), text("summary"), text("two")], allow_violations=True) as api:  # a compaction moves the prefix
        (notice,) = asyncio.run(main(api))
    assert notice.text.startswith("85% of the budget")
    assert notice.text in str(api.requests[-1].messages[-1]["content"])


def test_the_line_about_a_turns_tools_is_held_settled_and_booked(tmp_path: Path) -> None:
    booked: list[e.ModelCalled] = []
    tree = TreeBudget(dollar_a_thousand, Limit(usd=1_000.0))

    async def main(api: FakeAPI) -> list[e.Notice]:
        subject = engine(api, tmp_path, tools=[Probe()], summaries=True, budget=tree.agent(idles=True), book=booked.append)
        run = await collect(subject, "go")
        await subject.close()
        await subject.agent.client.close()
        return run.notices("tool_use_summary")

    with FakeAPI(_by_tools) as api:
        (line,) = asyncio.run(main(api))
    assert line.text == "Probed once"
    assert sorted(call.purpose for call in booked) == ["tool_summary", "turn", "turn"]
    assert tree.held.usd == pytest.approx(0.0) and tree.spent.usd == pytest.approx(
        sum(call.usage.output for call in booked) / 1_000
    )


def _by_tools(asked: Any) -> Any:
    """The small model has no tools; the agent calls its tool once."""
    if not asked.body.get("tools"):
        return text("Probed once")
    return text("done") if "tool_result" in str(asked.messages[-1]) else tool_use("Probe", {"n": 1})


def test_what_works_beside_a_turn_takes_only_what_nobody_needs() -> None:
    async def main() -> None:
        tree = TreeBudget(dollar_a_thousand, Limit(usd=10.0))
        agent = tree.agent()
        call = await agent.reserve(request(6_000), 0)
        with pytest.raises(ModelError) as refused:  # 4 are left beside the call, 2.048 of them for its report
            agent.spare(request(2_500), 0)
        assert refused.value.kind is ErrorKind.BUDGET and tree.held.usd == 6.0
        agent.spare(request(1_500), 0).settle("m", Usage(output=100))
        call.settle("m", None)
        assert tree.spent.usd == pytest.approx(0.1) and tree.held.usd == pytest.approx(0.0)

    asyncio.run(main())


def test_ask_is_one_prompt_and_its_result(tmp_path: Path) -> None:
    async def main(api: FakeAPI) -> e.Result:
        subject = engine(api, tmp_path, tools=[Probe()])
        result = await ask(subject.agent, subject.context, "go", Limits(max_turns=3))
        await subject.close()
        await subject.agent.client.close()
        return result

    with FakeAPI([tool_use("Probe", {"n": 1}), text("done")]) as api:
        result = asyncio.run(main(api))
    assert (result.text, result.turns, result.is_error) == ("done", 2, False)
