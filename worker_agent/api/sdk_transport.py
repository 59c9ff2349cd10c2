"""The transport through the vendor's SDK: its credentials, profiles, address and headers, its connections over aiohttp.

Its request building and typed events are passed by: the body is bytes already, and the answer is folded from raw bytes. That
halves the cost of a turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

import aiohttp
import anthropic
import httpx2

from worker_agent.api import addresses, credentials, errors_map
from worker_agent.api.transport import IDLE_SECONDS, LARGE_BODY, MAX_CONNECTIONS, Body, Endpoint
from worker_agent.errors import ErrorKind, ModelError

# What the SDK, its transport, the pool below it and the operating system raise.
_ERRORS = (
    anthropic.AnthropicError,
    httpx2.HTTPError,
    httpx2.StreamError,
    httpx2.InvalidURL,
    aiohttp.ClientError,
    OSError,
)


class SdkTransport:
    """One SDK client and one pool for the process. Made inside an event loop. Raises `ModelError`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS)
        timeout = httpx2.Timeout(None, connect=endpoint.connect_timeout)
        self._timeout = {"connect": endpoint.connect_timeout, "read": None, "write": None, "pool": None}
        self._http = anthropic.DefaultAioHttpClient(limits=limits, timeout=timeout)
        self._read_environment()

    def _read_environment(self) -> None:
        agent = self._endpoint.user_agent
        try:
            self._sdk = anthropic.AsyncAnthropic(
                api_key=self._endpoint.api_key,
                base_url=self._endpoint.base_url,
                http_client=self._http,
                max_retries=0,
                open_telemetry=False,
                default_headers={"user-agent": agent} if agent else None,
            )
        except (anthropic.AnthropicError, httpx2.InvalidURL, ValueError) as error:
            raise errors_map.from_exception(error, began=False) from error
        # Compression would only hold events back on their way. What the SDK says of this machine is left out. A name that a
        # person wrote in another case than the SDK is one header all the same, and theirs.
        headers = {name.lower(): value for name, value in self._sdk.default_headers.items() if isinstance(value, str)}
        kept = {name: value for name, value in headers.items() if not name.startswith("x-stainless-")}
        agent_again = {"user-agent": agent} if agent else {}
        self._headers = kept | addresses.custom_headers() | agent_again | {"accept-encoding": "identity"}
        self._urls: dict[str, httpx2.URL] = {}

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: Body | None) -> SdkAnswer:
        request = self._request(method, path, headers, None if body is None else b"".join(body))
        try:
            response = await self._http.send(request, stream=True, auth=self._sdk.custom_auth)
        except (*_ERRORS, RuntimeError) as error:  # a closed client says so with a RuntimeError
            raise errors_map.from_exception(error, began=False, now=self._endpoint.clock.now()) from error
        return SdkAnswer(response)

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> httpx2.Request:
        sent = self._headers | dict(headers)
        if "authorization" not in sent and "x-api-key" not in sent and self._sdk.custom_auth is None:
            raise ModelError(ErrorKind.AUTHENTICATION, credentials.MISSING)
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._sdk.base_url.join(path)
        if body is not None:
            sent["content-length"] = str(len(body))
        content = _slices(body) if body is not None and len(body) > LARGE_BODY else body
        return httpx2.Request(method, url, headers=sent, content=content, extensions={"timeout": self._timeout})

    async def refresh(self) -> bool:
        """A token the SDK fetches was dropped by it already: the next call brings a fresh one. A key is read anew."""
        if self._sdk.custom_auth is not None:
            return True
        before = (self._sdk.api_key, self._sdk.auth_token)
        self._read_environment()
        return (self._sdk.api_key, self._sdk.auth_token) != before or self._sdk.custom_auth is not None

    async def close(self) -> None:
        await self._sdk.close()


class SdkAnswer:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        raw = "content-encoding" not in self.headers
        chunks = self._response.aiter_raw() if raw else self._response.aiter_bytes()
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except _ERRORS as error:
            raise errors_map.from_exception(error, began=True, headers=self.headers) from error

    async def close(self) -> None:
        await self._response.aclose()


async def _slices(body: bytes, size: int = 256 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
