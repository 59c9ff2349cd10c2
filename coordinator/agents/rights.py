"""What the agents of a session may do: the session's own policy, and what a worker gets of it.

A worker may do what the session may, less what its definition and its spawn take away. The mode can change while the
session runs; it holds for every agent that begins afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.agents.definitions import AgentDefinition
from coordinator.options import rank
from tasks.records import TaskRecord
from worker_agent.tools.permissions import Mode, Policy
from worker_agent.tools.rules import RuleSet


class Rights:
    """`policy` is the session's own, as it stands now."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def set_mode(self, mode: str) -> None:
        """Raises `ValueError` for an unknown mode."""
        self.policy = self.policy.in_mode(mode)

    def change(self, change: Callable[[Policy], Policy]) -> None:
        """As `change` makes it, for every agent that begins afterwards."""
        self.policy = change(self.policy)

    def removes(self, name: str) -> bool:
        """Whether a bare-name deny takes the tool out of every list."""
        return self.policy.removes(name)

    def of_worker(self, definition: AgentDefinition, task: TaskRecord) -> Policy:
        policy = narrowed(self.policy.child(mode=definition.permission_mode), definition.tools, task.allowed_tools)
        if definition.denied:
            policy = policy.child(rules=policy.rules + RuleSet.from_flags((), definition.denied))
        return policy

    def mode_of(self, definition: AgentDefinition | None, task: TaskRecord) -> str:
        """The mode that holds for a worker; the session's where its definition is not there any more."""
        return str(effective_mode(self.of_worker(definition, task) if definition else self.policy))


def effective_mode(policy: Policy) -> Mode:
    """The strictest mode of an agent and of those above it: the one that holds."""
    above = [] if policy.ceiling is None else [effective_mode(policy.ceiling)]
    return min((Mode(policy.mode), *above), key=lambda mode: rank("permission_mode", str(mode)))


def narrowed(policy: Policy, *lists: Sequence[str] | None) -> Policy:
    """`policy` under lists of allowed tools: an entry with a specifier (`Bash(git *)`) allows only what it covers.
    Raises `ConfigError` for what is no rule."""
    for entries in lists:
        if entries is not None and any("(" in entry for entry in entries):
            policy = policy.child(mode=Mode.DONT_ASK, rules=RuleSet.from_flags(entries))
    return policy
