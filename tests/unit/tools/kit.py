"""What tests of tool running share: a context over a temporary directory, and tools whose course a test holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from worker_agent import tool_facts
from worker_agent.config import ToolSettings
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Allow, Decision, Input, Tool, ToolContext, ToolResult

NUMBER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class Policy:
    """Answers every question with one decision, and keeps the questions."""

    mode = "default"

    def __init__(self, decision: Decision | Callable[[Input], Decision] = Allow()) -> None:
        self.decision = decision
        self.asked: list[Input] = []

    async def decide(self, tool: Tool, input: Input, context: ToolContext) -> Decision:
        self.asked.append(input)
        return self.decision(input) if callable(self.decision) else self.decision

    def removes(self, tool_name: str) -> bool:
        return False

    def denies_path(self, path: Path, tool_name: str = "Read", project: Path | None = None) -> bool:
        return False


def context_in(directory: Path, **fields: Any) -> ToolContext:
    fields.setdefault("permissions", Policy())
    fields.setdefault("environment", {"PATH": os.environ["PATH"], "HOME": str(directory)})
    fields.setdefault("settings", ToolSettings(kill_grace=0.2))
    return ToolContext(
        session_id="s1", agent_id="a1", cwd=directory, roots=(directory,), spill_dir=directory / "spill", **fields
    )


def use(id: str, name: str = "Held", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input or {"n": 0}}


class Held(Tool):
    """A tool whose calls end when the test says so: `release(n)`, or at once when `held` is False."""

    facts = Facts(name="Held", main_field="n")
    description = "Waits to be let go."
    input_schema: ClassVar[dict[str, Any]] = NUMBER

    def __init__(self, *, safe: bool = True, read_only: bool = True, held: bool = True, name: str = "Held") -> None:
        self.facts = replace(tool_facts.of(name), main_field="n")
        self.safe, self.read_only, self.held = safe, read_only, held
        self.gates: dict[int, asyncio.Event] = {}
        self.running: list[int] = []
        self.ended: list[int] = []

    def gate(self, n: int) -> asyncio.Event:
        return self.gates.setdefault(n, asyncio.Event())

    def release(self, n: int) -> None:
        self.gate(n).set()

    def is_read_only(self, input: Input) -> bool:
        return self.read_only

    def is_concurrency_safe(self, input: Input) -> bool:
        return self.safe

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        n = input["n"]
        self.running.append(n)
        try:
            if self.held:
                await self.gate(n).wait()
            return ToolResult(f"result {n}")
        finally:
            self.running.remove(n)
            self.ended.append(n)


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(20):
        await asyncio.sleep(0)
