"""A person who is asked, and hooks that are told of it (`Notification`, `permission_prompt`)."""

from __future__ import annotations

from msgspec import Struct

from coordinator.agents.asking import Questions
from worker_agent.hooks import HookRunner
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext


class Announced(Struct, frozen=True):
    """The `Approver` of one agent: the session's questions, and the agent's own hooks, which run beside the question."""

    questions: Questions
    hooks: HookRunner

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        text = f"{tool.name} needs your permission: {ask.reason}"
        return await self.questions.ask(
            tool, input, ask, context, announce=lambda: self.hooks.notification("permission_prompt", text)
        )
