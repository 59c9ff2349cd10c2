"""The ten ways to end, each through the real SDK: the reason, the history it leaves, what was seen."""

import asyncio

import pytest

from tests.support.agent import FAST, MemoryJournal, Probe, collect, drive, engine
from tests.support.fake_api import (
    FakeAPI,
    Gate,
    empty_answer,
    http_error,
    message,
    refusal,
    stop,
    text,
    tool_use,
    unknown_stop_reason,
)
from worker_agent import events as e
from worker_agent.causes import Cause
from worker_agent.config import ContextSettings, Settings
from worker_agent.errors import TurnOver
from worker_agent.loop.ports import StopVerdict

TOO_LONG = http_error(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum")


def paired(messages):
    """Whether every call in a stored history has exactly one result in the next message."""
    for index, msg in enumerate(messages):
        ids = [call["id"] for call in msg.tool_uses]
        if ids:
            following = next((x for x in messages[index + 1 :] if x.role == "user"), None)
            if following is None or [b["tool_use_id"] for b in following.tool_results] != ids:
                return False
    return True


def test_completed(tmp_path):
    with FakeAPI([text("Hello.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert run.result == run.result and (run.result.reason, run.result.is_error) == ("completed", False)
    assert run.shown_text == "Hello."


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http_error(400, "invalid_request_error", "messages: bad"), "invalid_request"),
        (http_error(401, "authentication_error", "invalid key"), "authentication"),
        (http_error(403, "permission_error", "not for you"), "permission"),
        (http_error(404, "not_found_error", "model: nope"), "not_found"),
        (http_error(402, "billing_error", "no money"), "billing"),
    ],
)
def test_completed_carries_the_error_that_nothing_mends(tmp_path, reply, kind):
    with FakeAPI([reply]) as api:
        run = drive(api, tmp=tmp_path)
    assert (run.result.reason, run.result.error_kind, len(api.requests)) == ("completed", kind, 1)
    assert run.result.is_error and not run.result.retryable


def test_blocking_limit_when_auto_compaction_is_off(tmp_path):
    settings = Settings(
        model="claude-sonnet-5", retry=FAST, context=ContextSettings(window=10_000, auto_compact=False, collapse=False)
    )
    with FakeAPI([]) as api:
        run = drive(api, tmp=tmp_path, settings=settings, prompt="x" * 60_000)
    assert run.result.reason == "blocking_limit" and "/compact" in run.result.error
    assert api.requests == []


def test_prompt_too_long_is_released_when_compaction_does_not_help(tmp_path):
    with FakeAPI([TOO_LONG, text("SUMMARY"), TOO_LONG]) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path)
    assert run.result.reason == "prompt_too_long"
    assert len(run.notices("api_error")) == 1
    assert "the largest part is" in run.result.error


def test_prompt_too_long_when_even_the_summary_is_refused(tmp_path):
    with FakeAPI([TOO_LONG, TOO_LONG]) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path)
    assert run.result.reason == "prompt_too_long"


def test_image_error_when_the_media_cannot_be_sent(tmp_path):
    too_large = http_error(400, "invalid_request_error", "messages.0.content.0.image.source.base64: image exceeds 5 MB")
    with FakeAPI([too_large, text("SUMMARY"), too_large]) as api:
        api.allow_prefix_change()
        run = drive(api, tmp=tmp_path)
    assert run.result.reason == "image_error"


