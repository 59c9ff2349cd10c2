"""`HookRunner` in the shape that tools know (`ToolHooks`), and the rule in a hook's `if` judged by the permission rules.

The layers are why this stands here: hooks know nothing of tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from worker_agent import tool_facts
from worker_agent.errors import TurnOver
from worker_agent.hooks import HookRunner, Verdict
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import (
    Allow,
    Ask,
    Decision,
    Deny,
    Input,
    Passthrough,
    PostToolUse,
    PreToolUse,
    ToolResult,
)  # fmt: skip
from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import Behavior, Rule, RuleSet, Source


class HookedTools(Struct, frozen=True):
    """Implements `ToolHooks`. A hook that says `continue: false` ends the turn (`TurnOver`). `facts` by a tool's name."""

    runner: HookRunner
    facts: Callable[[str], Facts] = tool_facts.of

    async def pre_tool_use(self, tool_name: str, input: Input, tool_use_id: str) -> PreToolUse:
        if not self.runner.config.groups:
            return PreToolUse()
        verdict = await self.runner.pre_tool_use(tool_name, self._shown(tool_name, input), tool_use_id)
        _stop(verdict)
        return PreToolUse(_decision(verdict), verdict.updated_input, verdict.context)

    async def permission_request(self, tool_name: str, input: Input, suggestion: str | None) -> Decision:
        if not self.runner.config.groups:
            return Passthrough()
        rules = [as_update(suggestion)] if suggestion else []
        verdict = await self.runner.permission_request(tool_name, self._shown(tool_name, input), rules)
        _stop(verdict)
        decision = _decision(verdict)
        return replace(decision, updated_input=verdict.updated_input) if isinstance(decision, Allow) else decision

    async def post_tool_use(
        self, tool_name: str, input: Input, tool_use_id: str, result: ToolResult, duration: float
    ) -> PostToolUse:
        if not self.runner.config.groups:
            return PostToolUse()
        text = _text(result)
        verdict = await self.runner.post_tool_use(
            tool_name, self._shown(tool_name, input), tool_use_id, {"content": text, **result.data}, duration,
            error=text if result.is_error else None,
        )  # fmt: skip
        _stop(verdict)
        return PostToolUse(verdict.blocking, verdict.context, verdict.updated_output)

    def _shown(self, tool_name: str, input: Input) -> Mapping[str, Any]:
        """Hooks see absolute paths; the call keeps what the model wrote."""
        cwd = self.runner.session.cwd
        fields = self.facts(tool_name).path_fields
        paths = {k: str(cwd / v) for k in fields if isinstance(v := input.get(k), str) and "\0" not in v}
        return {**input, **paths}


def as_update(rule: str) -> dict[str, Any]:
    """A rule that would allow a call, as an update of the permissions of this session."""
    name, bracket, rest = rule.partition("(")
    content = {"ruleContent": rest.removesuffix(")")} if bracket else {}
    return {"type": "addRules", "rules": [{"toolName": name, **content}], "behavior": "allow", "destination": "session"}


def _stop(verdict: Verdict) -> None:
    if verdict.stop is not None:
        raise TurnOver(verdict.stop)


def _decision(verdict: Verdict) -> Decision:
    if verdict.blocking or verdict.decision == "deny":
        return Deny(verdict.reason or " ".join(verdict.blocking) or "a hook denies it")
    match verdict.decision:
        case "ask":
            return Ask(verdict.reason or "a hook wants a person to say")
        case "allow":
            return Allow(reason=verdict.reason)
        case _:
            return Passthrough()


def _text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    return "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in result.content)


def rule_condition(cwd: Path, home: Path) -> Callable[[str, str, Mapping[str, Any]], bool]:
    """The judge of a hook's `if`: whether one permission rule speaks of a call, as a fence would: a command by any of its
    parts, and also when nobody can say. Raises `RuleError` (a `ConfigError`) for what is no rule."""

    def holds(text: str, tool_name: str, input: Mapping[str, Any]) -> bool:
        rule = Rule.parse(text, Source("hook"), Behavior.ASK)
        policy = Policy(mode="bypassPermissions", rules=RuleSet(ask=(rule,)), cwd=cwd, home=home, roots=(cwd,))
        return policy.judge(tool_name, input).behavior != "allow"

    return holds
