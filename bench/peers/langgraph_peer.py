"""Workers of LangGraph: its prebuilt ReAct agent over langchain-anthropic, streamed."""

from __future__ import annotations

import asyncio

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent

from bench.peers import shared
from bench.work import MODEL, SYSTEM


@tool("Read")
async def read(file_path: str) -> str:
    """Read."""
    return shared.read(file_path)


model = ChatAnthropic(model=MODEL, max_tokens=8000, streaming=True, max_retries=0)
agent = create_react_agent(model, [read], prompt=SYSTEM)


async def worker(prompt: str) -> str:
    found = await agent.ainvoke({"messages": [("user", prompt)]}, {"recursion_limit": 50})
    return str(found["messages"][-1].content)


asyncio.run(shared.run(worker))
