"""The work of `fanout.py` by hand with the vendor's SDK, and nothing else: `messages.stream`, `asyncio.gather`, no storage.

    ANTHROPIC_BASE_URL=… python -m bench.sdk_floor [--aiohttp] WORKERS

A coordinator's answer names the workers; each reads what its model asks for and ends with its report; the reports go
back to the coordinator, which concludes. It is what a hand-written loop costs at least.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import anthropic

from bench.work import AGENT, MODEL, READ, SYSTEM, notification


async def ask(client: Any, name: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> Any:
    async with client.messages.stream(
        model=MODEL,
        max_tokens=8_000,
        system=SYSTEM,
        tools=tools,
        messages=messages,
        extra_headers={"x-conversation": name},
    ) as stream:
        return await stream.get_final_message()


async def worker(client: Any, name: str, prompt: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while True:
        answer = await ask(client, name, [READ], messages)
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in answer.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": Path(call.input["file_path"]).read_text()}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]


async def main(workers: int, on_aiohttp: bool) -> None:
    http_client = anthropic.DefaultAioHttpClient() if on_aiohttp else None
    client = anthropic.AsyncAnthropic(api_key="x", max_retries=0, http_client=http_client)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    answer = await ask(client, "coordinator", [AGENT], messages)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert len(calls) == workers
    reports = await asyncio.gather(*(worker(client, call.id, call.input["prompt"]) for call in calls))
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": notification(call.id, report)}
        for call, report in zip(calls, reports, strict=True)
    ]
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    await ask(client, "coordinator", [AGENT], messages)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[-1]), "--aiohttp" in sys.argv))
