"""Workers of the OpenAI Agents SDK, over litellm, streamed."""

from __future__ import annotations

import asyncio
import os

from agents import Agent, Runner, function_tool
from agents.extensions.models.litellm_model import LitellmModel

from bench.peers import shared
from bench.work import MODEL, SYSTEM

os.environ.setdefault("ANTHROPIC_API_BASE", os.environ["ANTHROPIC_BASE_URL"])


@function_tool(name_override="Read")
async def read(file_path: str) -> str:
    """Read."""
    return shared.read(file_path)


model = LitellmModel(model=f"anthropic/{MODEL}", api_key="x", base_url=os.environ["ANTHROPIC_BASE_URL"])
agent: Agent[None] = Agent(name="worker", instructions=SYSTEM, model=model, tools=[read])


async def worker(prompt: str) -> str:
    result = Runner.run_streamed(agent, prompt, max_turns=20)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


asyncio.run(shared.run(worker))
