"""What the prompt cache serves, by the fake's own accounting: marks, lookback and minimum as documented."""

import asyncio
import random
import re
from pathlib import Path

import pytest

from tests.support.agent import FAST, Probe, collect, drive, engine
from tests.support.fake_api import FakeAPI, compaction, message, text, thinking, tool_use
from worker_agent import messages as m
from worker_agent.api import models
from worker_agent.api.client import ModelRequest
from worker_agent.api.request import RequestBuilder
from worker_agent.config import ContextSettings, Settings
from worker_agent.context.values import Collapse
from worker_agent.context.view import apply
from worker_agent.tools.base import ToolResult

CLIENT = "claude-sonnet-5"


def prompt_of(usage):
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]


def share_read(requests):
    read = sum(request.usage["cache_read_input_tokens"] for request in requests)
    return read / sum(prompt_of(request.usage) for request in requests)


@pytest.mark.parametrize("calls", [1, 12, 30])
def test_a_turn_with_many_results_still_hits_the_cache(tmp_path, calls):
    probe = Probe(then=lambda n: ToolResult(f"{n} " * 4_000))
    many = [message(*(tool_use("Probe", {"n": turn * 100 + n}) for n in range(calls))) for turn in range(4)]
    with FakeAPI([*many, text("done")]) as api:
        drive(api, tmp=tmp_path, tools=[probe])
    for before, after in zip(api.requests[1:], api.requests[2:], strict=False):
        assert after.usage["cache_read_input_tokens"] >= prompt_of(before.usage)


def test_a_refusal_teaches_the_true_window_and_the_next_compaction_comes_in_time(tmp_path):
    probe = Probe(then=lambda n: ToolResult(f"{n:x}" * 8_000))
    count = 0

    def script(request):
        nonlocal count
        if "/" in request.conversation:
            return text("SUMMARY")
        count += 1
        return tool_use("Probe", {"n": count}) if count < 60 else text("done")

    with FakeAPI(script, windows={CLIENT: 40_000}) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path, tools=[probe], settings=Settings(model=CLIENT, retry=FAST))
    assert run.result.text == "done"
    assert [request.status for request in api.requests if request.conversation == "a0"].count(400) == 1


def test_the_end_of_a_collapse_bears_a_mark_and_no_request_has_more_than_four():
    history = [m.user("goal", id="g")]
    for n in range(30):
        history.append(m.assistant([{"type": "tool_use", "id": f"t{n}", "name": "Probe", "input": {}}], id=f"a{n}"))
        history.append(m.user([m.tool_result_block(f"t{n}", "x" * 100)], kind="tool_results", id=f"r{n}"))
    view = apply(tuple(history), Collapse("a10", "r19", "ten steps"))
    info, builder = models.info_for(CLIENT), RequestBuilder()
    for stop in range(len(view) - 20, len(view), 2):
        system, messages = ("system", "context"), view[: stop + 1]
        request = ModelRequest(model=CLIENT, max_tokens=10, system=system, tools=(), messages=messages, conversation="c")
        body = builder.call(request, info).body
        assert body.count(b'"cache_control"') <= 4
        assert re.search(rb'ten steps[^"]*","cache_control"|ten steps.{0,60}"cache_control"', body)
        assert body == RequestBuilder().call(request, info).body


class Simulation:
    """A job of `turns` turns with results of 40 KB; a fact lies in the fifth."""

    def __init__(self, turns, thinks=False):
        self.turns, self.thinks, self.done, self.collapses = turns, thinks, 0, 0

    def __call__(self, request):
        facts = " ".join(sorted(set(re.findall(r"FACT-\d+", str(request.body["messages"])))))
        if request.body.get("compaction"):
            self.collapses += 1
            return compaction(f"Found {facts}. " + "Some words of the summary. " * 100)
        if "/" in request.conversation:
            self.collapses += 1
            return text(f"Found {facts}. " + "Some words of the summary. " * 100)
        self.done += 1
        if self.done > self.turns:
            return text(f"done {facts}")
        call = tool_use("Probe", {"n": self.done})
        return message(thinking(f"step {self.done}"), call) if self.thinks else message(call)


def result_of_40_kb(n):
    words = random.Random(n)
    body = " ".join(f"{words.getrandbits(40):x}" for _ in range(3_800))
    return ToolResult(f"{n} {'FACT-4711 ' if n == 5 else ''}{body}")


def simulate(tmp: Path, model, turns, *, thinks=False):
    work = Simulation(turns, thinks)
    with FakeAPI(work, windows={model: 200_000}, keep_bodies=False) as api:
        if not thinks:
            api.allow_prefix_change()

        async def main():
            settings = Settings(model=model, retry=FAST, context=ContextSettings(window=200_000))
            subject = engine(api, tmp, tools=[Probe(then=result_of_40_kb)], settings=settings)
            run = await collect(subject, "find the fact")
            await subject.close()
            await subject.agent.client.close()
            return run

        run = asyncio.run(main())
    assert run.result.text == "done FACT-4711" and run.result.turns == turns + 1
    refused = [request.kind for request in api.requests if request.status != 200 and not request.aborted]
    assert refused == [] and work.collapses >= turns // 20
    return api.requests


@pytest.mark.slow
@pytest.mark.parametrize("model", ["claude-haiku-4-5", CLIENT])
def test_two_thousand_turns_on_a_small_window_are_served_from_the_cache(tmp_path, model):
    requests = simulate(tmp_path, model, 2_000)
    assert share_read([request for request in requests if request.status == 200]) >= 0.90


@pytest.mark.slow
def test_two_thousand_turns_with_bound_thinking_are_never_refused(tmp_path):
    requests = simulate(tmp_path, "claude-sonnet-5-5", 2_000, thinks=True)
    assert [request.dropped for request in requests if request.dropped] == []
    # A server's compaction stands for all before it, so that on so small a window each one is written anew.
    assert share_read([request for request in requests if request.status == 200]) >= 0.85


def test_two_hundred_turns_on_a_small_window_keep_a_fact_of_the_fifth(tmp_path):
    requests = simulate(tmp_path, "claude-haiku-4-5", 200)
    assert share_read([request for request in requests if request.status == 200]) >= 0.90
