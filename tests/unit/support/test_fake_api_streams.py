"""Each way an answer can go, through the real SDK."""

from __future__ import annotations

import anthropic
import httpx2
import pytest

from tests.support.fake_api import (
    FakeAPI,
    RawBlock,
    after,
    clean_eof,
    compaction,
    cut_tool_json,
    drop,
    empty_answer,
    empty_body,
    error_event,
    garbage_tool_json,
    http_error,
    message,
    no_event_lines,
    pause_turn,
    ping,
    raw,
    redacted,
    refusal,
    route,
    sequence,
    stall,
    stop,
    system_has,
    text,
    thinking,
    tool_use,
    torn,
    unknown_block,
    unknown_delta,
    unknown_event,
    unknown_stop_reason,
    usage_only_in_delta,
    user_has,
    with_headers,
)
from tests.unit.support.helpers import READ, assistant, create, raw_events, result, stream, user, with_client

AWKWARD = {"path": "/tmp/ä", "text": '世界 🌍 "quoted" \\ \n\t\u2028', "n": [1, None, True, {"a": {}}]}


def kinds(events: list) -> list[str]:
    return [e.type for e in events]


def test_a_text_arrives_whole_and_in_pieces() -> None:
    with FakeAPI(text("Hello, 世界 🌍")) as api:
        assert stream(api).content[0].text == "Hello, 世界 🌍"
        events = raw_events(api)
    assert kinds(events) == [
        "message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert [r.kind for r in api.requests] == ["message", "message"]


def test_the_record_of_a_request_tells_what_was_sent_and_answered() -> None:
    with FakeAPI("ok") as api:
        stream(api, [user("hi")], system="Be brief.", headers={"x-conversation": "one"})
    (request,) = api.requests
    assert (request.path, request.model, request.status, request.conversation) == (
        "/v1/messages", "claude-opus-5-5", 200, "one",
    )  # fmt: skip
    assert request.body["messages"] == [user("hi")]
    assert b'"hi"' in request.raw
    assert (request.system_text, request.last_user_text, request.turns) == ("Be brief.", "hi", 0)
    assert request.content == [{"type": "text", "text": "ok"}]
    assert not request.aborted and request.ended is not None and request.ended >= request.time


@pytest.mark.parametrize("pieces", [1, 2, 7, 200])
@pytest.mark.parametrize("escaped", [False, True])
def test_tool_input_survives_any_splitting(pieces: int, escaped: bool) -> None:
    with FakeAPI(tool_use("Write", AWKWARD, pieces=pieces, escaped=escaped)) as api:
        answer = stream(api)
    assert answer.stop_reason == "tool_use"
    assert answer.content[0].input == AWKWARD


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_torn_stream_is_the_same_stream(size: int) -> None:
    with FakeAPI(torn(message("Grüße 🌍", tool_use("Write", AWKWARD)), size)) as api:
        answer = stream(api)
    assert answer.content[0].text == "Grüße 🌍"
    assert answer.content[1].input == AWKWARD


def test_parallel_calls_come_one_after_another_with_ids_of_their_own() -> None:
    with FakeAPI(message("Two.", tool_use("a", {"x": 1}), tool_use("b"))) as api:
        answer = stream(api)
    assert [b.type for b in answer.content] == ["text", "tool_use", "tool_use"]
    assert answer.content[1].id != answer.content[2].id
    assert answer.content[2].input == {}


def test_thinking_is_shown_only_when_asked_for() -> None:
    with FakeAPI(message(thinking("Let me see."), redacted(), "Done.")) as api:
        hidden = stream(api)
        shown = stream(api, thinking={"type": "adaptive", "display": "summarized"})
    assert [b.type for b in hidden.content] == ["thinking", "redacted_thinking", "text"]
    assert hidden.content[0].thinking == "" and hidden.content[0].signature
    assert shown.content[0].thinking == "Let me see."


def test_an_answer_without_stream_is_the_same_message() -> None:
    with FakeAPI(message("Hi", tool_use("Read", {"a": 1}, id="toolu_x"))) as api:
        answer = create(api)
    assert answer.stop_reason == "tool_use"
    assert [b.type for b in answer.content] == ["text", "tool_use"]
    assert answer.content[1].input == {"a": 1}


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, anthropic.AuthenticationError, "authentication_error"),
        (402, anthropic.PaymentRequiredError, "billing_error"),
        (403, anthropic.PermissionDeniedError, "permission_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (408, anthropic.RequestTimeoutError, "timeout_error"),
        (409, anthropic.ConflictError, "conflict_error"),
        (413, anthropic.ContentTooLargeError, "request_too_large"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (503, anthropic.ServiceUnavailableError, "api_error"),
        (504, anthropic.GatewayTimeoutError, "timeout_error"),
        (529, anthropic.OverloadedError, "overloaded_error"),
    ],
)
def test_an_http_error_becomes_its_own_exception(status: int, error: type[Exception], kind: str) -> None:
    with FakeAPI(http_error(status, message="No.")) as api, pytest.raises(error) as caught:
        stream(api)
    assert (caught.value.type, caught.value.api_message) == (kind, "No.")
    assert api.requests[0].status == status


