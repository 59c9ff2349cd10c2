"""The calls of a whole answer, without streaming: runs of safe ones together, each other one alone.

That partition is what the executor's order of starts amounts to when all calls are there from the beginning, so the
executor does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from worker_agent.messages import Block
from worker_agent.tools.base import RecordIntent, ToolContext, ToolOutcome
from worker_agent.tools.executor import OnEvent, OnOutcome, StreamingToolExecutor
from worker_agent.tools.registry import ToolRegistry


async def run_tools(
    blocks: Iterable[Block],
    registry: ToolRegistry,
    context: ToolContext,
    *,
    max_concurrency: int | None = None,
    record_intent: RecordIntent | None = None,
    on_event: OnEvent = lambda event: None,
    on_outcome: OnOutcome | None = None,
    invalid: Mapping[str, str] | None = None,
) -> list[ToolOutcome]:
    """The outcomes of the `tool_use` blocks among `blocks`, in their order. `invalid` maps ids of calls whose JSON
    could not be read to the reason. If this is cancelled, or storing fails, what runs is cancelled and awaited first."""
    executor = StreamingToolExecutor(
        registry,
        context,
        max_concurrency=max_concurrency or context.settings.max_concurrency,
        record_intent=record_intent,
        on_event=on_event,
        on_outcome=on_outcome,
    )
    reasons = invalid or {}
    try:
        for block in blocks:
            if block.get("type") == "tool_use":
                executor.add_tool(block, reasons.get(str(block["id"])))
        return await executor.results()
    except BaseException:
        await executor.discard()
        raise
