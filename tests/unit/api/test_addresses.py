"""Addresses and proxies are read as the SDK's own library reads them, or left to it."""

from __future__ import annotations

from itertools import product

import httpx2
import pytest

from worker_agent.api import addresses

SPARED = (
    "", "*", "other.test,*", "api.test", ".api.test", "*.api.test", "test", "x.api.test", "API.test", "api.test:8080", "api.test:81",
    "localhost", "localhost:81", "127.0.0.1", "127.0.0.0/8", "10.0.0.0/8", "10.0.0.0/99", "10.0.0.0/x", "127.0.0.1:81", "::1",
    "[::1]", "fe80::/10", "a,b , api.test", "st", "http://api.test", "api_x.test", "é.test", "a/b", "com",
)  # fmt: skip
HOSTS = ("http://api.test", "http://x.api.test:81", "https://api.test:8080/p", "http://myapi.test", "http://localhost",
         "http://x.localhost:81", "http://127.0.0.1:81", "http://[::1]:8080", "https://10.1.2.3")  # fmt: skip
PROXIES = ({"http": "http://p:1"}, {"https": "p:2"}, {"all": "http://p:3", "http": "http://u:w@p:1"}, {})


def judged(address, monkeypatch, proxies):
    """What httpx2 would go through, asked by its client's own routing."""
    monkeypatch.setattr("httpx2._utils.getproxies", lambda: proxies)
    made = []

    class Client(httpx2.Client):
        def _init_proxy_transport(self, proxy, *_, **__):
            made.append(proxy)
            return httpx2.MockTransport(lambda request: httpx2.Response(200, text=str(made.index(proxy))))

        def _init_transport(self, *_, **__):
            return httpx2.MockTransport(lambda request: httpx2.Response(200, text="none"))

    with Client() as client:
        said = client.get(address).text
    if said == "none":
        return None
    proxy = made[int(said)]
    return f"{proxy.url.host}:{proxy.url.port}", proxy.raw_auth


@pytest.mark.parametrize("spared", SPARED)
def test_a_proxy_is_chosen_as_the_sdk_chooses_it_or_left_to_it(spared, monkeypatch):
    left = 0
    for address, proxies in product(HOSTS, PROXIES):
        proxies = {**proxies, "no": spared}
        expected = judged(address, monkeypatch, proxies)
        try:
            ours = addresses.proxy_for(address, proxies)
        except addresses.NotPlain:
            left += 1
            continue
        if ours is not None:
            url = httpx2.URL(ours)
            ours = f"{url.host}:{url.port}", (url.username.encode(), url.password.encode()) if url.username else None
        assert ours == expected, (address, proxies)
    assert (left > 0) == (spared in ("[::1]", "http://api.test", "api_x.test", "é.test", "a/b"))


@pytest.mark.parametrize(
    "address", ["https://h", "http://h:81/", "https://h/a/b/", "http://[::1]:1/x", "https://a.b-c.d/v.1/~x"]
)
def test_a_plain_address_is_joined_as_the_sdk_joins_it(address):
    found = addresses.direct(address, "key")
    base = httpx2.URL(address if address.endswith("/") else address + "/")
    assert found is not None and found.address + "v1/messages" == str(base.join("v1/messages"))


@pytest.mark.parametrize(
    "address",
    ["", "h", "ftp://h", "https://u:p@h", "https://h/?a=b", "https://h/#x", "https://h/a/../b", "https://h/a//b", "https://h/%41",
     "HTTPS://h", "https://ü.test", "https://h/a b", "https://h:x", "https://h\n"],
)  # fmt: skip
def test_an_address_in_another_form_is_left_to_the_sdk(address):
    assert addresses.direct(address, "key") is None


def test_an_address_set_to_nothing_is_not_the_default_one(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "")
    assert addresses.direct(None, "key") is None
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    assert addresses.direct(None, "key").address == "https://api.anthropic.com/"


@pytest.mark.parametrize("proxy", ["socks5://p:1", "http://p:1/path", "http://u%40x:w@p", "ftp://p"])
def test_a_proxy_in_another_form_is_left_to_the_sdk(proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert addresses.direct("https://h", "key") is None


def test_without_a_key_the_sdk_looks_for_profiles(monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_PROFILE", "work")
    assert addresses.direct("https://h", None) is None
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "t")
    assert addresses.direct("https://h", None).authorization == "Bearer t"
