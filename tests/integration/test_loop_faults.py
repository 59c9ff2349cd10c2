"""Faults of the endpoint: what is tried again, what is kept, what never runs twice, what the observer sees."""

import asyncio
import random
from dataclasses import dataclass

import pytest

from tests.support.agent import Probe, collect, drive, engine
from tests.support.fake_api import (
    FakeAPI,
    Gate,
    clean_eof,
    cut_tool_json,
    drop,
    empty_body,
    error_event,
    garbage_tool_json,
    http_error,
    message,
    no_event_lines,
    raw,
    stall,
    text,
    thinking,
    tool_use,
)
from tests.support.fake_api.wire import ToolUse
from worker_agent import events as e
from worker_agent.api.limiter import Limiter
from worker_agent.config import RetrySettings, Settings, SystemClock
from worker_agent.loop.ports import Step

MAIN, BACKUP = "claude-sonnet-5", "claude-opus-5"


def settings(**retry):
    values = {"first_delay": 0.01, "max_delay": 0.05, "silence": 5.0} | retry
    return Settings(model=MAIN, retry=RetrySettings(**values))


TRANSIENT = [
    http_error(429, "rate_limit_error", "slow down"),
    http_error(529, "overloaded_error", "Overloaded"),
    http_error(500, "api_error", "oops"),
    http_error(503, "api_error", "busy", html=True),
    http_error(408, "timeout_error", "too slow"),
    http_error(409, "conflict_error", "conflict"),
    error_event("overloaded_error"),
    error_event("rate_limit_error"),
    error_event("api_error", after=text("Some words")),
    drop(),
    drop(after=text("Some words")),
    clean_eof(after=text("Half an ans")),
    empty_body(),
    raw(b"<html>hello</html>", content_type="text/html"),
    raw(b'{"ok": true}', content_type="application/json"),
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda reply: f"{reply.kind}-{reply.status}")
def test_a_transient_fault_is_tried_again_with_the_same_request(tmp_path, fault):
    with FakeAPI([fault, text("Here.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert (run.result.text, run.result.is_error, len(api.requests)) == ("Here.", False, 2)
    assert api.requests[0].raw == api.requests[1].raw
    assert [n.kind for n in run.of(e.Notice)] == ["api_retry"]
    assert [msg.text for msg in run.journal.messages] == ["do it", "Here."]


def test_what_was_shown_of_a_thrown_away_answer_gets_a_tombstone(tmp_path):
    with FakeAPI([drop(after=text("Wrong words")), text("Right.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert len(run.of(e.Tombstone)) == 1 and run.result.text == "Right."


def test_a_fault_that_stays_is_told_once_after_ten_tries(tmp_path):
    with FakeAPI([http_error(500, "api_error", "oops") for _ in range(10)]) as api:
        run = drive(api, tmp=tmp_path, settings=settings())
    assert (len(api.requests), run.result.error_kind, run.result.retryable) == (10, "server", True)
    assert len(run.notices("api_error")) == 1 and len(run.notices("api_retry")) == 9


def test_a_server_that_says_no_retry_is_believed(tmp_path):
    no = http_error(500, "api_error", "final", headers={"x-should-retry": "false"})
    with FakeAPI([no]) as api:
        run = drive(api, tmp=tmp_path)
    assert run.result.error_kind == "server"


def test_retry_after_is_obeyed(tmp_path):
    fault = http_error(429, "rate_limit_error", "slow down", headers={"retry-after": "0.4"})
    with FakeAPI([fault, text("Here.")]) as api:
        drive(api, tmp=tmp_path)
    assert api.requests[1].time - api.requests[0].time >= 0.4


def test_a_wait_that_outlasts_the_deadline_is_not_waited_for(tmp_path):
    fault = http_error(429, "rate_limit_error", "slow down", headers={"retry-after": "30"})

    async def main(api):
        subject = engine(api, tmp_path, deadline=asyncio.get_running_loop().time() + 5)
        run = await collect(subject, "hi")
        await subject.agent.client.close()
        return run

    with FakeAPI([fault]) as api:
        run = asyncio.run(main(api))
    assert (run.result.error_kind, run.result.duration < 5) == ("rate_limit", True)


def test_a_silent_stream_is_dead_even_when_pings_come(tmp_path):
    with FakeAPI([stall(after=text("Some"), pings=True), text("Here.")]) as api:
        run = drive(api, tmp=tmp_path, settings=settings(silence=0.3))
    assert run.result.text == "Here."
    assert run.notices("api_retry")[0].data["error"] == "stream_silent"


def test_an_output_cap_that_does_not_fit_is_lowered_not_repeated(tmp_path):
    refused = http_error(
        400, "invalid_request_error", "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens"
    )
    with FakeAPI([refused, text("Here.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert [r.body["max_tokens"] for r in api.requests] == [16_000, 8_192] and run.result.text == "Here."


def test_an_output_cap_once_refused_is_not_tried_again_by_anybody(tmp_path):
    refused = http_error(
        400, "invalid_request_error", "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens"
    )
    script = [refused, tool_use("Probe", {"n": 1}), text("Here.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()])
    assert [r.body["max_tokens"] for r in api.requests] == [16_000, 8_192, 8_192]
    assert run.engine.agent.limiter.output_caps == {MAIN: 8_192}


class OneMoreCall:
    """A budget that lets one call pass, and then one last one with a small output cap."""

    def __init__(self):
        self.calls = 0

    async def reserve(self, request, prompt_tokens):
        self.calls += 1
        return Held(last_call=self.calls > 1, max_tokens=2_000 if self.calls > 1 else None)


@dataclass
class Held:
    last_call: bool
    max_tokens: int | None
    notice: str | None = None

    def settle(self, model, usage):
        pass


def test_a_budget_that_is_used_up_leaves_one_report_that_is_asked_for(tmp_path):
    with FakeAPI([tool_use("Probe", {"n": 1}), text("What I have: 1.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], budget=OneMoreCall())
    last = api.requests[1]
    assert last.body["tool_choice"] == {"type": "none"} and last.body["max_tokens"] == 2_000
    assert "this is your last answer" in last.messages[-1]["content"][-1]["text"]
    assert (run.result.text, run.result.reason, run.result.error_kind) == ("What I have: 1.", "budget", "budget")
    assert [msg.kind for msg in run.journal.messages] == ["prompt", "answer", "tool_results", "meta", "answer"]


# ── tools and broken streams ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_broken_after_a_read_only_call_is_thrown_away_whole(tmp_path):
    probe = Probe(read_only=True)
    script = [drop(after=message(text("a"), tool_use("Probe", {"n": 1}), text("bc"))), text("Done.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[probe])
    assert run.result.text == "Done."
    assert api.requests[0].raw == api.requests[1].raw


@pytest.mark.parametrize("fault", ["drop", "error", "eof"])
def test_a_call_with_side_effects_runs_once_and_its_result_reaches_the_model(tmp_path, fault):
    gate = Gate()
    answer = message(text("writing"), tool_use("Probe", {"n": 1}), text("more", gate, " words"))
    broken = {
        "drop": drop(after=answer),
        "error": error_event("overloaded_error", after=answer),
        "eof": clean_eof(after=answer),
    }
    probe = Probe(read_only=False)

    def watch(event, subject):
        if isinstance(event, e.ToolFinished):
            gate.open()

    with FakeAPI([broken[fault], text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[probe], watch=watch)
    assert probe.calls == [1]
    assert list(api.requests[1].tool_results.values()) == ["result 1"]
    assert (run.result.text, run.result.is_error) == ("Done.", False)
    assert [n.kind for n in run.of(e.Notice)] == ["stream_broken"]


def test_a_call_with_side_effects_is_on_disk_before_it_starts(tmp_path):
    order = []

    class Watching:
        def __init__(self):
            self.messages = []

        async def append(self, messages, consumed=()):
            order.extend(f"append {msg.kind}" for msg in messages)

        async def step(self, step: Step):
            order.append(f"step {step.kind}")

    def ran(n):
        order.append("ran")

    gate = Gate()

    def watch(event, subject):
        if isinstance(event, e.ToolFinished):
            gate.open()

    script = [message(tool_use("Probe", {"n": 1}), text("and", gate, "")), text("Done.")]
    with FakeAPI(script) as api:
        drive(api, tmp=tmp_path, tools=[Probe(read_only=False, then=ran)], journal=Watching(), watch=watch)
    assert order == [
        "append prompt",
        "step answer",
        "ran",
        "step result",
        "append answer",
        "append tool_results",
        "append answer",
    ]


@pytest.mark.parametrize("stop_reason", ["max_tokens", None])
def test_a_call_that_was_cut_never_runs_and_the_model_is_told(tmp_path, stop_reason):
    probe = Probe(read_only=False)
    cut = cut_tool_json("Probe", '{"n": 1', stop_reason=stop_reason)
    with FakeAPI([cut, text("Done."), text("Done."), text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[probe])
    assert probe.calls == []
    assert run.result.text == "Done." and not run.result.is_error


def test_a_call_that_the_output_cap_cut_is_asked_for_again_with_a_higher_cap_even_if_its_block_was_closed(tmp_path):
    probe = Probe(read_only=False)
    with FakeAPI([cut_tool_json("Probe", '{"n": '), tool_use("Probe", {"n": 5}), text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[probe])
    assert [r.body["max_tokens"] for r in api.requests] == [16_000, 64_000, 16_000]
    assert api.requests[0].messages == api.requests[1].messages
    assert (probe.calls, run.result.text) == ([5], "Done.")


def test_an_unreadable_call_in_the_middle_is_answered_in_its_place(tmp_path):
    garbage = ToolUse("Probe", {}, raw='{"n": oops}')
    script = [message(tool_use("Probe", {"n": 1}), garbage, tool_use("Probe", {"n": 3})), text("Done.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()])
    results = [b["content"] for b in api.requests[1].messages[-1]["content"]]
    assert results[0] == "result 1" and "<tool_use_error>" in results[1] and results[2] == "result 3"
    assert run.result.text == "Done."


def test_a_cut_call_behind_a_whole_one_is_told_beside_its_result(tmp_path):
    probe = Probe(read_only=False)
    cut = cut_tool_json("Probe", '{"n": ', before=[tool_use("Probe", {"n": 1})], closed=False)
    with FakeAPI([cut, text("Done.")]) as api:
        drive(api, tmp=tmp_path, tools=[probe])
    assert probe.calls == [1]
    assert "cut" in str(api.requests[1].messages[-1]["content"])


@pytest.mark.parametrize("garbage", ['{"n": oops}', "[1, 2]", "12", '{"n": 1} trailing', '"{\\"n\\": 1}"', "NaN"])
def test_garbage_for_an_input_never_runs_and_the_model_can_mend_it(tmp_path, garbage):
    probe = Probe(read_only=False)
    with FakeAPI([garbage_tool_json("Probe", garbage), tool_use("Probe", {"n": 3}), text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[probe])
    assert probe.calls == [3]
    assert "<tool_use_error>" in str(api.requests[1].tool_results)
    assert run.result.text == "Done."


def test_a_tool_starts_before_the_message_ends(tmp_path):
    gate = Gate()
    order = []

    def watch(event, subject):
        order.append(type(event).__name__)
        if isinstance(event, e.ToolFinished):
            gate.open()  # the stream can only end because the tool has run

    with FakeAPI([message(tool_use("Probe", {"n": 1}), text("more", gate, " to say")), text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], watch=watch)
    assert order.index("ToolFinished") < order.index("MessageAdded")
    assert (run.result.text, run.result.turns, "Tombstone" in order) == ("Done.", 2, False), "and it was seen meanwhile"


# ── the fallback model ─────────────────────────────────────────────────────────────────────────────────────────────

OVERLOADED = http_error(529, "overloaded_error", "Overloaded")


def test_after_three_overloads_in_a_row_the_fallback_takes_over_inside_the_turn(tmp_path):
    partial = error_event("overloaded_error", after=message(thinking("hm"), text("Half")))
    with FakeAPI([OVERLOADED, OVERLOADED, partial, text("From the backup.")]) as api:
        run = drive(api, tmp=tmp_path, fallback_model=BACKUP, settings=settings())
    assert [r.model for r in api.requests] == [MAIN, MAIN, MAIN, BACKUP]
    assert run.result.text == "From the backup." and run.result.turns == 1
    assert [n.data for n in run.notices("model_fallback")] == [{"from": MAIN, "to": BACKUP, "reason": "overloaded"}]
    assert len(run.of(e.Tombstone)) == 1


def test_overloads_in_between_do_not_count_as_in_a_row(tmp_path):
    other = http_error(500, "api_error", "oops")
    with FakeAPI([OVERLOADED, OVERLOADED, other, OVERLOADED, text("Main.")]) as api:
        run = drive(api, tmp=tmp_path, fallback_model=BACKUP, settings=settings())
    assert {r.model for r in api.requests} == {MAIN} and run.result.text == "Main."


def test_the_fallback_stays_and_gets_no_thinking_of_another_model(tmp_path):
    script = [
        message(thinking("mine"), text("x"), tool_use("Probe", {"n": 1})),
        OVERLOADED,
        OVERLOADED,
        OVERLOADED,
        message(thinking("of the backup"), tool_use("Probe", {"n": 2})),
        text("Done."),
    ]
    with FakeAPI(script) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path, tools=[Probe()], fallback_model=BACKUP, settings=settings())
    last = api.requests[-1]
    kinds = [[b["type"] for b in msg["content"]] for msg in last.messages if msg["role"] == "assistant"]
    assert last.model == BACKUP and kinds == [["text", "tool_use"], ["thinking", "tool_use"]]
    assert run.result.text == "Done."


def test_without_a_fallback_overloads_are_retried_like_anything_else(tmp_path):
    with FakeAPI([OVERLOADED] * 4 + [text("At last.")]) as api:
        run = drive(api, tmp=tmp_path, settings=settings())
    assert run.result.text == "At last."


# ── compatible endpoints ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_without_event_lines_is_understood(tmp_path):
    with FakeAPI([no_event_lines("Hello.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert run.result.text == "Hello."


def test_an_endpoint_that_is_not_there_fails_in_words(tmp_path):
    class Nowhere:
        base_url = "http://127.0.0.1:9"

    run = drive(Nowhere(), tmp=tmp_path, settings=settings(max_tries=2))
    assert (run.result.error_kind, run.result.is_error) == ("connection", True)


def test_thirty_agents_that_meet_a_rate_limit_all_wait_then_spread_out_and_finish(tmp_path):
    limited = http_error(429, "rate_limit_error", "slow down", headers={"retry-after": "1"})
    first = []

    def script(request):
        first.append(request.time)
        return limited if request.time - first[0] < 0.9 else text("Done.")

    async def main(api):
        limiter = Limiter(SystemClock(), random.Random(1))
        subjects = [engine(api, tmp_path, limiter=limiter, context_fields={"agent_id": f"a{n}"}) for n in range(30)]
        runs = await asyncio.gather(*(collect(one, f"hi {n}") for n, one in enumerate(subjects)))
        for one in subjects:
            await one.agent.client.close()
        return runs

    with FakeAPI(script) as api:
        runs = asyncio.run(main(api))
    assert all(run.result.text == "Done." for run in runs)
    refused = max(r.ended for r in api.requests if r.status == 429)
    begun = sorted(r.time for r in api.requests if r.status == 200)
    assert begun[0] - refused >= 0.95
    assert begun[-1] - begun[0] > 1.0  # no herd