def test_an_html_error_has_no_type() -> None:
    with FakeAPI(http_error(413, html=True)) as api, pytest.raises(anthropic.ContentTooLargeError) as caught:
        stream(api)
    assert caught.value.type is None and "<html>" in caught.value.body


def test_an_error_carries_its_code_and_headers() -> None:
    reply = http_error(429, headers={"x-should-retry": "false"}, error_code="enforced_spend_limit_reached")
    with FakeAPI(reply) as api, pytest.raises(anthropic.EnforcedSpendLimitReachedError) as caught:
        stream(api)
    assert caught.value.error_code == "enforced_spend_limit_reached"
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error", "api_error"])
@pytest.mark.parametrize("half", [None, "Half an answer"])
def test_an_error_event_comes_inside_a_200(kind: str, half: str | None) -> None:
    with FakeAPI(error_event(kind, after=half)) as api, pytest.raises(anthropic.APIStatusError) as caught:
        stream(api)
    assert (caught.value.status_code, caught.value.type) == (200, kind)
    assert api.requests[0].kind == "error_event"


def test_an_error_event_need_not_be_json() -> None:
    with FakeAPI(error_event(data="gone", after="x")) as api, pytest.raises(anthropic.APIStatusError) as caught:
        stream(api)
    assert caught.value.type is None


def test_a_drop_before_the_headers_is_a_connection_error() -> None:
    with FakeAPI(drop()) as api, pytest.raises(anthropic.APIConnectionError):
        stream(api)
    assert not api.requests[0].aborted


@pytest.mark.parametrize("keep", [0, 1, 3, None])
def test_a_drop_in_the_stream_escapes_as_a_transport_error(keep: int | None) -> None:
    with FakeAPI(drop(after="Half an answer", keep=keep)) as api, pytest.raises(httpx2.RemoteProtocolError):
        stream(api)


@pytest.mark.parametrize("reply", [stall(), stall(after="Half")])
def test_a_stall_ends_with_the_clients_patience(reply: object) -> None:
    async def work(sdk: anthropic.AsyncAnthropic) -> None:
        async with sdk.messages.stream(model="claude-opus-5-5", max_tokens=9, messages=[user("hi")]) as running:
            await running.get_final_message()

    with FakeAPI(reply) as api:
        with pytest.raises((anthropic.APITimeoutError, httpx2.ReadTimeout)):
            with_client(api, work, timeout=0.2)
        api.requests[0].wait_ended()
    assert api.requests[0].aborted


def test_pings_keep_a_stalled_stream_alive() -> None:
    async def work(sdk: anthropic.AsyncAnthropic) -> int:
        seen = 0
        async with sdk.messages.with_streaming_response.create(
            model="claude-opus-5-5", max_tokens=9, messages=[user("hi")], stream=True
        ) as response:
            async for line in response.iter_lines():
                seen += line == "event: ping"
                if seen == 5:
                    return seen
        return seen

    with FakeAPI(stall(pings=True, every=0.01)) as api:
        assert with_client(api, work, timeout=2.0) == 5


