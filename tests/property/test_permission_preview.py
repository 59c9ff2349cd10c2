"""`permissions test` says what the real call is told: for every tool, every alias, every kind of rule, in every mode."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.cli.commands.permissions import preview, read_call
from coordinator.tools.agent import AgentTool
from coordinator.tools.agent_types import AgentTypesTool
from coordinator.tools.send_message import SendMessageTool
from coordinator.tools.task_stop import TaskStopTool
from worker_agent import tool_facts
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext
from worker_agent.tools.builtin.mcp import ListMcpResources, ReadMcpResource
from worker_agent.tools.builtin.skill import Skill
from worker_agent.tools.builtin.tool_search import ToolSearch
from worker_agent.tools.lifecycle import run_call
from worker_agent.tools.permissions import Mode, Policy
from worker_agent.tools.registry import ToolRegistry
from worker_agent.tools.rules import Behavior, RuleSet, Source

HERE = Path("/nowhere/project")
FROM_A_SERVER = "mcp__notes__search"
TEXTS = (
    "ls", "git push", "rm -rf x", "src/a.py", "../out", "/etc/passwd", "~/.ssh/id", "https://example.com/x", "reviewer",
    "worker", "deploy", "deploy now", "*.py",
)  # fmt: skip
SPECIFIERS = (
    None, "*", "git *", "ls", "src/**", "//etc/**", "~/.ssh/**", "domain:example.com", "reviewer", "worker", "deploy", "deploy *",
    "prompt:*", "description:x", "to:reviewer", "task_id:worker",
)  # fmt: skip
NAMES = (*(name for facts in tool_facts.known() for name in facts.names), FROM_A_SERVER)


def loose(kind: type[Tool]) -> Tool:
    """The tool itself with its own opinion, but for what it demands of an input."""

    async def nothing_wrong(self: Tool, input: Input, context: ToolContext) -> None:
        return None

    return object.__new__(type(kind.__name__, (kind,), {"input_schema": {"type": "object"}, "validate_input": nothing_wrong}))


class Server(Tool):
    facts = tool_facts.of(FROM_A_SERVER)
    description = "Of a server."


class Search(Tool):
    facts = tool_facts.WEB_SEARCH
    description = "Not of ours."


KINDS = (
    *map(type, ToolRegistry.builtin()),
    Skill,
    AgentTool,
    AgentTypesTool,
    SendMessageTool,
    TaskStopTool,
    ToolSearch,
    ListMcpResources,
    ReadMcpResource,
    Server,
    Search,
)
TOOLS = ToolRegistry(map(loose, KINDS))


class Runs(Exception):
    """The call passed the last gate."""


class Person:
    def __init__(self) -> None:
        self.was_asked = False

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        self.was_asked = True
        return Deny("no")


async def passed(input: Input, read_only: bool) -> None:
    raise Runs


def real(policy: Policy, name: str, input: Input) -> str:
    person = Person()
    context = ToolContext(
        session_id="s", agent_id="a", cwd=HERE, roots=policy.roots, spill_dir=HERE, permissions=policy, approver=person
    )
    block: dict[str, Any] = {"type": "tool_use", "id": "t", "name": name, "input": input}
    try:
        outcome = asyncio.run(run_call(TOOLS.get(name), block, context, before_call=passed))
    except Runs:
        return "allow"
    assert "Permission denied" in str(outcome.block), outcome
    return "ask" if person.was_asked else "deny"


def policy_of(mode: str, **texts: list[str]) -> Policy:
    rules = RuleSet()
    for behavior in Behavior:
        rules += RuleSet.parse(behavior, texts.get(behavior.value, ()), Source(str(behavior), "rules", HERE))
    return Policy(mode=mode, rules=rules, cwd=HERE, roots=(HERE,), home=HERE.parent)


def previewed(policy: Policy, call: str) -> tuple[str, Input]:
    tool, input = read_call(call)
    return asyncio.run(preview(policy, tool, input, None)).behavior, input


rule_texts = st.lists(
    st.builds(
        lambda name, text: name if text is None else f"{name}({text})", st.sampled_from(NAMES), st.sampled_from(SPECIFIERS)
    ),
    max_size=3,
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(NAMES), st.sampled_from(TEXTS), st.sampled_from(list(Mode)), rule_texts, rule_texts, rule_texts,
)  # fmt: skip
def test_the_preview_is_the_real_decision(
    name: str, text: str, mode: Mode, deny: list[str], ask: list[str], allow: list[str]
) -> None:
    policy = policy_of(mode, deny=deny, ask=ask, allow=allow)
    said, input = previewed(policy, f"{name}({text})")
    assert said == real(policy, name, input)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", list(Mode))
def test_without_a_rule_it_is_so_for_every_name_and_mode(name: str, mode: Mode) -> None:
    said, input = previewed(policy_of(mode), f"{name}(src/a.py)")
    assert said == real(policy_of(mode), name, input)


@pytest.mark.parametrize(("call", "rule"), [("Task(reviewer)", "Agent(reviewer)"), ("Agent(reviewer)", "Task(reviewer)"),
                                            ("Skill(deploy)", "Skill(deploy)"), ("MultiEdit(src/x)", "Edit(src/**)")])  # fmt: skip
def test_a_denied_name_is_denied_by_each_of_its_names(call: str, rule: str) -> None:
    policy = policy_of("default", deny=[rule])
    said, input = previewed(policy, call)
    assert said == real(policy, call.partition("(")[0], input) == "deny"


@pytest.mark.parametrize("name", [name for name in NAMES if not tool_facts.of(name).consent])
def test_what_needs_no_consent_is_previewed_so(name: str) -> None:
    assert previewed(policy_of("default"), name)[0] == "allow"
