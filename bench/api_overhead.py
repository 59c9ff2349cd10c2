"""What a model turn costs in this process: CPU milliseconds a turn, for N agents at once.

    python -m bench.api_overhead [--agents 50] [--turns 20]

A server in a process of its own answers every request with two `Read` calls; each agent adds two results of 20 KB and
asks again. Rows: `adapter` is `AnthropicClient` (normalise, build, send, fold); `sdk` sends the same bodies through
the SDK's own `post` and its event decoder; `bare` sends prebuilt bytes with aiohttp and parses each event with
orjson: the limit. Read the ratios, not the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import orjson

from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.client import BlockClosed, ModelRequest, ToolSpec
from worker_agent.api.models import info_for
from worker_agent.api.request import RequestBuilder
from worker_agent.config import Settings
from worker_agent.messages import Message, assistant, tool_result_block, user

MODEL = "claude-sonnet-5-5"
TOOLS = (ToolSpec("Read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)
FILE = "x = 1\n" * 3_400

Ask = Callable[[tuple[Message, ...], str], Awaitable[list[dict]]]
Row = tuple[Ask, Callable[[], Awaitable[None]]]  # and how it is closed


def _event(name: str, **data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps({"type": name, **data}).encode())


def _answer(number: int) -> bytes:
    usage = {"input_tokens": 25, "output_tokens": 1}
    events = [_event("message_start", message={"id": f"msg_{number}", "model": MODEL, "usage": usage}), _event("ping")]
    for index in range(2):
        block = {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": "Read", "input": {}}
        events.append(_event("content_block_start", index=index, content_block=block))
        for piece in ('{"pa', 'th": "sr', "c/main", '.py"}'):
            events.append(_event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece}))
        events.append(_event("content_block_stop", index=index))
    events.append(_event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 40}))
    events.append(_event("message_stop"))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrequest-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


def serve(ready: Connection) -> None:
    """The server process: reports its port, answers until it is ended."""

    async def main() -> None:
        served = 0

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal served
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    served += 1
                    writer.write(_answer(served))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**22)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def request(messages: tuple[Message, ...], conversation: str) -> ModelRequest:
    return ModelRequest(
        model=MODEL,
        max_tokens=16_000,
        system=("Instructions. " * 500,),
        tools=TOOLS,
        messages=messages,
        conversation=conversation,
    )


async def agent(ask: Ask, conversation: str, turns: int) -> None:
    history: tuple[Message, ...] = (user("go"),)
    for _ in range(turns):
        blocks = await ask(history, conversation)
        results = [tool_result_block(block["id"], FILE) for block in blocks]
        history = (*history, assistant(blocks), user(results, kind="tool_results"))


async def measure(name: str, ask: Ask, agents: int, turns: int) -> None:
    await agent(ask, "warm", 1)
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(agent(ask, str(number), turns) for number in range(agents)))
    calls = agents * turns
    cpu, wall = (time.process_time() - cpu) / calls * 1000, (time.perf_counter() - wall) / calls * 1000
    print(f"{name:8} {cpu:6.3f} ms CPU a turn  {wall:6.3f} ms wall a turn  ({agents} agents, {turns} turns)")


def adapter(base_url: str) -> Row:
    client = AnthropicClient(settings=Settings(), base_url=base_url, api_key="x")

    async def ask(messages: tuple[Message, ...], conversation: str) -> list[dict]:
        events = client.stream(request(messages, conversation))
        return [dict(event.block) async for event in events if isinstance(event, BlockClosed)]

    return ask, client.close


def _blocks(events: list[dict]) -> list[dict]:
    """As little as one can do with the events: the calls, with their input parsed."""
    blocks = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    pieces = [[e["delta"]["partial_json"] for e in events if e.get("index") == i and "delta" in e] for i in range(len(blocks))]
    return [{**block, "input": orjson.loads("".join(part))} for block, part in zip(blocks, pieces, strict=True)]


def sdk(base_url: str) -> Row:
    import anthropic
    import httpx2

    client = anthropic.AsyncAnthropic(
        api_key="x",
        base_url=base_url,
        max_retries=0,
        open_telemetry=False,
        http_client=anthropic.DefaultAioHttpClient(),
    )
    builder = RequestBuilder()

    async def ask(messages: tuple[Message, ...], conversation: str) -> list[dict]:
        body = builder.call(request(messages, conversation), info_for(MODEL)).body
        response = await client.post("/v1/messages", cast_to=httpx2.Response, content=body, stream=True)
        events = [orjson.loads(e.data) async for e in anthropic.AsyncStream.raw_events(response)]
        await response.aclose()
        return _blocks(events)

    return ask, client.close


def bare(base_url: str) -> Row:
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    builder = RequestBuilder()

    async def ask(messages: tuple[Message, ...], conversation: str) -> list[dict]:
        body = builder.call(request(messages, conversation), info_for(MODEL)).body
        async with session.post(f"{base_url}/v1/messages", data=body, headers={"authorization": "Bearer x"}) as response:
            lines = (await response.read()).split(b"\n")
        return _blocks([orjson.loads(line[6:]) for line in lines if line.startswith(b"data: ")])

    return ask, session.close


async def compare(base_url: str, agents: int, turns: int) -> None:
    for row in (adapter, sdk, bare):
        ask, close = row(base_url)
        await measure(row.__name__, ask, agents, turns)
        await close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        asyncio.run(compare(f"http://127.0.0.1:{ours.recv()}", options.agents, options.turns))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
