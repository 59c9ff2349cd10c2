"""Both transports are one: the same bytes to the endpoint, the same events and errors from it. The vendor's SDK is the judge of ours."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.support.fake_api import FakeAPI, http_error
from tests.support.fake_api.scenarios import SINGLE
from tests.support.wire_server import HANG_UP, WireServer, answer, redirect
from tests.unit.api.histories import request
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.client import Started
from worker_agent.api.transports import open_direct, open_sdk
from worker_agent.config import RetrySettings, Settings
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import user

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*deprecated and will be removed:DeprecationWarning"
)  # the SDK's transport uses it
BOTH = pytest.mark.parametrize("opened", [open_direct, open_sdk], ids=["direct", "sdk"])
HELLO = (user("hello"),)
IDS = re.compile(r"\b(msg_|req_|toolu_)\w+")  # each server makes its own
ENVIRONMENTS = {
    "key": {"ANTHROPIC_API_KEY": "sk-key"},
    "token": {"ANTHROPIC_AUTH_TOKEN": "token"},
    "key before token": {"ANTHROPIC_API_KEY": "sk-key", "ANTHROPIC_AUTH_TOKEN": "token"},
    "key set to nothing": {"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "token"},
    "custom headers": {
        "ANTHROPIC_API_KEY": "sk-key",
        "ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: old\nAnthropic-Version: 2023-06-01\nno colon\nUser-Agent: mine\n x : a:b ",
    },
}


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch, tmp_path):
    import os

    for name in list(os.environ):
        if name.startswith("ANTHROPIC_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))


def outcome(opened, base_url, *, messages=HELLO, times=1, retry=None, between=lambda: None, **fields):
    """(events or the error of each call), as plain values."""

    async def one(client):
        try:
            return [event async for event in client.stream(request(messages, **fields))]
        except ModelError as error:
            return {name: getattr(error, name) for name in ("kind", "message", "status", "retry_after", "request_id", "limit",
                                                             "actual", "paths", "server_should_retry", "retryable")}  # fmt: skip

    async def main():
        settings = Settings(retry=retry or RetrySettings())
        client = AnthropicClient(settings=settings, base_url=base_url, open_transport=opened)
        try:
            found = []
            for number in range(times):
                if number:
                    await asyncio.to_thread(between)
                found.append(await one(client))
            return found
        finally:
            await client.close()

    return asyncio.run(main())


def asked(api):
    """What the endpoint saw, but for its own address."""
    return [(r.method, r.path, {**r.headers, "host": ""}, r.raw) for r in api.requests]


@pytest.mark.parametrize("scenario", SINGLE)
def test_every_scenario_is_the_same_over_both(scenario, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    retry = RetrySettings(silence=0.3) if scenario.startswith("stall") else None
    seen = []
    for opened in (open_direct, open_sdk):
        with FakeAPI(SINGLE[scenario](), allow_violations=True) as api:
            events = outcome(opened, api.base_url, retry=retry)
            seen.append((IDS.sub(r"\1", repr(events)), asked(api)))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) == 1


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_request_is_the_same_on_the_wire(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    seen = []
    for opened in (open_direct, open_sdk):
        with WireServer() as server:
            outcome(opened, f"{server.base_url}/a/prefix/", messages=[user("ü" * 300_000)], conversation="c", betas=("b-1",))
            seen.append([(r.line, sorted({**r.headers, "host": ""}.items()), r.body) for r in server.arrived])
    assert seen[0] == seen[1]
    assert seen[0][0][0] == "POST /a/prefix/v1/messages HTTP/1.1"


@pytest.mark.parametrize(
    "status", ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
)
def test_redirects_are_followed_alike(status, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    seen = []
    for opened in (open_direct, open_sdk):
        with WireServer() as other:
            with WireServer([redirect("/moved", status), redirect(f"{other.base_url}/away", status)]) as server:
                events = outcome(opened, server.base_url)
                came = [*server.arrived, *other.arrived]
                seen.append((events, [(r.line, "authorization" in r.headers, r.body) for r in came]))
    assert seen[0] == seen[1]
    assert [signed for _, signed, _ in seen[0][1]] == [True, True, False]  # a key does not go to another host


def test_cookies_are_kept_alike(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    seen = []
    for opened in (open_direct, open_sdk):
        with WireServer([answer("set-cookie: __cf=1; Path=/")]) as server:
            outcome(opened, server.base_url.replace("127.0.0.1", "localhost"), times=2)
            seen.append([r.headers.get("cookie") for r in server.arrived])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("spared", "through"), [("", True), ("other.test", True), ("endpoint.test", False), ("*", False)])
def test_the_proxy_of_the_environment_is_used_alike(spared, through, monkeypatch):
    seen = []
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    monkeypatch.setenv("NO_PROXY", spared)
    for opened in (open_direct, open_sdk):
        with WireServer() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.base_url.replace("//", "//me:secret@"))
            events = outcome(opened, "http://endpoint.test:81", retry=RetrySettings(connect_timeout=5))
            seen.append((type(events[0]), [(r.line, sorted(r.headers.items()), r.body) for r in proxy.arrived]))
    assert seen[0] == seen[1]
    assert [line for line, _, _ in seen[0][1]] == ["POST http://endpoint.test:81/v1/messages HTTP/1.1"] * through


@BOTH
def test_an_error_that_is_compressed_is_read(opened, monkeypatch):
    import gzip

    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    body = gzip.compress(b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}')
    with WireServer([answer("content-encoding: gzip", status="529 Overloaded", body=body)]) as server:
        (error,) = outcome(opened, server.base_url)
    assert (error["kind"], error["message"]) == (ErrorKind.OVERLOADED, "Overloaded")


def test_a_reused_connection_that_died_idle_is_replaced_without_a_word(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    with WireServer([answer(), HANG_UP, answer()]) as server:
        found = outcome(open_direct, server.base_url, times=2)
        assert [isinstance(events[0], Started) for events in found] == [True, True]
        assert [request.connection for request in server.arrived] == [0, 0, 1]
        assert server.arrived[1].body == server.arrived[2].body


@BOTH
def test_a_fresh_connection_that_dies_is_an_error_after_one_request(opened, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    with WireServer([HANG_UP, answer()]) as server:
        (error,) = outcome(opened, server.base_url)
        assert error["kind"] is ErrorKind.CONNECTION and len(server.arrived) == 1


@pytest.mark.parametrize(("word", "connections"), [("timeout=1", [0, 1]), ("timeout=60, max=9", [0, 0]), ("max=9", [0, 0])])
def test_the_servers_word_on_idle_connections_is_obeyed(word, connections, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    with WireServer([answer(f"Keep-Alive: {word}")]) as server:
        outcome(open_direct, server.base_url, times=2)
        assert [request.connection for request in server.arrived] == connections


def test_a_refusal_to_connect_is_told_in_the_same_words(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    seen = [outcome(opened, "http://127.0.0.1:9") for opened in (open_direct, open_sdk)]
    assert seen[0] == seen[1] and seen[0][0]["kind"] is ErrorKind.CONNECTION


def test_short_calls_are_the_same_over_both(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")

    async def ask(opened, base_url):
        client = AnthropicClient(settings=Settings(), base_url=base_url, open_transport=opened)
        try:
            return await client.model_info("a/strange model"), await client.count_tokens(request(HELLO))
        finally:
            await client.close()

    seen = []
    for opened in (open_direct, open_sdk):
        with FakeAPI("ok", allow_violations=True) as api:
            found = asyncio.run(ask(opened, api.base_url))
            seen.append((found, [(c.method, c.path, {**c.headers, "host": ""}, c.raw) for c in api.calls]))
    assert seen[0] == seen[1] and len(seen[0][1]) == 3


def test_a_wait_that_the_server_asks_for_is_read_alike(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    seen = []
    for opened in (open_direct, open_sdk):
        with FakeAPI(http_error(429, "rate_limit_error", "slow", headers={"retry-after-ms": "1500"})) as api:
            seen += outcome(opened, api.base_url)
    assert [error["retry_after"] for error in seen] == [1.5, 1.5]
