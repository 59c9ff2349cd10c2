"""Workers of agno, streamed."""

from __future__ import annotations

import asyncio

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.tools import tool

from bench.peers import shared
from bench.work import MODEL, SYSTEM


@tool(name="Read")
async def read(file_path: str) -> str:
    """Read."""
    return shared.read(file_path)


async def worker(prompt: str) -> str:
    agent = Agent(model=Claude(id=MODEL, max_tokens=8000), system_message=SYSTEM, tools=[read], telemetry=False)
    text = ""
    async for event in agent.arun(prompt, stream=True):
        text += str(getattr(event, "content", None) or "")
    return text


asyncio.run(shared.run(worker))
