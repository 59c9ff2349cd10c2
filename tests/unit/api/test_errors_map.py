"""Every error answer of the reference's table, and those of compatible servers, as one kind with its numbers."""

from __future__ import annotations

from email.utils import formatdate

import orjson
import pytest

from worker_agent.api.errors_map import from_event, from_exception, from_response, not_a_stream, retry_after
from worker_agent.errors import ErrorKind as K

NOW = 1_800_000_000.0


def answer(type, message="", code=None, **details):
    error = {"type": type, "message": message}
    if code or details:
        error["details"] = {"error_code": code, **details}
    return orjson.dumps({"type": "error", "error": error, "request_id": "req_1"})


def kind(status, body, headers=None):
    return from_response(status, headers or {}, body, NOW).kind


@pytest.mark.parametrize(
    ("status", "type", "expected"),
    [
        (400, "invalid_request_error", K.INVALID_REQUEST),
        (401, "authentication_error", K.AUTHENTICATION),
        (402, "billing_error", K.BILLING),
        (403, "permission_error", K.PERMISSION),
        (404, "not_found_error", K.NOT_FOUND),
        (408, "timeout_error", K.TIMEOUT),
        (409, "conflict_error", K.CONFLICT),
        (413, "request_too_large", K.REQUEST_TOO_LARGE),
        (422, "invalid_request_error", K.INVALID_REQUEST),
        (429, "rate_limit_error", K.RATE_LIMIT),
        (500, "api_error", K.SERVER),
        (500, "overloaded_error", K.OVERLOADED),
        (503, "api_error", K.SERVER),
        (504, "timeout_error", K.TIMEOUT),
        (529, "overloaded_error", K.OVERLOADED),
        (400, "api_error", K.INVALID_REQUEST),
        (400, "something_new", K.INVALID_REQUEST),
        (418, "something_new", K.INVALID_REQUEST),
        (599, "something_new", K.SERVER),
    ],
)
def test_status_and_type_give_the_kind(status, type, expected):
    assert kind(status, answer(type, "Words.")) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, K.INVALID_REQUEST),
        (413, K.REQUEST_TOO_LARGE),
        (429, K.RATE_LIMIT),
        (502, K.SERVER),
        (504, K.TIMEOUT),
        (529, K.OVERLOADED),
    ],
)
@pytest.mark.parametrize(
    "body",
    [b"", b"<html><head><title>Too bad</title></head></html>", b"{}", b"null", b"[1]", b'{"error":"words"}', b"\xff"],
)
def test_the_status_alone_is_enough(status, expected, body):
    error = from_response(status, {}, body, NOW)
    assert error.kind is expected and error.message and "<" not in error.message


def test_html_becomes_its_title():
    assert (
        from_response(413, {}, b"<!DOCTYPE html><html><title>413 Request\n Entity Too Large</title></html>", NOW).message
        == "413 Request Entity Too Large"
    )


@pytest.mark.parametrize(
    "code", ["enforced_spend_limit_reached", "contract_spend_limit_reached", "workspace_spend_limit_reached"]
)
def test_a_spend_limit_is_not_retried(code):
    error = from_response(429, {}, answer("rate_limit_error", "Limit reached.", code), NOW)
    assert error.kind is K.SPEND_LIMIT and not error.retryable


def test_a_self_set_limit_answers_400_and_is_a_spend_limit_too():
    assert kind(400, answer("invalid_request_error", "You have reached your specified API usage limits.")) is K.SPEND_LIMIT
    assert kind(400, answer("invalid_request_error", "Your credit balance is too low.")) is K.BILLING


def test_a_ramp_limit_clears_by_waiting():
    assert kind(429, answer("rate_limit_error", "Too fast.", "ramp_limit_exceeded")) is K.RATE_LIMIT


@pytest.mark.parametrize(
    ("text", "limit", "actual"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000, 210_000),
        ("Prompt is too long", None, None),
        ("input length exceeds the context window of 1,000,000 tokens", 1_000_000, None),
        (
            "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.",
            4096,
            5000,
        ),
        ("the request exceeds the available context size", None, None),
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096, 5000),
        (
            "input length and `max_tokens` exceed context limit: 200001 + 32000 > 200000, decrease input length",
            200_000,
            200_001,
        ),
        ("Input is too long for requested model.", None, None),
    ],
)
def test_a_prompt_that_is_too_long_is_known_by_its_many_phrasings(text, limit, actual):
    error = from_response(400, {}, answer("invalid_request_error", text), NOW)
    assert (error.kind, error.limit, error.actual) == (K.PROMPT_TOO_LONG, limit, actual)


def test_a_local_server_names_the_sizes_beside_the_text():
    body = orjson.dumps(
        {
            "error": {
                "code": 400,
                "message": "too big",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5000,
                "n_ctx": 4096,
            }
        }
    )
    error = from_response(400, {}, body, NOW)
    assert (error.kind, error.limit, error.actual) == (K.PROMPT_TOO_LONG, 4096, 5000)


@pytest.mark.parametrize("status", [413, 500])
def test_other_statuses_may_say_it_too(status):
    assert kind(status, answer("api_error", "prompt is too long: 5 tokens > 4 maximum")) is K.PROMPT_TOO_LONG


