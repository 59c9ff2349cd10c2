"""An agent with a tool of ours: `python examples/weather.py "Do I need an umbrella in Oslo?"`"""

import asyncio
import sys

from coordinator import Coordinator, Result, TextDelta, tool


@tool(read_only=True)
async def forecast(city: str, days: int = 1) -> dict[str, str]:
    """The weather in a city, for so many days ahead."""
    return {"city": city, "sky": "rain", "until": f"day {days}"}


async def main(goal: str) -> None:
    async with Coordinator(tools=[forecast], workers=False, max_budget_usd=1) as session:
        async for event in session.stream(goal):
            match event:
                case TextDelta(text=text):
                    print(text, end="", flush=True)
                case Result(ok=ok, errors=errors, cost_usd=cost):
                    print(f"\n{'done' if ok else errors} for ${cost or 0:.4f}")


asyncio.run(main(sys.argv[1]))