def test_a_clean_end_without_message_stop_raises_nothing() -> None:
    with FakeAPI(clean_eof("Half an ans")) as api:
        answer = stream(api)
    assert (answer.stop_reason, answer.content[0].text) == (None, "Half an ans")


def test_cut_tool_json_is_silently_taken_for_whole_by_the_sdk() -> None:
    replies = [cut_tool_json("Write", '{"path": "/x", "body": "abc'), cut_tool_json("Write", '{"path": "/x"', None)]
    with FakeAPI(replies) as api:
        capped, ended = stream(api), stream(api)
    assert (capped.stop_reason, capped.content[0].input) == ("max_tokens", {"path": "/x"})
    assert (ended.stop_reason, ended.content[0].input) == (None, {"path": "/x"})


def test_garbage_tool_json_is_a_value_error() -> None:
    with FakeAPI(garbage_tool_json("Write")) as api, pytest.raises(ValueError):
        stream(api)


def test_unknown_things_pass_through() -> None:
    parts = (unknown_event(), unknown_block(), unknown_delta("Hello"), ping())
    with FakeAPI(message(*parts)) as api:
        answer = stream(api)
        events = raw_events(api)
    assert [b.type for b in answer.content] == ["hologram", "text"]
    assert answer.content[1].text == "Hello"
    assert "weather" in kinds(events)


def test_stop_reasons_and_their_details_arrive() -> None:
    replies = [
        stop("max_tokens"), stop("model_context_window_exceeded"), refusal("I w", category="bio"),
        unknown_stop_reason("bored"), empty_answer(),
    ]  # fmt: skip
    with FakeAPI(replies) as api:
        answers = [stream(api) for _ in replies]
    assert [a.stop_reason for a in answers] == [
        "max_tokens", "model_context_window_exceeded", "refusal", "bored", "end_turn",
    ]  # fmt: skip
    assert answers[2].stop_details.category == "bio"
    assert answers[4].content == []


def test_usage_may_come_only_at_the_end() -> None:
    with FakeAPI(usage_only_in_delta("Hello")) as api:
        start, *_, delta, _ = raw_events(api)
    assert start.message.usage.input_tokens == 0
    assert delta.usage.input_tokens == api.requests[0].usage["input_tokens"] > 0


def test_events_without_event_lines_are_dropped_by_the_sdk() -> None:
    with FakeAPI(no_event_lines("Hello")) as api:
        assert raw_events(api) == []


@pytest.mark.parametrize("reply", [empty_body(), raw(b"<html></html>", content_type="text/html")])
def test_a_body_that_is_no_stream_has_no_events(reply: object) -> None:
    with FakeAPI(reply) as api:
        assert raw_events(api) == []


