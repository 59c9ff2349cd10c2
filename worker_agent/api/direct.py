"""The transport of our own: one aiohttp session that speaks to the endpoint as the vendor's SDK does, without the SDK.

1. Same request on the wire: address, headers, proxy, trust store, redirects, cookies (`transport.py`, rule 3).
2. An idle connection is given up before the server gives it up: after `IDLE_SECONDS`, or a little before what the server's
   own `keep-alive: timeout=…` says.
3. Where a reused connection dies before a byte of the answer came, the server closed it while it was idle: the request goes
   out again at once, in the end on a fresh connection. What dies on a fresh one is an error like every other.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from worker_agent.api import addresses, errors_map
from worker_agent.api.transport import IDLE_SECONDS, Body, Endpoint

if TYPE_CHECKING:
    import ssl

API_VERSION = "2026-10-21"
MAX_REDIRECTS = 20
SLICE = 128 * 1024  # bytes that are put together and given to the socket at once
SPARE = 1.0  # seconds by which we give up an idle connection earlier than the server says it will
_TIMEOUT = re.compile(r"timeout\s*=\s*(\d+)", re.I)


class DirectTransport:
    """See the head of the file. Made inside an event loop, for an endpoint that `addresses.direct` can read."""

    def __init__(self, endpoint: Endpoint) -> None:
        where = addresses.direct(endpoint.base_url, endpoint.api_key)
        assert where is not None
        self._endpoint = endpoint
        self._where = where
        self._headers = _base_headers(where, endpoint.user_agent)
        self._urls: dict[str, URL] = {}
        self._keep_alive = ""  # the server's own word, as it came last
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=_trust(where))
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=endpoint.connect_timeout),
            trace_configs=[tracing],
        )

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: Body | None) -> DirectAnswer:
        sent = self._headers | dict(headers)
        if body is not None:
            sent["content-length"] = str(sum(map(len, body)))
        try:
            response = await self._try(method, self._url(path), sent, body)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise errors_map.unusable_address(error) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # a closed session says so with a RuntimeError
            raise errors_map.unanswered(error, timed_out=isinstance(error, aiohttp.SocketTimeoutError)) from error
        self._keep(response.headers.get("keep-alive", ""))
        return DirectAnswer(response)

    async def _try(self, method: str, url: URL, headers: Mapping[str, str], body: Body | None) -> aiohttp.ClientResponse:
        while True:
            connection = SimpleNamespace(reused=False)
            try:
                return await self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=None if body is None else _Parts(body),
                    proxy=self._where.proxy,
                    max_redirects=MAX_REDIRECTS,
                    trace_request_ctx=connection,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not connection.reused:
                    raise

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self._where.address + path)
        return url

    def _keep(self, word: str) -> None:
        """Obey the server's word on how long it keeps an idle connection. All of ours lead to the same server."""
        if word == self._keep_alive:
            return
        self._keep_alive = word
        found = _TIMEOUT.search(word)
        seconds = max(0.0, int(found[1]) - SPARE) if found else IDLE_SECONDS
        self._connector._keepalive_timeout = min(IDLE_SECONDS, seconds)  # there is no public way to say it later

    async def refresh(self) -> bool:
        where = addresses.direct(self._endpoint.base_url, self._endpoint.api_key)
        if where is None or where.authorization == self._where.authorization:
            return False
        self._where = where
        self._headers = _base_headers(where, self._endpoint.user_agent)
        return True

    async def close(self) -> None:
        await self._session.close()


class _Parts(aiohttp.Payload):
    """A body that is put together a slice at a time, on its way into the socket: the next one once the last has left, so that
    neither the whole of it is held twice nor the event loop for long. It can be sent again."""

    _value: Body
    _autoclose = True

    def __init__(self, body: Body) -> None:
        super().__init__(body, content_type="application/json")

    @property
    def size(self) -> int:
        return sum(map(len, self._value))

    async def write(self, writer: AbstractStreamWriter) -> None:
        for slice in _slices(self._value):
            await writer.write(slice)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)  # the length that was said is that of the parts

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._value)


def _slices(body: Body) -> Iterator[bytes]:
    """The parts in slices of `SLICE` bytes or a part more."""
    gathered: list[bytes | memoryview] = []
    size = 0
    for part in body:
        gathered.append(part)
        size += len(part)
        if size >= SLICE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


class DirectAnswer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise errors_map.cut_off(error, self.headers) from error

    async def close(self) -> None:
        await self._response.__aexit__(None, None, None)


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.reused = True


def _base_headers(where: addresses.Direct, user_agent: str | None) -> dict[str, str]:
    """What goes with every call, as the SDK has it. Not what it says of this machine; and compression would only hold
    events back on their way."""
    custom = addresses.custom_headers()
    return {
        "accept": "application/json",
        "content-type": "application/json",
        "authorization": where.authorization,
        "anthropic-version": API_VERSION,
        **custom,
        "user-agent": user_agent or custom.get("user-agent") or _sdk_user_agent(),
        "accept-encoding": "identity",
    }


def _sdk_user_agent() -> str:
    from importlib.metadata import version

    return f"AsyncAnthropic/Python {version('anthropic')}"


def _trust(where: addresses.Direct) -> ssl.SSLContext | bool:
    """The system's trust store, or what `SSL_CERT_FILE` or `SSL_CERT_DIR` name, as the SDK's own library has it."""
    if not where.address.startswith("https:") and not (where.proxy or "").startswith("https:"):
        return True
    import httpx2

    return httpx2.create_ssl_context()
