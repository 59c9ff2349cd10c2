"""A program's word about calls that need consent: a coroutine function of the program is asked, and says yes or no."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker_agent.tools import base

NOBODY = "it needs consent, and the program that runs this session gives none (on_permission)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """A call that needs consent. `activity` says it in a few words, `reason` why it needs it; `suggested_rule` would allow its
    like for good. `task_id` is the worker's that asks, None for the agent that the program talks to."""

    tool: str
    input: Mapping[str, Any]
    activity: str
    reason: str
    suggested_rule: str | None
    task_id: str | None


@dataclass(frozen=True, slots=True)
class Allow:
    """It may run, with `input` in place of its own where one is given."""

    input: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """It must not; `reason` goes to the model."""

    reason: str = "the program said no"


Decision = bool | Allow | Deny
OnPermission = Callable[[PermissionRequest], Awaitable[Decision]]


@dataclass(frozen=True, slots=True)
class Consent:
    """The approver of a session. `ask_program` None: every call that needs consent is denied."""

    ask_program: OnPermission | None

    async def ask(self, tool: base.Tool, input: base.Input, ask: base.Ask, context: base.ToolContext) -> base.Allow | base.Deny:
        """As `Approver.ask`. A function that fails is a no."""
        if self.ask_program is None:
            return base.Deny(NOBODY)
        request = PermissionRequest(
            tool=tool.name, input=dict(input), activity=tool.activity(input), reason=ask.reason,
            suggested_rule=ask.suggestion, task_id=context.task_id,
        )  # fmt: skip
        try:
            said = await self.ask_program(request)
        except Exception as error:
            return base.Deny(f"it needs consent, and the program failed to answer: {type(error).__name__}: {error}")
        match said:
            case Allow(input=changed):
                return base.Allow(changed, reason="the program allowed it")
            case Deny(reason=reason):
                return base.Deny(reason)
            case True:
                return base.Allow(reason="the program allowed it")
        return base.Deny("the program said no")