def test_a_literal_body_is_sent_literally() -> None:
    with FakeAPI(raw(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')) as api:
        assert kinds(raw_events(api)) == ["message_stop"]


def test_compaction_arrives_through_the_beta_namespace() -> None:
    with FakeAPI(compaction("We did things.")) as api:
        answer = create(api, beta=True, betas=["compact-2026-09-04"], compaction={"type": "summarize"}, model="claude-opus-5")
    assert (answer.stop_reason, answer.content[0].content) == ("compaction", "We did things.")


def test_pause_turn_is_continued_only_with_the_unchanged_answer() -> None:
    with FakeAPI([pause_turn(), "done", pause_turn()], allow_violations=("sent back unchanged",)) as api:
        paused = stream(api)
        whole = [b.model_dump(mode="json", exclude_unset=True) for b in paused.content]
        assert stream(api, [user("hi"), assistant(whole)]).content[0].text == "done"
        stream(api, [user("again")])
        with pytest.raises(anthropic.BadRequestError, match="unchanged"):
            stream(api, [user("again"), assistant([{**whole[0], "text": "Other."}, whole[1]])])


def test_a_list_is_consumed_and_then_exhausted() -> None:
    with FakeAPI(["one", "two"], allow_violations=("used up",)) as api:
        assert [stream(api).content[0].text for _ in range(2)] == ["one", "two"]
        with pytest.raises(anthropic.InternalServerError):
            stream(api)
    assert "used up" in api.violations[0]


def test_a_sequence_counts_for_each_conversation() -> None:
    with FakeAPI(sequence("one", "two", repeat_last=True)) as api:
        texts = [stream(api, [user(name)]).content[0].text for name in ("a", "b", "a", "b", "a")]
    assert texts == ["one", "one", "two", "two", "two"]


def test_a_route_takes_the_first_rule_that_fits() -> None:
    script = route((system_has("coordinator"), "lead"), (user_has("fail"), http_error(500)), default="work")
    with FakeAPI(script) as api:
        assert stream(api, system="You are the coordinator.").content[0].text == "lead"
        assert stream(api).content[0].text == "work"
        with pytest.raises(anthropic.InternalServerError):
            stream(api, [user("please fail")])


def test_after_changes_its_mind() -> None:
    with FakeAPI(after(1, "late", first=http_error(529))) as api:
        with pytest.raises(anthropic.OverloadedError):
            stream(api)
        assert stream(api).content[0].text == "late"


def test_a_script_may_be_async_and_may_look_at_results() -> None:
    async def script(request):
        return text(request.tool_results["toolu_1"]) if request.turns else tool_use("Read", id="toolu_1")

    with FakeAPI(script) as api:
        first = stream(api, tools=[READ])
        call = first.content[0].model_dump(mode="json", exclude_unset=True)
        answer = stream(api, [user("hi"), assistant([call]), user([result(content="the file")])], tools=[READ])
    assert answer.content[0].text == "the file"


def test_a_failing_script_fails_the_test_not_the_server() -> None:
    def script(request):
        raise KeyError("oops")

    api = FakeAPI(script)
    with pytest.raises(AssertionError, match="KeyError: 'oops'"), api, pytest.raises(anthropic.InternalServerError):
        stream(api)


def test_failures_that_need_no_script_can_be_planned() -> None:
    with FakeAPI("ok") as api:
        api.rate_limit(2, retry_after=7)
        api.overload(1)
        for error in (anthropic.RateLimitError, anthropic.RateLimitError, anthropic.OverloadedError):
            with pytest.raises(error) as caught:
                stream(api)
        assert stream(api).content[0].text == "ok"
    assert api.requests[0].status == 429 and caught.value.status_code == 529


def test_a_rate_limit_says_when_to_come_back_and_how_much_is_left() -> None:
    async def work(sdk):
        response = await sdk.messages.with_raw_response.create(model="claude-opus-5-5", max_tokens=9, messages=[user("hi")])
        return response.headers

    with FakeAPI(with_headers("ok", x_note="hello")) as api:
        api.limit_rate(1, seconds=3600)
        headers = with_client(api, work)
        with pytest.raises(anthropic.RateLimitError) as caught:
            stream(api)
    assert headers["anthropic-ratelimit-requests-limit"] == "1"
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert headers["x-note"] == "hello" and headers["request-id"].startswith("req_")
    assert 3000 < float(caught.value.response.headers["retry-after"]) <= 3600


def test_literal_blocks_and_signatures_can_be_sent() -> None:
    reply = message(thinking("x", signature="SIG=="), RawBlock({"type": "text", "text": "raw"}))
    with FakeAPI(reply) as api:
        answer = stream(api)
        block = answer.content[0].model_dump(mode="json", exclude_unset=True)
        stream(api, [user("hi"), assistant([block, {"type": "text", "text": "raw"}]), user("more")])
    assert answer.content[0].signature == "SIG=="


def test_a_planned_failure_without_stream_has_the_status_of_its_error() -> None:
    with FakeAPI(error_event("overloaded_error", after="x")) as api, pytest.raises(anthropic.OverloadedError):
        create(api)


def test_max_tokens_zero_only_warms_the_cache() -> None:
    with FakeAPI(http_error(500)) as api:
        answer = create(api, max_tokens=0)
    assert (answer.content, answer.usage.output_tokens, api.requests[0].kind) == ([], 0, "warm")
