"""Workers of pydantic-ai, streamed."""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent

from bench.peers import shared
from bench.work import MODEL, SYSTEM

agent = Agent(f"anthropic:{MODEL}", system_prompt=SYSTEM, model_settings={"max_tokens": 8000})


@agent.tool_plain(name="Read")
async def read(file_path: str) -> str:
    return shared.read(file_path)


async def worker(prompt: str) -> str:
    async with agent.iter(prompt) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
    return str(run.result.output) if run.result else ""


asyncio.run(shared.run(worker))
