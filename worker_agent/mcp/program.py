"""The transport to an MCP server that lives in the program which began the run: each message goes to it by a function of
that program, which gives the answer.

Requests are handed on side by side, for a call may take long; one that the program cannot deliver is answered with an error,
so that nobody waits for it. What the server says of itself, unasked, does not come this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

ToProgram = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(the server's name, a JSON-RPC message) → the answer to it; to a notification it says nothing of interest. Raises whatever
went wrong."""

FAILED = -32603  # JSON-RPC's "internal error"
ROOM = 100  # messages


@asynccontextmanager
async def transport(server: str, ask: ToProgram | None) -> AsyncIterator[TransportStreams]:
    """The streams of the server named so. Raises `ConnectionError` where there is no program to ask."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

    if ask is None:
        raise ConnectionError("it lives in the program that begins a run, and none speaks on standard input")
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](ROOM)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](ROOM)

    async def hand_on(message: Any) -> None:
        body = message.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            answer = await ask(server, body)
        except Exception as error:
            answer = {"jsonrpc": "2.0", "id": body.get("id"), "error": {"code": FAILED, "message": str(error)}}
        if isinstance(message, JSONRPCRequest):
            await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_python(answer, by_name=False)))

    async def pump() -> None:
        async with asyncio.TaskGroup() as group:
            async for item in from_client:
                group.create_task(hand_on(item.message))

    pumping = asyncio.create_task(pump(), name=f"mcp {server} of the program")
    try:
        yield from_server, to_server
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
        for stream in (to_client, from_server, to_server, from_client):
            stream.close()
