"""Where the endpoint is and through which proxy it is reached, read as the vendor's SDK reads it, without the SDK.

Only what is plain is read here: what has another form is left to the SDK (`direct` gives None), which knows what it means, or
how to say that it means nothing. `tests/unit/api/test_addresses.py` holds these readings against those of the SDK's own library.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from worker_agent.config import vendor_address, vendor_environment

DEFAULT_ADDRESS = "https://api.anthropic.com"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_HOST = rf"(?:{_NAME}|\[[0-9a-fA-F:]+\])(?::\d{{1,5}})?"
_ADDRESS = re.compile(rf"https?://{_HOST}(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?")
_PROXY = re.compile(rf"https?://(?:[A-Za-z0-9._~-]+:[A-Za-z0-9._~-]*@)?{_HOST}/?")
_SPARED = re.compile(rf"(\*\.|\.)?({_NAME})(?::(\d{{1,5}}))?")


class NotPlain(Exception):
    """The SDK must read this."""


class Direct(Struct, frozen=True):
    """All that is needed to speak to the endpoint: its address, ending with a slash, the value of the header
    `authorization`, and the address of the proxy, if one stands between."""

    address: str
    authorization: str
    proxy: str | None = None


def direct(base_url: str | None, api_key: str | None) -> Direct | None:
    """What to speak to with the given address and key (None: with those of the environment). None where there is no key and
    no token, or where the address or a proxy is in no plain form."""
    key = api_key or static_key()
    address = base_url if base_url is not None else vendor_address()
    address = DEFAULT_ADDRESS if address is None else address
    if not key or not _ADDRESS.fullmatch(address):
        return None
    try:
        return Direct(address.rstrip("/") + "/", f"Bearer {key}", proxy_for(address, _proxies()))
    except NotPlain:
        return None


def static_key(environ: Mapping[str, str] | None = None) -> str | None:
    """The key or else the token of the environment: either wins over every profile."""
    env = vendor_environment(environ)
    return env.get("ANTHROPIC_API_KEY") or env.get("ANTHROPIC_AUTH_TOKEN")


def custom_headers() -> dict[str, str]:
    """`ANTHROPIC_CUSTOM_HEADERS`: `Name: value` lines; they win over what is sent anyway. Names in lower case."""
    lines = vendor_environment().get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n")
    named = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in named}


def _proxies() -> Mapping[str, str]:
    """By scheme, `no` among them: of the environment, on some systems of their settings."""
    from urllib.request import getproxies  # brings half of `email` and `http` along; the direct transport needs them, too

    return getproxies()


def proxy_for(address: str, proxies: Mapping[str, str]) -> str | None:
    """The address of the proxy on the way to `address`; None = there is none. Raises `NotPlain`."""
    url = urlsplit(address)
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy:
        return None
    port = None if url.port == _DEFAULT_PORTS[url.scheme] else url.port
    entries = [entry for part in proxies.get("no", "").split(",") if (entry := part.strip())]
    spared = ["*" in entries, *(_spares(entry, url.hostname or "", port) for entry in entries if entry != "*")]  # all are read
    if any(spared):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _PROXY.fullmatch(proxy):
        raise NotPlain
    return proxy


def _spares(entry: str, host: str, port: int | None) -> bool:
    """Whether an entry of `NO_PROXY` is about this host: `name` and `.name` with what is below it, a name with a port, an
    address, a network. Raises `NotPlain`."""
    address, slash, prefix = entry.partition("/")
    if _is_ip(address):
        return _in_network(host, address, prefix) if slash else entry.lower() == host
    match = _SPARED.fullmatch(entry)
    if match is None:
        raise NotPlain
    below, name, at = match[1], match[2].lower(), match[3]
    if at is not None and int(at) != port:
        return False
    if below:
        return host.endswith(f".{name}")
    return host == name or (host.endswith(f".{name}") and entry.lower() != "localhost")


def _in_network(host: str, address: str, prefix: str) -> bool:
    try:
        network = ipaddress.ip_network(f"{address}/{int(prefix)}", strict=False)
        return ipaddress.ip_address(host) in network
    except ValueError:  # no network, or a name: the SDK passes it by, too
        return False


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
