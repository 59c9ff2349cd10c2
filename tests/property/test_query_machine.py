"""`query()` under a model, an endpoint, tools, hooks and a person that do anything: it always ends, and well.

Each example is a random list of answers and faults, served in order through the real SDK by the strict fake (which
refuses an invalid request and remembers it), with an interrupt at a random event. Held in every example:

- the loop ends, within a bound of requests
- a call with side effects runs at most once, and only a call the model closed
- the stored history can be sent: every call has exactly one result, in the next user message, in order
- the terminal reason is one of the ten and fits what happened
"""

import asyncio

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.agent import FAST, Probe, collect, engine
from tests.support.fake_api import (
    FakeAPI,
    clean_eof,
    cut_tool_json,
    drop,
    empty_answer,
    empty_body,
    error_event,
    garbage_tool_json,
    http_error,
    message,
    pause_turn,
    raw,
    redacted,
    refusal,
    stop,
    text,
    thinking,
    tool_use,
    unknown_stop_reason,
)
from worker_agent import events as e
from worker_agent.causes import Cause
from worker_agent.config import Settings
from worker_agent.errors import ToolError, TurnOver
from worker_agent.loop.ports import StopVerdict
from worker_agent.loop.reasons import TerminalReason

CONFIG = Settings(model="claude-sonnet-5", retry=FAST)

numbers = st.integers(0, 4)
words = st.sampled_from(["a", "Some words.", "é\u2028 \U0001f600", "x" * 500])
texts = st.builds(text, words)
read = st.builds(lambda n: tool_use("Look", {"n": n}), numbers)
write = st.builds(lambda n: tool_use("Change", {"n": n}), numbers)
wrong = st.sampled_from([tool_use("Nobody", {}), tool_use("Look", {"x": 1}), tool_use("Change", {})])
blocks = st.one_of(texts, read, write, wrong, st.builds(thinking), st.builds(redacted))
bodies = st.lists(blocks, min_size=1, max_size=4)
whole = st.builds(lambda parts: message(*parts), bodies)
answers = st.one_of(
    whole,
    whole,
    whole,
    st.builds(lambda parts: stop("max_tokens", *parts), bodies),
    st.builds(lambda parts: stop("tool_use", *parts), st.lists(texts, max_size=1)),
    st.builds(lambda parts: refusal(*parts), bodies),
    st.builds(lambda parts: pause_turn(*parts), st.lists(texts, min_size=1, max_size=2)),
    st.builds(lambda parts: unknown_stop_reason("bored", *parts), bodies),
    st.builds(lambda parts: stop("model_context_window_exceeded", *parts), bodies),
    st.builds(lambda parts: drop(after=message(*parts)), bodies),
    st.builds(lambda parts: clean_eof(after=message(*parts)), bodies),
    st.builds(lambda kind, parts: error_event(kind, after=message(*parts)),
              st.sampled_from(["overloaded_error", "rate_limit_error", "api_error", "invalid_request_error"]), bodies),
    st.builds(cut_tool_json, st.just("Change"), st.sampled_from(["", '{"n"', '{"n": 1']), st.sampled_from(["max_tokens", None])),
    st.builds(garbage_tool_json, st.just("Change"), st.sampled_from(["[1]", '{"n": oops}', "12"])),
    st.sampled_from([empty_answer(), empty_body(), drop(), raw(b"<html>", content_type="text/html")]),
    st.builds(http_error, st.sampled_from([408, 409, 429, 500, 503, 529]), st.just("api_error"), st.just("try later")),
    st.sampled_from([
        http_error(529, "overloaded_error", "Overloaded"),
        http_error(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
        http_error(400, "invalid_request_error", "nothing to be done"),
        http_error(401, "authentication_error", "who are you"),
        http_error(413, "request_too_large", "too large"),
    ]),
)  # fmt: skip

tool_behaviours = st.sampled_from(["answer", "answer", "fail", "crash", "stop", "hang"])
verdicts = st.sampled_from([StopVerdict(), StopVerdict(), StopVerdict(blocking=("not yet",)), StopVerdict(prevent="no")])


class Hook:
    def __init__(self, verdicts):
        self.verdicts = list(verdicts)

    async def stop(self, last_message, stop_hook_active):
        return self.verdicts.pop(0) if self.verdicts else StopVerdict()


def behave(behaviours):
    """What a tool does at each call: one after the other of `behaviours`, then it answers."""
    left = list(behaviours)

    async def then(n):
        match left.pop(0) if left else "answer":
            case "fail":
                raise ToolError("that did not work")
            case "crash":
                raise ZeroDivisionError("a bug")
            case "stop":
                raise TurnOver("a hook said so")
            case "hang":
                await asyncio.sleep(0.01)

    return then


def unpaired(messages):
    """Calls of the stored history without exactly one result in the next user message, in order."""
    wrong = []
    for index, msg in enumerate(messages):
        if calls := [block["id"] for block in msg.tool_uses]:
            after = next((x for x in messages[index + 1 :] if x.role == "user"), None)
            results = [block["tool_use_id"] for block in after.tool_results] if after else []
            if results != calls:
                wrong.append((calls, results))
    return wrong


everything = given(
    script=st.lists(answers, max_size=8),
    looks=st.lists(tool_behaviours, max_size=4),
    changes=st.lists(tool_behaviours, max_size=4),
    hooks=st.lists(verdicts, max_size=3),
    interrupt_at=st.one_of(st.none(), st.none(), st.integers(0, 30)),
    fallback=st.sampled_from([None, "claude-opus-5"]),
    max_turns=st.sampled_from([None, 3]),
)
relaxed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=40, **relaxed)
@everything
def test_the_loop_always_ends_and_leaves_a_history_that_can_be_sent(**example):
    check(**example)


@pytest.mark.slow
@settings(max_examples=1_000, **relaxed)
@everything
def test_the_loop_always_ends_in_a_thousand_ways(**example):
    check(**example)


def check(script, looks, changes, hooks, interrupt_at, fallback, max_turns):
    look, change = Probe(then=behave(looks), name="Look"), Probe(read_only=False, then=behave(changes), name="Change")
    left = list(script)
    ran: list[str] = []

    class Counting(Probe):
        async def call(self, input, context):
            ran.append(context.tool_use_id)
            return await change.call(input, context)

    def serve(request):
        return left.pop(0) if left else text("The end.")

    async def main(api):
        subject = engine(
            api, tools=[look, Counting(read_only=False, name="Change")], settings=CONFIG,
            stop_hooks=Hook(hooks), fallback_model=fallback, max_turns=max_turns,
        )  # fmt: skip
        count = iter(range(1_000_000))

        def watch(_):
            if next(count) == interrupt_at:
                subject.interrupt(Cause.PERSON)

        async with asyncio.timeout(20):
            run = await collect(subject, "do it", watch)
        await subject.context.close()
        await subject.agent.client.close()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert not tasks, tasks
        return run

    with FakeAPI(serve) as api:
        api.allow_prefix_change()  # compactions and fallbacks are part of this
        run = asyncio.run(main(api))

    event(run.result.reason)
    assert run.result.reason in {*TerminalReason, "budget"}
    assert len(api.requests) <= 10 * len(script) + 40
    assert len(ran) == len(set(ran)), "a call with side effects ran twice"
    assert unpaired(run.journal.messages) == []
    if run.result.reason.startswith("aborted"):
        assert interrupt_at is not None
    if not run.result.is_error:
        assert run.result.reason == "completed" and run.result.text.strip()
    started = [one.tool_use_id for one in run.of(e.ToolStarted)]
    assert len(started) == len(set(started))
