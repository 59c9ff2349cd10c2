"""A person who is asked, and hooks that are told of it (`Notification`, `permission_prompt`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from worker_agent.hooks import HookRunner
from worker_agent.tools.base import Allow, Approver, Ask, Deny, Input, Tool, ToolContext


@dataclass(frozen=True, slots=True)
class Announced:
    """An `Approver` around another one. The hooks run beside the question."""

    approver: Approver
    hooks: HookRunner

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        text = f"{tool.name} needs your permission: {ask.reason}"
        answer, _ = await asyncio.gather(
            self.approver.ask(tool, input, ask, context), self.hooks.notification("permission_prompt", text)
        )
        return answer
