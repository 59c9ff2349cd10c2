"""Clouds that serve the vendor's models, through the clients of the vendor's SDK: Bedrock, Vertex, Foundry.

1. Which one is meant, and whether it can be used, is said without importing the SDK: one line that names what is missing.
2. The clients sign, place and wrap a request; its body is ours. What comes back are the events that they read, as text again: for the
   fold nothing is different.
3. None of them lists models or counts tokens the vendor's way: such a call is answered as by a server that does not know it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from importlib import util
from typing import TYPE_CHECKING, Any

import orjson

from worker_agent.api import addresses, errors_map
from worker_agent.api.transport import IDLE_SECONDS, MAX_CONNECTIONS, Body, Endpoint
from worker_agent.config import Provider, provider_variables
from worker_agent.errors import ErrorKind, ModelError

if TYPE_CHECKING:
    import httpx2

_NEEDS: Mapping[Provider, tuple[tuple[str, ...], ...]] = {  # of each group one variable
    Provider.BEDROCK: (("AWS_REGION", "AWS_DEFAULT_REGION"),),
    Provider.VERTEX: (("CLOUD_ML_REGION",), ("ANTHROPIC_VERTEX_PROJECT_ID",)),
    Provider.FOUNDRY: (("ANTHROPIC_FOUNDRY_API_KEY",), ("ANTHROPIC_FOUNDRY_RESOURCE", "ANTHROPIC_FOUNDRY_BASE_URL")),
}
_MODULES: Mapping[Provider, str] = {Provider.BEDROCK: "boto3", Provider.VERTEX: "google.auth"}
_SWITCHES = {Provider.BEDROCK: "CLAUDE_CODE_USE_BEDROCK", Provider.VERTEX: "CLAUDE_CODE_USE_VERTEX",
             Provider.FOUNDRY: "CLAUDE_CODE_USE_FOUNDRY"}  # fmt: skip


def problem(provider: Provider) -> str | None:
    """What keeps this provider from being used: one line that says what to do, or None. No call is made."""
    have = provider_variables()
    for names in _NEEDS[provider]:
        if not any(have.get(name) for name in names):
            return f"{_SWITCHES[provider]} is set, but {' or '.join(names)} is not"
    signed = provider is Provider.VERTEX and "authorization" in addresses.custom_headers()
    if (module := _MODULES.get(provider)) and not signed and not _is_there(module):
        return f"{_SWITCHES[provider]} needs the extra [{provider}]: pip install 'coordinator[{provider}]'"
    return None


def _is_there(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _bedrock(common: Mapping[str, Any]) -> Any:
    from anthropic import AsyncAnthropicBedrock

    return AsyncAnthropicBedrock(**common)


def _vertex(common: Mapping[str, Any]) -> Any:
    from anthropic import AsyncAnthropicVertex

    return AsyncAnthropicVertex(project_id=provider_variables()["ANTHROPIC_VERTEX_PROJECT_ID"], **common)


def _foundry(common: Mapping[str, Any]) -> Any:
    from anthropic import AsyncAnthropicFoundry

    return AsyncAnthropicFoundry(**common)


_CLIENTS: Mapping[Provider, Callable[[Mapping[str, Any]], Any]] = {
    Provider.BEDROCK: _bedrock,
    Provider.VERTEX: _vertex,
    Provider.FOUNDRY: _foundry,
}


class ProviderTransport:
    """One client of the SDK and one pool for the process. Made inside an event loop. Raises `ModelError`."""

    def __init__(self, endpoint: Endpoint, provider: Provider) -> None:
        import anthropic
        import httpx2

        self._endpoint = endpoint
        self._provider = provider
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS)
        timeout = httpx2.Timeout(None, connect=endpoint.connect_timeout)
        http = anthropic.DefaultAioHttpClient(limits=limits, timeout=timeout)
        agent = {"user-agent": endpoint.user_agent} if endpoint.user_agent else {}
        try:
            self._sdk = _CLIENTS[provider](
                {"http_client": http, "timeout": timeout, "max_retries": 0, "open_telemetry": False, "default_headers": agent}
            )
        except (anthropic.AnthropicError, ValueError) as error:
            raise ModelError(ErrorKind.AUTHENTICATION, f"{provider.title()} cannot be used: {error}") from error

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: Body | None) -> ProviderAnswer:
        if path != "v1/messages" or body is None:
            raise ModelError(ErrorKind.NOT_FOUND, f"{self._provider.title()} does not serve {path}", status=404)
        fields = orjson.loads(b"".join(body))
        if self._provider is Provider.BEDROCK and fields["model"].startswith("claude-"):
            fields["model"] = f"anthropic.{fields['model']}"
        return await self._posted(fields, headers)

    async def _posted(self, fields: Mapping[str, Any], headers: Mapping[str, str]) -> ProviderAnswer:
        import anthropic
        import httpx2
        from anthropic.types import Message, RawMessageStreamEvent

        stream = anthropic.AsyncStream[RawMessageStreamEvent]
        try:
            posted = await self._sdk.post(
                "/v1/messages", cast_to=Message, body=fields, options={"headers": dict(headers)}, stream=True, stream_cls=stream
            )
        except (anthropic.AnthropicError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise errors_map.from_exception(error, began=False, now=self._endpoint.clock.now()) from error
        except Exception as error:  # what a cloud's own library raises where it finds no credentials
            raise ModelError(ErrorKind.AUTHENTICATION, f"{self._provider.title()}: {error}") from error
        return ProviderAnswer(posted.response, self._events(posted))

    def _events(self, posted: Any) -> AsyncGenerator[Any, None]:
        """The events as the client's own decoder reads them; Bedrock's come in frames."""
        decoder = self._sdk._make_sse_decoder()
        events: AsyncGenerator[Any, None] = decoder.aiter_bytes(posted.response.aiter_bytes())
        return events

    async def refresh(self) -> bool:
        return False

    async def close(self) -> None:
        await self._sdk.close()


class ProviderAnswer:
    def __init__(self, response: httpx2.Response, events: AsyncGenerator[Any, None]) -> None:
        self._response = response
        self._events = events
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        import anthropic
        import httpx2

        try:
            async for event in self._events:
                yield f"event: {event.event or ''}\ndata: {event.data}\n\n".encode()
        except (anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError, OSError, ValueError) as error:
            raise errors_map.from_exception(error, began=True, headers=self.headers) from error

    async def close(self) -> None:
        await self._response.aclose()
