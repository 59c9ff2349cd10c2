"""`AnthropicClient`: the adapter over the vendor's SDK.

Rules of this file:

1. The SDK gives transport, credentials, headers and error classes. Its request building and typed events are passed by:
   the body is bytes already, and the answer is folded from raw bytes. That halves the cost of a turn.
2. One SDK client and one aiohttp pool for the process, with as many connections as there are calls.
3. One try for each call, no total deadline: `silence` without a sign of the answer ends it, from the first byte sent
   on.
4. Nothing but `ModelError` leaves. Closing the iterator closes the connection.
5. The SDK is imported with the first call, in a thread: that takes most of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from worker_agent.api import credentials, errors_map, models
from worker_agent.api.client import Finished, ModelEvent, ModelInfo, ModelRequest
from worker_agent.api.request import Call, RequestBuilder
from worker_agent.api.sdk import load as load_sdk
from worker_agent.api.stream import Watchdog, fold
from worker_agent.config import Clock, Settings, SystemClock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage

if TYPE_CHECKING:
    import anthropic
    import httpx2

MAX_CONNECTIONS = 100_000  # no cap of ours: the limiter decides how many calls run
IDLE_SECONDS = 30.0  # how long an idle connection is kept; an agent's tools mostly take less
ERROR_BODY_LIMIT = 1_000_000  # bytes of an error answer that are read
CALL_TIMEOUT = 30.0  # seconds, for the short calls: counting, asking for a model
LARGE_BODY = 512 * 1024  # bytes; more is sent in slices, so that the event loop is not held up
SMALLEST_WINDOW = 1_000  # tokens; a refusal that names less means something else
DRAIN = 0.25  # seconds to wait for the end of a body whose answer is whole


class AnthropicClient:
    """A `ModelClient` for the Messages API and servers compatible with it.

    `base_url` and `api_key` win over what the SDK finds in the environment and its profiles. `on_headers` gets the
    response headers of every answer, for a limiter that reads rate limits."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        user_agent: str | None = None,
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._base_url = base_url
        self._api_key = api_key
        self._user_agent = user_agent
        self._on_headers = on_headers
        self._builder = RequestBuilder()
        self._opening = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._http: httpx2.AsyncClient | None = None
        self._sdk: anthropic.AsyncAnthropic | None = None
        self._base_headers: dict[str, str] = {}
        self._urls: dict[str, httpx2.URL] = {}
        self._infos: dict[str, ModelInfo] = {}
        self._counts = True

    # --- the port

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """One try of one call. Raises `ModelError`."""
        info = await self.model_info(request.model)
        call = self._builder.call(request, info)
        try:
            async with Watchdog.over(self._clock, self._settings.retry.silence) as dog:
                async with self._answer(call, dog) as response, aclosing(_body(response)) as chunks:
                    async with aclosing(fold(chunks, dog, self._clock, response.headers)) as events:
                        try:
                            async for event in events:
                                if isinstance(event, Finished):  # before it is given: many consumers stop there
                                    await _drain(chunks)
                                yield event
                        except _transport_errors() as error:
                            raise self._broken(error, response) from error
        except ModelError as error:
            self._learn(request.model, info, error)
            raise

    def _learn(self, model: str, info: ModelInfo, error: ModelError) -> None:
        """A refusal that names a smaller window than was known is believed from then on."""
        if error.kind is ErrorKind.PROMPT_TOO_LONG and error.limit and SMALLEST_WINDOW <= error.limit < info.window:
            self._infos[model] = replace(info, window=error.limit, max_output=min(info.max_output, error.limit))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """The endpoint's own count; None where it does not count or does not answer."""
        if not self._counts:
            return None
        info = await self.model_info(request.model)
        try:
            answer = await self._short_call("POST", "v1/messages/count_tokens", self._builder.count_body(request, info))
        except ModelError as error:
            self._counts = error.kind is not ErrorKind.NOT_FOUND and error.status not in (405, 501)
            return None
        count = answer.get("input_tokens")
        return count if isinstance(count, int) and count >= 0 else None

    async def model_info(self, model: str) -> ModelInfo:
        """From the table without a call; for a model it does not know the endpoint is asked, once."""
        known = self._infos.get(model)
        if known is None:
            known = await self._find_info(model)
        return known

    def cost(self, model: str, usage: Usage) -> float | None:
        today = datetime.fromtimestamp(self._clock.now(), UTC).date()
        return models.cost(model, usage, today)

    async def refresh_credentials(self) -> bool:
        """After a 401. A token the SDK fetches was dropped by it already: the next call brings a fresh one. A key is
        read anew from the environment; whether it changed is the answer."""
        if self._sdk is None:
            return False
        if self._sdk.custom_auth is not None:
            return True
        before = (self._sdk.api_key, self._sdk.auth_token)
        self._sdk = None
        sdk = await self._client()
        return (sdk.api_key, sdk.auth_token) != before or sdk.custom_auth is not None

    def forget(self, conversation: str) -> None:
        self._builder.forget(conversation)

    async def close(self) -> None:
        sdk, self._http, self._sdk = self._sdk, None, None
        if sdk is not None:
            await sdk.close()

    def credentials_problem(self) -> str | None:
        """One line that says what to set, or None. No call is made."""
        if self._api_key or credentials.has_credentials() or credentials.has_stored_profile():
            return None
        return credentials.MISSING

    # --- the SDK

    async def _client(self) -> anthropic.AsyncAnthropic:
        """The one SDK client, made with the first call."""
        if self._sdk is None:
            async with self._opening:
                if self._sdk is None:
                    await asyncio.to_thread(load_sdk)
                    self._open()
        assert self._sdk is not None
        return self._sdk

    def _open(self) -> None:
        import anthropic
        import httpx2

        if self._http is None:
            limits = httpx2.Limits(
                max_connections=MAX_CONNECTIONS, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS
            )
            timeout = httpx2.Timeout(None, connect=self._settings.retry.connect_timeout)
            self._http = anthropic.DefaultAioHttpClient(limits=limits, timeout=timeout)
        try:
            sdk = anthropic.AsyncAnthropic(
                api_key=self._api_key,
                base_url=self._base_url,
                http_client=self._http,
                max_retries=0,
                open_telemetry=False,
                default_headers={"user-agent": self._user_agent} if self._user_agent else None,
            )
        except (anthropic.AnthropicError, httpx2.InvalidURL, ValueError) as error:
            raise errors_map.from_exception(error, began=False) from error
        # Compression would only hold events back on their way. What the SDK says of this machine is left out.
        headers = {name.lower(): value for name, value in sdk.default_headers.items() if isinstance(value, str)}
        kept = {name: value for name, value in headers.items() if not name.startswith("x-stainless-")}
        self._base_headers = kept | {"accept-encoding": "identity"}
        self._urls = {}
        self._sdk = sdk

    async def _request(self, method: str, path: str, call: Call | None) -> httpx2.Request:
        import httpx2

        sdk = await self._client()
        headers = self._base_headers | dict(call.headers if call else {})
        if "authorization" not in headers and "x-api-key" not in headers and sdk.custom_auth is None:
            raise ModelError(ErrorKind.AUTHENTICATION, credentials.MISSING)
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = sdk.base_url.join(path)
        body = call.body if call else None
        if body is not None:
            headers["content-length"] = str(len(body))
        content = _slices(body) if body is not None and len(body) > LARGE_BODY else body
        timeout = {"connect": self._settings.retry.connect_timeout, "read": None, "write": None, "pool": None}
        return httpx2.Request(method, url, headers=headers, content=content, extensions={"timeout": timeout})

    @asynccontextmanager
    async def _answer(self, call: Call, dog: Watchdog) -> AsyncIterator[httpx2.Response]:
        """The answer to a streaming call once its status says 200; closed on every way out."""
        request = await self._request("POST", "v1/messages", call)
        response = await dog.wait(self._send(request))
        try:
            if self._on_headers is not None:
                self._on_headers(response.headers)
            if not response.is_success:
                body = await dog.wait(_read(response))
                raise errors_map.from_response(response.status_code, response.headers, body, self._clock.now())
            yield response
        finally:
            await response.aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        sdk = await self._client()
        assert self._http is not None
        try:
            return await self._http.send(request, stream=True, auth=sdk.custom_auth)
        except _transport_errors(RuntimeError) as error:  # a closed client says so with a RuntimeError
            raise errors_map.from_exception(error, began=False, now=self._clock.now()) from error

    def _broken(self, error: Exception, response: httpx2.Response) -> ModelError:
        return errors_map.from_exception(error, began=True, headers=response.headers, now=self._clock.now())

    # --- short calls

    async def _find_info(self, model: str) -> ModelInfo:
        info = models.info_for(model)
        if info.known:
            self._infos[model] = info
            return info
        async with self._asking:  # many agents start at once: one of them asks
            if model not in self._infos:
                info, final = await self._ask_for_info(info.id)
                if not final:
                    return info
                self._infos[model] = info
        return self._infos[model]

    async def _ask_for_info(self, id: str) -> tuple[ModelInfo, bool]:
        """(what the endpoint says or else a guess, whether that is its last word)."""
        window = self._settings.context.window
        try:
            info = models.from_endpoint(id, await self._short_call("GET", f"v1/models/{quote(id, safe='')}", None))
        except ModelError as error:
            return models.guess(id, window), error.kind not in (ErrorKind.CONNECTION, ErrorKind.AUTHENTICATION)
        return (info if info.known else models.guess(id, window or info.window, info.max_output)), True

    async def _short_call(self, method: str, path: str, call: Call | None) -> Mapping[str, Any]:
        """A call whose answer is one JSON object. Raises `ModelError`."""
        request = await self._request(method, path, call)
        async with Watchdog.over(self._clock, CALL_TIMEOUT) as dog:
            response = await dog.wait(self._send(request))
            try:
                body = await dog.wait(_read(response))
            except _transport_errors() as error:
                raise self._broken(error, response) from error
            finally:
                await response.aclose()
        if not response.is_success:
            raise errors_map.from_response(response.status_code, response.headers, body, self._clock.now())
        return _json_object(body)


def _transport_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What the SDK, its transport, the pool below it and the operating system raise."""
    import aiohttp
    import anthropic
    import httpx2

    ours = (anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL)
    return (*ours, aiohttp.ClientError, OSError, *more)


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ModelError(ErrorKind.NONSENSE, "The endpoint answered with something that is no JSON object", status=200)
    return value


async def _body(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body in the chunks it arrives in; decompressed only where it was compressed."""
    chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk


async def _read(response: httpx2.Response) -> bytes:
    parts, size = [], 0
    async with aclosing(_body(response)) as chunks:
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > ERROR_BODY_LIMIT:
                break
    return b"".join(parts)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads to the end of the body: only then can the connection be used again. The answer is whole already, so that a
    server which leaves the body open costs the connection and nothing else."""
    try:
        async with asyncio.timeout(DRAIN):
            async for _ in chunks:
                pass
    except _transport_errors(TimeoutError):
        return


async def _slices(body: bytes, size: int = 256 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
