"""`AnthropicClient`: the `ModelClient` over a transport (`transport.py`), for the Messages API.

Rules of this file:

1. The body is bytes already, and the answer is folded from raw bytes: nobody's typed requests and events are used.
2. One transport for the process, with as many connections as there are calls; made with the first call.
3. One try for each call, no total deadline: `silence` without a sign of the answer ends it, from the first byte sent
   on.
4. Nothing but `ModelError` leaves. Closing the iterator closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from worker_agent.api import addresses, credentials, errors_map, models, plain
from worker_agent.api.client import Finished, ModelEvent, ModelInfo, ModelRequest
from worker_agent.api.remembered import Remembered, public_address
from worker_agent.api.request import Call, RequestBuilder
from worker_agent.api.stream import Watchdog, fold
from worker_agent.api.transport import Answer, Endpoint, Transport
from worker_agent.api.transports import OpenTransport, open_transport
from worker_agent.config import Clock, Settings, SystemClock, provider, vendor_address
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage
from worker_agent.structs import replace

ERROR_BODY_LIMIT = 1_000_000  # bytes of an error answer that are read
CALL_TIMEOUT = 30.0  # seconds, for the short calls: counting, asking for a model
SMALLEST_WINDOW = 1_000  # tokens; a refusal that names less means something else
DRAIN = 0.25  # seconds to wait for the end of a body whose answer is whole


class AnthropicClient:
    """A `ModelClient` for the Messages API and servers compatible with it.

    `base_url` and `api_key` win over what is found in the environment and the SDK's profiles. `on_headers` gets the
    response headers of every answer, for a limiter that reads rate limits. `remembered` is the file that keeps what endpoints
    taught; None keeps nothing."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        user_agent: str | None = None,
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
        remembered: Path | None = None,
        open_transport: OpenTransport = open_transport,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._endpoint = Endpoint(
            clock=self._clock,
            connect_timeout=settings.retry.connect_timeout,
            base_url=base_url,
            api_key=api_key,
            user_agent=user_agent,
        )
        self._open_transport = open_transport
        self._on_headers = on_headers
        self._builder = RequestBuilder()
        self._opening = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._transport: Transport | None = None
        self._infos: dict[str, ModelInfo] = {}
        self._counts = True
        self._plain = False  # the endpoint refused a vendor's feature
        cloud = provider() if base_url is None and api_key is None else None
        address = cloud or (base_url if base_url is not None else vendor_address()) or addresses.DEFAULT_ADDRESS
        self.address = public_address(address)
        self._is_vendor = address.rstrip("/") == addresses.DEFAULT_ADDRESS
        self._remembered = Remembered(remembered, address, self._clock) if remembered is not None else None

    # --- the port

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """One try of one call. Raises `ModelError`."""
        info = await self.model_info(request.model)
        try:
            async with aclosing(self.stream_as(request, info)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            if (unsupported := self._learn(request, info, error)) is not None:
                raise unsupported from error
            raise

    async def stream_as(self, request: ModelRequest, info: ModelInfo) -> AsyncGenerator[ModelEvent, None]:
        """The same, the request built for a model that can do what `info` says; nothing is learned from a refusal."""
        async with Watchdog.over(self._clock, self._settings.retry.silence) as dog:
            async with self._answer(self._builder.call(request, info), dog) as answer, aclosing(answer.chunks()) as chunks:
                async with aclosing(fold(chunks, dog, self._clock, answer.headers)) as events:
                    async for event in events:
                        if isinstance(event, Finished):  # before it is given: many consumers stop there
                            await _drain(chunks)
                        yield event

    async def listed_models(self) -> list[Mapping[str, Any]]:
        """The entries of the endpoint's list of models, of its first page. Raises `ModelError`."""
        data = (await self._short_call("GET", "v1/models", None)).get("data")
        return [entry for entry in data if isinstance(entry, Mapping)] if isinstance(data, list) else []

    def _learn(self, request: ModelRequest, info: ModelInfo, error: ModelError) -> ModelError | None:
        """What a refusal says of the endpoint is believed from then on: a smaller window than was known, or that it is plain,
        which makes another error of it."""
        feature = None if self._is_vendor else plain.refused(error, request, info)
        if feature is not None:
            is_first, self._plain = not self._plain, True
            return error.as_unsupported(plain.news(feature, error) if is_first else None)
        model = request.model
        if error.kind is ErrorKind.PROMPT_TOO_LONG and error.limit and SMALLEST_WINDOW <= error.limit < info.window:
            self._infos[model] = _with_window(info, error.limit)
            if self._remembered is not None:
                self._remembered.learned(model, error.limit)
        return None

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
        if not self._plain or known.plain:
            return known
        bare = plain.without_features(known)
        if model in self._infos:
            self._infos[model] = bare
        return bare

    def cost(self, model: str, usage: Usage) -> float | None:
        today = datetime.fromtimestamp(self._clock.now(), UTC).date()
        return models.cost(model, usage, today)

    async def refresh_credentials(self) -> bool:
        """After a 401: credentials are read anew; whether there is something new to try."""
        return self._transport is not None and await self._transport.refresh()

    def forget(self, conversation: str) -> None:
        self._builder.forget(conversation)

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def credentials_problem(self) -> str | None:
        """One line that says what to set, or None. No call is made."""
        if self._endpoint.api_key or credentials.has_credentials() or credentials.has_stored_profile():
            return None
        return credentials.MISSING

    # --- the transport

    async def _send(self, method: str, path: str, call: Call | None) -> Answer:
        if self._transport is None:
            async with self._opening:
                if self._transport is None:
                    self._transport = await self._open_transport(self._endpoint)
        headers, body = (call.headers, call.parts) if call is not None else ({}, None)
        return await self._transport.send(method, path, headers, body)

    @asynccontextmanager
    async def _answer(self, call: Call, dog: Watchdog) -> AsyncIterator[Answer]:
        """The answer to a streaming call once its status says 200; closed on every way out."""
        sending = self._send("POST", "v1/messages", call)
        del call  # the whole conversation once more: not to be held while the answer comes
        answer = await dog.wait(sending)
        try:
            if self._on_headers is not None:
                self._on_headers(answer.headers)
            if not _is_success(answer):
                raise errors_map.from_response(answer.status, answer.headers, await dog.wait(_read(answer)), self._clock.now())
            yield answer
        finally:
            await answer.close()

    # --- short calls

    async def _find_info(self, model: str) -> ModelInfo:
        info = models.info_for(model)
        if info.known:
            self._infos[model] = info = self._as_remembered(model, info)
            return info
        async with self._asking:  # many agents start at once: one of them asks
            if model not in self._infos:
                info, final = await self._ask_for_info(info.id)
                info = self._as_remembered(model, info)
                if not final:
                    return info
                self._infos[model] = info
        return self._infos[model]

    def _as_remembered(self, model: str, info: ModelInfo) -> ModelInfo:
        """With the window that this endpoint named in an earlier session; one that a person set stands."""
        if self._remembered is None or self._settings.context.window is not None:
            return info
        window = self._remembered.window(model)
        return _with_window(info, window) if window is not None and window < info.window else info

    async def _ask_for_info(self, id: str) -> tuple[ModelInfo, bool]:
        """(what the endpoint says or else a guess, whether that is its last word)."""
        window = self._settings.context.window
        try:
            info = models.from_endpoint(id, await self._described(id))
        except ModelError as error:
            return models.guess(id, window), error.kind not in (ErrorKind.CONNECTION, ErrorKind.AUTHENTICATION)
        return (info if info.known else models.guess(id, window or info.window, info.max_output)), True

    async def _described(self, id: str) -> Mapping[str, Any]:
        """What the endpoint says of a model: alone, or else in its list, which many servers have only. Raises `ModelError`."""
        try:
            return await self._short_call("GET", f"v1/models/{quote(id, safe='')}", None)
        except ModelError as error:
            if error.kind is not ErrorKind.NOT_FOUND and error.status not in (405, 501):
                raise
            entry = models.in_list(id, await self._short_call("GET", "v1/models", None))
            if entry is None:
                raise
            return entry

    async def _short_call(self, method: str, path: str, call: Call | None) -> Mapping[str, Any]:
        """A call whose answer is one JSON object. Raises `ModelError`."""
        async with Watchdog.over(self._clock, CALL_TIMEOUT) as dog:
            answer = await dog.wait(self._send(method, path, call))
            try:
                body = await dog.wait(_read(answer))
            finally:
                await answer.close()
        if not _is_success(answer):
            raise errors_map.from_response(answer.status, answer.headers, body, self._clock.now())
        return _json_object(body)


def _with_window(info: ModelInfo, window: int) -> ModelInfo:
    return replace(info, window=window, max_output=min(info.max_output, window))


def _is_success(answer: Answer) -> bool:
    return 200 <= answer.status < 300


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ModelError(ErrorKind.NONSENSE, "The endpoint answered with something that is no JSON object", status=200)
    return value


async def _read(answer: Answer) -> bytes:
    parts, size = [], 0
    async with aclosing(answer.chunks()) as chunks:
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
    except (ModelError, TimeoutError):
        return
