"""Which transport serves, and what it imports: nothing heavy before it is needed, never the SDK where the direct one can serve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from worker_agent.api import addresses
from worker_agent.api.transport import Endpoint, Transport
from worker_agent.config import provider

OpenTransport = Callable[[Endpoint], Awaitable[Transport]]


async def open_transport(endpoint: Endpoint) -> Transport:
    """That of a cloud where the environment asks for one, else the direct one where it can serve, else the SDK's. Raises
    `ModelError`."""
    if endpoint.base_url is None and endpoint.api_key is None and (cloud := provider()) is not None:
        await asyncio.to_thread(_load_sdk)
        from worker_agent.api.providers import ProviderTransport

        return ProviderTransport(endpoint, cloud)
    if addresses.direct(endpoint.base_url, endpoint.api_key) is not None:
        return await open_direct(endpoint)
    return await open_sdk(endpoint)


async def open_direct(endpoint: Endpoint) -> Transport:
    await asyncio.to_thread(_load_direct)
    from worker_agent.api.direct import DirectTransport

    return DirectTransport(endpoint)


async def open_sdk(endpoint: Endpoint) -> Transport:
    await asyncio.to_thread(_load_sdk)
    from worker_agent.api.sdk_transport import SdkTransport

    return SdkTransport(endpoint)


def begin_to_load() -> None:
    """Import what `open_transport` will need in a thread of its own, while other starting goes on; an error is met again, and
    told, by the first call."""
    load = _load_direct if provider() is None and addresses.direct(None, None) is not None else _load_sdk
    threading.Thread(target=_quietly, args=(load,), name="transport-import", daemon=True).start()


def _quietly(load: Callable[[], None]) -> None:
    try:
        load()
    except ImportError:
        return


def _load_direct() -> None:
    """Import it, or wait until whoever imports it is done. Blocks."""
    import aiohttp  # noqa: F401


def _load_sdk() -> None:
    """The same for the vendor's SDK, which takes a second or two."""
    import anthropic  # noqa: F401
    import httpx2  # noqa: F401