class Broken:
    """A model client with a bug in it."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    async def stream(self, request):
        from worker_agent.errors import ErrorKind, ModelError

        raise ModelError(ErrorKind.UNFORESEEN, "KeyError: 'x'")
        yield


def test_model_error_for_the_unforeseen(tmp_path):
    async def main(api):
        real = engine(api, tmp_path).agent.client
        run = await collect(engine(api, tmp_path, client=Broken(real)), "hi")
        await real.close()
        return run

    with FakeAPI([]) as api:
        run = asyncio.run(main(api))
    assert (run.result.reason, run.result.error) == ("model_error", "KeyError: 'x'")


def test_model_error_when_the_model_pauses_for_ever(tmp_path):
    with FakeAPI([stop("pause_turn", text(f"{n} ")) for n in range(20)]) as api:
        run = drive(api, tmp=tmp_path)
    assert run.result.reason == "model_error" and len(api.requests) == 9


def test_aborted_streaming_keeps_the_partial_text_and_closes_the_connection(tmp_path):
    gate = Gate()
    shown = []

    def watch(event, subject):
        if isinstance(event, e.TextDelta):
            shown.append(event.text)
        if "".join(shown) == "Once upon":
            subject.interrupt(Cause.PERSON)

    with FakeAPI([message(text("Once upon", gate, " a time"))]) as api:
        run = drive(api, tmp=tmp_path, watch=watch)
        api.requests[0].wait_ended()
        gate.open()
    assert api.requests[0].aborted
    assert run.result.reason == "aborted_streaming"
    kinds = [(msg.kind, msg.text) for msg in run.journal.messages]
    assert kinds == [
        ("prompt", "do it"),
        ("answer", "Once upon"),
        ("meta", "[The answer was interrupted by the user.]"),
    ]


def test_aborted_streaming_answers_every_call_that_was_whole(tmp_path):
    gate = Gate()

    def watch(event, subject):
        if isinstance(event, e.ToolFinished):
            subject.interrupt(Cause.PERSON)

    with FakeAPI([message(tool_use("Probe", {"n": 1}), text("and", gate, " more"))]) as api:
        run = drive(api, tmp=tmp_path, watch=watch, tools=[Probe()])
        gate.open()
    assert run.result.reason == "aborted_streaming"
    assert paired(run.journal.messages)


def test_aborted_before_the_first_call(tmp_path):
    async def main(api):
        subject = engine(api, tmp_path)
        subject.interrupt(Cause.PERSON)
        run = await collect(subject, "hi")
        await subject.agent.client.close()
        return run

    with FakeAPI([]) as api:
        run = asyncio.run(main(api))
    assert run.result.reason == "aborted_streaming" and api.requests == []


def test_aborted_tools_waits_for_what_runs_and_pairs_every_call(tmp_path):
    ended = []

    async def hang(n):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    seen = set()

    def watch(event, subject):
        match event:
            case e.MessageAdded(message=msg) if msg.role == "assistant":
                seen.add("answer")
            case e.ToolStarted():
                seen.add(event.input["n"])
        if seen == {"answer", 1, 2}:
            subject.interrupt(Cause.PERSON)

    script = [message(tool_use("Probe", {"n": 1}), tool_use("Probe", {"n": 2}))]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, watch=watch, tools=[Probe(then=hang)])
    assert sorted(ended) == [1, 2]
    assert run.result.reason == "aborted_tools"
    assert paired(run.journal.messages)
    assert run.journal.messages[-1].text.startswith("[The tools were interrupted")


def test_stop_hook_prevented(tmp_path):
    class Forbids:
        async def stop(self, last_message, stop_hook_active):
            return StopVerdict(prevent="the gate is closed")

    with FakeAPI([text("Done.")]) as api:
        run = drive(api, tmp=tmp_path, stop_hooks=Forbids())
    assert (run.result.reason, run.result.error) == ("stop_hook_prevented", "the gate is closed")


def test_hook_stopped(tmp_path):
    class Stops:
        async def pre_tool_use(self, tool_name, input, tool_use_id):
            raise TurnOver("not on a Friday")

        async def post_tool_use(self, *args):
            raise AssertionError("never called")

    with FakeAPI([tool_use("Probe", {"n": 1})]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], context_fields={"hooks": Stops()})
    assert (run.result.reason, run.result.error) == ("hook_stopped", "not on a Friday")
    assert paired(run.journal.messages)


def test_max_turns(tmp_path):
    with FakeAPI([tool_use("Probe", {"n": n}) for n in range(9)]) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()], max_turns=3)
    assert (run.result.reason, len(api.requests)) == ("max_turns", 3)
    assert paired(run.journal.messages)


def test_a_refusal_ends_the_turn_plainly_and_its_tools_do_not_run(tmp_path):
    probe = Probe(read_only=False)
    script = [refusal(text("I will"), explanation="This is about viruses.")]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[probe])
    assert (run.result.error_kind, probe.calls) == ("refusal", [])
    assert "viruses" in run.result.error
    assert len(api.requests) == 1


def test_an_unknown_stop_reason_is_named_and_no_success(tmp_path):
    with FakeAPI([unknown_stop_reason("bored", text("meh"))]) as api:
        run = drive(api, tmp=tmp_path)
    assert (run.result.is_error, run.result.error_kind) == (True, "unknown_stop")
    assert "bored" in run.result.error


def test_an_empty_answer_is_asked_for_once_more(tmp_path):
    with FakeAPI([empty_answer(), text("Here I am.")]) as api:
        run = drive(api, tmp=tmp_path)
    assert run.result.text == "Here I am." and not run.result.is_error
    assert api.requests[0].body == api.requests[1].body


def test_an_empty_answer_twice_is_a_failure_with_the_last_real_text(tmp_path):
    script = [message(text("I looked."), tool_use("Probe", {"n": 1})), empty_answer(), empty_answer()]
    with FakeAPI(script) as api:
        run = drive(api, tmp=tmp_path, tools=[Probe()])
    assert (run.result.is_error, run.result.error_kind) == (True, "empty_answer")
    assert (run.result.text, run.result.salvaged) == ("I looked.", True)


def test_tool_use_without_a_block_is_asked_for_once_and_then_fails(tmp_path):
    with FakeAPI([stop("tool_use", text("calling")), stop("tool_use", text("calling"))]) as api:
        run = drive(api, tmp=tmp_path)
    assert (run.result.error_kind, len(api.requests)) == ("empty_answer", 2)


def test_a_journal_that_refuses_stops_the_loop_at_once(tmp_path):
    class Fenced(Exception):
        pass

    class Refuses(MemoryJournal):
        async def append(self, messages, consumed=()):
            if any(msg.kind == "tool_results" for msg in messages):
                raise Fenced
            await super().append(messages, consumed)

    with FakeAPI([tool_use("Probe", {"n": 1})]) as api, pytest.raises(Fenced):
        drive(api, tmp=tmp_path, tools=[Probe()], journal=Refuses())
    assert len(api.requests) == 1
