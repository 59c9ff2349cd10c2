"""The client over each of its transports, against the fake API over HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
import warnings

import pytest
from anthropic.lib.credentials._constants import _config_dir

from tests.support.fake_api import (
    FakeAPI,
    Gate,
    clean_eof,
    compaction,
    cut_tool_json,
    drop,
    empty_body,
    error_event,
    garbage_tool_json,
    hold,
    http_error,
    message,
    no_event_lines,
    pause_turn,
    raw,
    redacted,
    refusal,
    sequence,
    stall,
    text,
    thinking,
    tool_use,
    torn,
    unknown_block,
    unknown_delta,
    unknown_event,
    unknown_stop_reason,
    usage_only_in_delta,
    with_headers,
)
from tests.unit.api.clock import ManualClock
from tests.unit.api.histories import request
from worker_agent.api import credentials
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.client import BlockClosed, Finished, Started, TextPiece
from worker_agent.api.direct import DirectTransport
from worker_agent.api.transports import open_direct, open_sdk, open_transport
from worker_agent.config import ContextSettings, RetrySettings, Settings
from worker_agent.errors import ErrorKind as K
from worker_agent.errors import ModelError
from worker_agent.messages import Usage, assistant, tool_result_block, user

HELLO = (user("hello"),)
TRANSPORTS = {"direct": open_direct, "sdk": open_sdk, "chosen": open_transport}


@pytest.fixture(params=["direct", "sdk"], autouse=True)
def transport(request, monkeypatch):
    """Every test runs over both transports; a test that is about the choice itself asks for `chosen`."""
    monkeypatch.setitem(TRANSPORTS, "used", TRANSPORTS[request.param])
    return request.param


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch, tmp_path):
    import os

    for name in list(os.environ):
        if name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))


def with_client(api, use, **fields):
    """Runs `use(client)` and closes the client."""

    async def main():
        opened = {"open_transport": TRANSPORTS["used"]}
        values = {"settings": Settings(), "base_url": api.base_url, "api_key": "test", **opened, **fields}
        client = AnthropicClient(**values)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(main())


async def answer(client, messages=HELLO, **fields):
    return [event async for event in client.stream(request(messages, **fields))]


def ask(reply, messages=HELLO, *, client_fields=None, **fields):
    with FakeAPI(reply) as api:
        return with_client(api, lambda c: answer(c, messages, **fields), **(client_fields or {}))


def failure(reply, **client_fields) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(reply, client_fields=client_fields)
    return caught.value


def closed_blocks(events):
    return [event.block for event in events if isinstance(event, BlockClosed)]


# --- answers


def test_an_answer_is_started_pieces_blocks_finished():
    events = ask(text("Hello", pieces=2))
    assert [type(e) for e in events] == [Started, TextPiece, TextPiece, BlockClosed, Finished]
    assert events[0].request_id.startswith("req_") and events[-1].usage.output > 0


@pytest.mark.parametrize(
    "reply",
    [
        no_event_lines("Hello"),
        torn("Hello", 3),
        usage_only_in_delta("Hello"),
        message(unknown_event(), "Hello"),
        with_headers("Hello", **{"content-type": "text/plain"}),
    ],
)
def test_streams_of_odd_servers_are_read(reply):
    events = ask(reply)
    assert closed_blocks(events) == [{"type": "text", "text": "Hello"}]
    assert events[-1].usage.prompt > 0


def test_unknown_blocks_and_deltas_pass_harmlessly():
    assert closed_blocks(ask(message(unknown_block(x=1), "Hello")))[0] == {"type": "hologram", "x": 1}
    assert closed_blocks(ask(message(unknown_delta("Hi"), "Hello")))[-1]["text"] == "Hello"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [(unknown_stop_reason("bored", "x"), "bored"), (refusal("x"), "refusal"), (pause_turn("x"), "pause_turn")],
)
def test_stop_reasons_are_passed_on_as_they_are(reply, reason):
    assert ask(reply)[-1].stop_reason == reason


def test_a_refusal_says_why():
    assert ask(refusal(category="bio"))[-1].stop_details["category"] == "bio"


def test_tool_input_that_is_cut_or_garbage_never_looks_whole():
    for reply in (cut_tool_json("Read", '{"path": "/x", "body": "ab'), garbage_tool_json("Read")):
        events = ask(reply)
        found = [e for e in events if isinstance(e, BlockClosed) and e.block["type"] == "tool_use"]
        assert all(e.invalid and e.block["input"] == {} for e in found)
        assert found or events[-1].open_block["name"] == "Read"


def test_thinking_goes_back_unchanged_and_the_prefix_holds_over_many_turns():
    turn = message(thinking(), redacted(), "Reading.", tool_use("Read", {"path": "a"}), tool_use("Read", {"path": "ü"}))

    async def use(client):
        history = list(HELLO)
        for _ in range(6):
            said = assistant(closed_blocks(await answer(client, history)))
            results = [tool_result_block(b["id"], "x" * 100) for b in said.tool_uses]
            history += [said, user(results, kind="tool_results")]
        return await answer(client, history, tools_allowed=False)

    with FakeAPI(sequence(*[turn] * 6, "done")) as api:
        assert closed_blocks(with_client(api, use)) == [{"type": "text", "text": "done"}]
        assert [r.headers["x-conversation"] for r in api.requests] == ["c1"] * 7
        assert not api.prefix_breaks


def test_the_second_agent_of_a_definition_reads_the_cached_system_prompt():
    async def use(client):
        system = ("Shared instructions. " * 400, "context of one agent")
        return [(await answer(client, HELLO, system=system, conversation=str(i)))[-1].usage for i in range(2)]

    with FakeAPI("hi") as api:
        first, second = with_client(api, use)
    assert first.cache_read == 0 and first.cache_write_5m > 1000
    assert second.cache_read > 1000


def test_a_compaction_on_the_server_replaces_what_it_covers():
    async def use(client):
        history = [*HELLO, assistant("hi"), user("more")]
        block = closed_blocks(await answer(client, history, compact=""))[0]
        assert block["type"] == "compaction" and block["content"] and block["signature"]
        return await answer(client, [assistant([block], stop_reason="compaction"), user("go on")])

    with FakeAPI([compaction("So far."), "ok"]) as api:
        assert closed_blocks(with_client(api, use))[0]["text"] == "ok"
        assert all("compact-2026-09-04" in r.headers["anthropic-beta"] for r in api.requests)


def test_a_large_body_is_sent_whole_and_without_a_warning():
    with FakeAPI("ok") as api:
        with_client(api, lambda c: answer(c, [user("x" * 2_000_000)]))
        assert int(api.requests[0].headers["content-length"]) > 2_000_000
        assert "transfer-encoding" not in api.requests[0].headers


# --- failures


@pytest.mark.parametrize(
    ("reply", "kind", "status"),
    [
        (error_event("overloaded_error"), K.OVERLOADED, 200),
        (error_event("rate_limit_error", after="Half"), K.RATE_LIMIT, 200),
        (error_event("api_error", after="Half"), K.SERVER, 200),
        (drop(), K.CONNECTION, None),
        (drop("Half an answer"), K.STREAM_BROKEN, 200),
        (drop(tool_use("Read", {"path": "x"}), keep=3), K.STREAM_BROKEN, 200),
        (clean_eof(), K.STREAM_BROKEN, 200),
        (empty_body(), K.NONSENSE, 200),
        (raw(b"<html><title>Sign in</title></html>", content_type="text/html"), K.NONSENSE, 200),
        (raw(b'{"id": "x"}', content_type="application/json"), K.NONSENSE, 200),
        (
            raw(b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}', content_type="application/json"),
            K.OVERLOADED,
            200,
        ),
        (http_error(400, "invalid_request_error", "prompt is too long: 5 tokens > 4 maximum"), K.PROMPT_TOO_LONG, 400),
        (http_error(401, "authentication_error", "bad key"), K.AUTHENTICATION, 401),
        (http_error(404, "not_found_error", "model: x"), K.NOT_FOUND, 404),
        (http_error(413, "request_too_large", "too large"), K.REQUEST_TOO_LARGE, 413),
        (http_error(413, "x", "too large", html=True), K.REQUEST_TOO_LARGE, 413),
        (http_error(500, "api_error", "oops"), K.SERVER, 500),
        (http_error(503, "x", "oops", html=True), K.SERVER, 503),
        (http_error(529, "overloaded_error", "Overloaded"), K.OVERLOADED, 529),
    ],
)
def test_each_failure_is_one_model_error_after_one_request(reply, kind, status):
    with FakeAPI(reply) as api:
        with pytest.raises(ModelError) as caught:
            with_client(api, answer)
        assert (caught.value.kind, caught.value.status, len(api.requests)) == (kind, status, 1)
        assert kind is K.CONNECTION or caught.value.request_id.startswith("req_")


def test_what_came_before_a_break_was_delivered():
    events = []

    async def use(client):
        async for event in client.stream(request(HELLO)):
            events.append(event)

    with FakeAPI(drop(text("Half an answer"))) as api, pytest.raises(ModelError):
        with_client(api, use)
    assert any(isinstance(event, TextPiece) for event in events)


def test_a_rate_limit_carries_the_wait_and_a_spend_limit_does_not():
    limited = failure(http_error(429, "rate_limit_error", "slow", headers={"retry-after": "7"}))
    assert (limited.kind, limited.retry_after, limited.retryable) == (K.RATE_LIMIT, 7.0, True)
    spent = failure(http_error(429, "rate_limit_error", "spent", error_code="enforced_spend_limit_reached"))
    assert (spent.kind, spent.retry_after, spent.retryable) == (K.SPEND_LIMIT, None, False)


def test_a_refused_connection_fails_at_once():
    async def use(client):
        return await answer(client)

    class Nobody:
        base_url = "http://127.0.0.1:9"

    before = time.monotonic()
    with pytest.raises(ModelError) as caught:
        with_client(Nobody, use)
    assert caught.value.kind is K.CONNECTION and time.monotonic() - before < 2


def test_a_base_url_that_is_none_is_said_so():
    class Nonsense:
        base_url = "ftp://nowhere"

    with pytest.raises(ModelError) as caught:
        with_client(Nonsense, answer, open_transport=open_transport)
    assert caught.value.kind is K.INVALID_REQUEST


@pytest.mark.parametrize("pings", [True, False])
def test_a_stream_that_falls_silent_is_ended_by_the_clock(pings):
    clock = ManualClock()

    async def use(client):
        begun, task = asyncio.Event(), None

        async def consume():
            async for _ in client.stream(request(HELLO)):
                begun.set()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(begun.wait(), 10)
        while not task.done():
            await clock.advance(30)
        await task

    with FakeAPI(stall("Half", pings=pings)) as api, pytest.raises(ModelError) as caught:
        with_client(api, use, clock=clock)
    assert caught.value.kind is K.STREAM_SILENT


def test_no_answer_at_all_is_silence_as_well():
    gate = Gate()
    clock = ManualClock()

    async def use(client):
        task = asyncio.create_task(answer(client))
        await gate.until_reached()
        while not task.done():
            await clock.advance(30)
        await task

    with FakeAPI(hold(gate, "late")) as api, pytest.raises(ModelError) as caught:
        try:
            with_client(api, use, clock=clock)
        finally:
            gate.open()
    assert caught.value.kind is K.STREAM_SILENT


# --- connections


def connections(client):
    """(in use, idle) of the pool."""
    transport = client._transport
    session = transport._session if isinstance(transport, DirectTransport) else transport._http._transport.client
    return len(session.connector._acquired), sum(map(len, session.connector._conns.values()))


@pytest.mark.parametrize("make", [lambda gate: message("Half", gate, "rest"), lambda gate: hold(gate, "late")])
def test_thirty_cancelled_streams_leave_the_pool_empty_and_no_warning(make):
    gate = Gate()

    async def use(client):
        tasks = [asyncio.create_task(answer(client, conversation=str(i))) for i in range(30)]
        await gate.until_reached(30)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        assert connections(client)[0] == 0

    with warnings.catch_warnings(record=True) as caught, FakeAPI(make(gate)) as api:
        warnings.simplefilter("always")
        with_client(api, use)
        gate.open()
        gc.collect()
    assert [str(w.message) for w in caught] == []


def test_a_closed_iterator_closes_its_connection():
    gate = Gate()

    async def use(client):
        stream = client.stream(request(HELLO))
        async for event in stream:
            if isinstance(event, TextPiece):
                break
        await stream.aclose()
        return connections(client)

    with FakeAPI(message("Half", gate, "rest")) as api:
        assert with_client(api, use) == (0, 0)
        gate.open()


def test_one_connection_serves_all_turns_of_an_agent():
    async def use(client):
        for _ in range(5):
            await answer(client)
        return connections(client)

    with FakeAPI("ok") as api:
        assert with_client(api, use) == (0, 1)


def test_a_consumer_that_stops_at_the_end_of_the_answer_leaves_the_connection_to_the_next_call():
    async def use(client):
        for _ in range(5):
            stream = client.stream(request(HELLO))
            while not isinstance(await anext(stream), Finished):
                pass
            await stream.aclose()
            assert connections(client) == (0, 1)

    with FakeAPI("ok") as api:
        with_client(api, use)


def test_two_hundred_streams_run_at_once():
    gate = Gate()

    async def use(client):
        tasks = [asyncio.create_task(answer(client, conversation=str(i))) for i in range(200)]
        await gate.until_reached(200)
        gate.open()
        return await asyncio.gather(*tasks)

    with FakeAPI(message("Half", gate, "rest")) as api:
        assert all(isinstance(events[-1], Finished) for events in with_client(api, use))


# --- the other calls


def test_a_known_model_needs_no_call_and_an_unknown_one_is_asked_for_once():
    async def use(client):
        infos = await asyncio.gather(*map(client.model_info, ("sonnet", "mystery", "mystery")))
        return [(info.id, info.window, info.max_output, info.known) for info in infos]

    with FakeAPI("ok") as api:
        found = with_client(api, use)
        assert [call.path for call in api.calls] == ["/v1/models/mystery", "/v1/models"]
    assert found == [("claude-sonnet-5-5", 1_000_000, 128_000, True), *[("mystery", 200_000, 32_000, False)] * 2]


def test_an_endpoint_that_was_down_is_asked_again():
    async def use(client):
        await client.model_info("mystery")
        return client._infos

    class Nobody:
        base_url = "http://127.0.0.1:9"

    assert with_client(Nobody, use) == {}


def test_the_window_of_an_unknown_model_can_be_set():
    fields = {"settings": Settings(context=ContextSettings(window=8_000))}
    with FakeAPI("ok") as api:
        assert with_client(api, lambda c: c.model_info("mystery"), **fields).window == 8_000


def test_the_endpoint_counts_tokens_where_it_can():
    with FakeAPI("ok") as api:
        assert with_client(api, lambda c: c.count_tokens(request(HELLO))) > 0

    async def use(client):
        return [await client.count_tokens(request(HELLO)) for _ in range(3)]

    with FakeAPI("ok", without=["count_tokens"]) as api:
        assert with_client(api, use) == [None] * 3
        assert len(api.calls) == 1


def test_rate_limit_headers_reach_whoever_listens():
    seen = []
    reply = with_headers("ok", **{"anthropic-ratelimit-requests-remaining": "3"})
    ask(
        reply,
        client_fields={"on_headers": lambda headers: seen.append(headers["anthropic-ratelimit-requests-remaining"])},
    )
    assert seen == ["3"]


def test_cost_is_that_of_today():
    client = AnthropicClient(settings=Settings(), clock=ManualClock())
    assert client.cost("opus", Usage(output=1_000_000)) == 20.0
    assert client.cost("mystery", Usage(output=1)) is None


# --- credentials


def test_missing_credentials_are_named_in_one_line_and_are_an_authentication_error(monkeypatch, tmp_path):
    monkeypatch.delenv("ANTHROPIC_CONFIG_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    client = AnthropicClient(settings=Settings())
    assert client.credentials_problem() == credentials.MISSING
    with FakeAPI("ok") as api, pytest.raises(ModelError) as caught:
        with_client(api, answer, api_key=None, open_transport=open_transport)
    assert (caught.value.kind, caught.value.message) == (K.AUTHENTICATION, credentials.MISSING)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "t")
    assert client.credentials_problem() is None


def test_a_stored_profile_is_looked_for_where_the_sdk_looks(monkeypatch, tmp_path):
    monkeypatch.delenv("ANTHROPIC_CONFIG_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not credentials.has_stored_profile()
    directory = tmp_path / ".config/anthropic"
    assert _config_dir() == directory, "the SDK has another place for profiles"
    (directory / "configs").mkdir(parents=True)
    (directory / "credentials").mkdir()
    profile = {"organization_id": "o", "authentication": {"type": "user_oauth", "client_id": "c"}}
    (directory / "configs/default.json").write_text(json.dumps(profile))
    (directory / "credentials/default.json").write_text(json.dumps({"access_token": "t", "expires_at": 4_000_000_000}))
    assert credentials.has_stored_profile()
    directory.rename(tmp_path / "elsewhere")
    assert not credentials.has_stored_profile()
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path / "elsewhere"))
    assert credentials.has_stored_profile()


def test_each_way_to_name_credentials_counts():
    assert not credentials.has_credentials({"ANTHROPIC_API_KEY": "", "ANTHROPIC_IDENTITY_TOKEN": "x"})
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        assert credentials.has_credentials({name: "x"})
    federation = {
        "ANTHROPIC_IDENTITY_TOKEN_FILE": "f",
        "ANTHROPIC_FEDERATION_RULE_ID": "r",
        "ANTHROPIC_ORGANIZATION_ID": "o",
    }
    assert credentials.has_credentials(federation)


def test_a_key_that_changed_in_the_environment_is_worth_another_try(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "old")

    async def use(client):
        with pytest.raises(ModelError):
            await answer(client)
        unchanged = await client.refresh_credentials()
        monkeypatch.setenv("ANTHROPIC_API_KEY", "new")
        return unchanged, await client.refresh_credentials(), (await answer(client))[-1].stop_reason

    with FakeAPI("ok", expected_key="new") as api:
        assert with_client(api, use, api_key=None) == (False, True, "end_turn")


def test_the_sdk_is_not_imported_before_it_is_needed():
    code = """
import sys
from worker_agent.api import anthropic_client, errors_map, fallback, limiter, models, normalize, request, retry, stream
from worker_agent.config import Settings
client = anthropic_client.AnthropicClient(settings=Settings())
assert client.credentials_problem() is None
heavy = {"anthropic", "httpx2", "aiohttp", "pydantic"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={"ANTHROPIC_API_KEY": "x", "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )


def test_a_short_silence_setting_is_honoured_in_real_time():
    settings = Settings(retry=RetrySettings(silence=0.2))
    assert failure(stall("Half", pings=True), settings=settings).kind is K.STREAM_SILENT