@pytest.mark.parametrize(
    ("text", "fits", "asked"),
    [
        ("max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens for M", 128_000, 200_000),
        ("input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease …", 10_000, None),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
            "(4000 in the messages, 1000 in the completion).",
            96,
            None,
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 "
            "tokens and your request has 300 input tokens",
            3796,
            None,
        ),
    ],
)
def test_an_output_cap_that_does_not_fit_names_the_one_that_would_and_says_if_it_is_the_models_own(text, fits, asked):
    error = from_response(400, {}, answer("invalid_request_error", text), NOW)
    assert (error.kind, error.limit, error.actual) == (K.MAX_TOKENS_TOO_LARGE, fits, asked)


def test_media_errors_name_the_blocks():
    text = "messages.3.content.0.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes"
    error = from_response(400, {}, answer("invalid_request_error", text), NOW)
    assert (error.kind, error.paths, error.limit, error.actual) == (
        K.MEDIA_TOO_LARGE,
        ("messages.3.content.0",),
        5242880,
        6000000,
    )


def test_image_dimensions_come_with_a_code_and_paths():
    paths = ["messages.1.content.2", "messages.4.content.0.content.1"]
    body = answer(
        "invalid_request_error",
        "messages.1.content.2: too big",
        "image_dimensions_too_large",
        max_side_length_pixels=2000,
        paths=paths,
    )
    error = from_response(400, {}, body, NOW)
    assert (error.kind, error.limit, error.paths) == (K.MEDIA_TOO_LARGE, 2000, tuple(paths))


@pytest.mark.parametrize(
    "text", ["Could not process image", "The PDF specified was not valid.", "The PDF specified is password protected"]
)
def test_media_that_cannot_be_read_is_a_media_error(text):
    assert kind(400, answer("invalid_request_error", "messages.0.content.0: " + text)) is K.MEDIA_TOO_LARGE


def test_thinking_bound_to_another_conversation_is_an_invalid_request_that_names_the_block():
    text = "messages.1.content.0: `thinking` block is bound to a different conversation"
    error = from_response(400, {}, answer("invalid_request_error", text), NOW)
    assert (error.kind, error.paths) == (K.INVALID_REQUEST, ("messages.1.content.0",))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": "0.3"}, 0.3),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": formatdate(NOW + 45, usegmt=True)}, 45.0),
        ({"retry-after": formatdate(NOW - 45, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_as_seconds_milliseconds_or_date(headers, seconds):
    assert retry_after(headers, NOW) == seconds


def test_the_servers_word_on_retrying_wins():
    assert from_response(400, {"x-should-retry": "true"}, answer("invalid_request_error"), NOW).retryable
    assert not from_response(429, {"x-should-retry": "false"}, answer("rate_limit_error"), NOW).retryable


def test_the_request_id_comes_from_the_header():
    assert from_response(500, {"request-id": "req_h"}, answer("api_error"), NOW).request_id == "req_h"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, K.OVERLOADED),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}}, K.RATE_LIMIT),
        ({"type": "error", "error": {"type": "api_error", "message": "Oops"}}, K.SERVER),
        (
            {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
            K.PROMPT_TOO_LONG,
        ),
        ({"type": "error", "error": "no JSON at all"}, K.SERVER),
        ({"type": "error"}, K.SERVER),
    ],
)
def test_an_error_event_in_a_stream_is_classified_by_its_type(data, expected):
    error = from_event({**data, "request_id": "req_9"}, {}, NOW)
    assert (error.kind, error.status, error.request_id) == (expected, 200, "req_9")


def test_a_200_answer_that_is_no_stream_is_nonsense_unless_it_is_an_error():
    assert not_a_stream({}, b"<html><title>Sign in</title></html>", NOW).kind is K.NONSENSE
    assert not_a_stream({}, b"", NOW).kind is K.NONSENSE
    assert not_a_stream({}, answer("overloaded_error", "busy"), NOW).kind is K.OVERLOADED


def test_exceptions_of_sdk_transport_and_system_become_model_errors():
    import anthropic
    import httpx2

    request = httpx2.Request("POST", "http://h/v1/messages")
    refused = anthropic.APIConnectionError(request=request)
    refused.__cause__ = httpx2.ConnectError("refused")
    status = anthropic.RateLimitError(
        "no", response=httpx2.Response(429, request=request), body={"error": {"type": "rate_limit_error"}}
    )
    cases = [
        (refused, False, K.CONNECTION),
        (anthropic.APITimeoutError(request), False, K.TIMEOUT),
        (httpx2.ConnectTimeout("slow"), False, K.CONNECTION),
        (httpx2.ReadTimeout("slow"), False, K.TIMEOUT),
        (httpx2.RemoteProtocolError("gone"), True, K.STREAM_BROKEN),
        (httpx2.ReadError("gone"), True, K.STREAM_BROKEN),
        (ConnectionResetError("reset"), True, K.STREAM_BROKEN),
        (ConnectionResetError("reset"), False, K.CONNECTION),
        (httpx2.UnsupportedProtocol("no scheme"), False, K.INVALID_REQUEST),
        (anthropic.CredentialsError("no profile"), False, K.AUTHENTICATION),
        (status, False, K.RATE_LIMIT),
    ]
    assert [from_exception(e, began=began).kind for e, began, _ in cases] == [expected for *_, expected in cases]
    assert "refused" in str(from_exception(refused, began=False))
