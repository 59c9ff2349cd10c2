"""The work of `fanout.py` with nothing but aiohttp and orjson: what is left when everything else is taken away.

ANTHROPIC_BASE_URL=… python -m bench.limit WORKERS
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from bench.work import AGENT, MODEL, READ, SYSTEM, notification


async def ask(session: aiohttp.ClientSession, name: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> Any:
    """The content of one answer."""
    body = orjson.dumps(
        {"model": MODEL, "max_tokens": 8_000, "stream": True, "system": SYSTEM, "tools": tools, "messages": messages}
    )
    blocks: list[dict[str, Any]] = []
    headers = {"content-type": "application/json", "x-conversation": name}
    async with session.post("/v1/messages", data=body, headers=headers) as response:
        data = await response.read()
    for line in data.split(b"\n"):
        if not line.startswith(b"data: "):
            continue
        event = orjson.loads(line[6:])
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            pieces: list[str] = []
        elif event["type"] == "content_block_delta":
            pieces.append(event["delta"].get("text") or event["delta"].get("partial_json") or "")
        elif event["type"] == "content_block_stop":
            if blocks[-1]["type"] == "text":
                blocks[-1]["text"] = "".join(pieces)
            else:
                blocks[-1]["input"] = orjson.loads("".join(pieces))
    return blocks


async def worker(session: aiohttp.ClientSession, name: str, prompt: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while True:
        answer = await ask(session, name, [READ], messages)
        calls = [block for block in answer if block["type"] == "tool_use"]
        if not calls:
            return "".join(block["text"] for block in answer)
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": Path(call["input"]["file_path"]).read_text()}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": results}]


async def main(workers: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(os.environ["ANTHROPIC_BASE_URL"], connector=connector) as session:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        answer = await ask(session, "coordinator", [AGENT], messages)
        calls = [block for block in answer if block["type"] == "tool_use"]
        assert len(calls) == workers
        reports = await asyncio.gather(*(worker(session, call["id"], call["input"]["prompt"]) for call in calls))
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": notification(call["id"], report)}
            for call, report in zip(calls, reports, strict=True)
        ]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": results}]
        await ask(session, "coordinator", [AGENT], messages)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
