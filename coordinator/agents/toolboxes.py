"""Which tools an agent of a session gets, and what it is told about those of MCP servers.

Workers of one definition get the same registry object, so that they send the same bytes and share the provider's cache.
An agent's list never changes while its conversation goes on here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.agents.definitions import AgentDefinition
from coordinator.agents.rights import Rights
from worker_agent import tool_facts
from worker_agent.errors import ConfigError
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Tool
from worker_agent.tools.registry import ToolRegistry, names

if TYPE_CHECKING:
    from coordinator.agents.mcp_tools import McpTools

NOT_FOR_WORKERS = (tool_facts.AGENT.name, tool_facts.SEND_MESSAGE.name, tool_facts.TASK_STOP.name)


class Toolboxes:
    """`every` is the full set of workers' tools, without those of servers."""

    def __init__(self, every: ToolRegistry, rights: Rights, mcp: McpTools | None = None) -> None:
        self._every = every
        self._rights = rights
        self._mcp = mcp
        self._registries: dict[object, ToolRegistry] = {}
        self._given: dict[str, ToolRegistry] = {}  # by agent, where servers may offer something else later

    def facts(self, name: str) -> Facts:
        return self._every.facts(name)

    def may_change(self, name: str, input: Mapping[str, Any]) -> bool:
        """Whether a call of a worker's tool can have an effect."""
        tool = self._every.get(name)
        return tool is None or not tool.is_read_only(input)

    # ── whose tools ────────────────────────────────────────────────────────────────────────────────────────────────

    async def of_top(self, own: Sequence[Tool], *, alone: bool) -> ToolRegistry:
        """The tools of the session's own agent: its `own` three; where it works `alone`, those of workers, too."""
        if not alone:
            return ToolRegistry(own).narrowed(None, self._rights.removes)
        if self._mcp is None:
            return ToolRegistry((*self._every, *own)).narrowed(None, self._rights.removes)
        await self._mcp.ready()
        every = ToolRegistry((*self._every, *self._mcp.tools(), *own))
        return self._mcp.within_bounds(every.narrowed(None, self._rights.removes))

    async def of_worker(self, agent_id: str, definition: AgentDefinition, allowed: Sequence[str] | None) -> ToolRegistry:
        """The definition's, less what a worker may not have; `allowed` can only narrow further. Raises `ConfigError`."""
        if self._mcp is None:
            return self._registry(definition, allowed)
        version = await self._mcp.ready(definition)
        if agent_id not in self._given:
            self._given[agent_id] = self._registry(definition, allowed, version)
        return self._given[agent_id]

    def _registry(self, definition: AgentDefinition, allowed: Sequence[str] | None, version: int = 0) -> ToolRegistry:
        key = (definition.name, None if allowed is None else tuple(allowed), version)
        if key not in self._registries:
            removed = (*NOT_FOR_WORKERS, *definition.disallowed_tools)
            every = ToolRegistry((*self._every, *self._mcp.tools(definition.name))) if self._mcp else self._every
            tools = every.narrowed(
                definition.tools,
                lambda name: any(names(entry, every.facts(name)) for entry in removed) or self._rights.removes(name),
            )
            if allowed is not None:
                tools = tools.narrowed(tuple(allowed))
            if not len(tools) and (allowed or definition.tools):
                asked = ", ".join(allowed or definition.tools or ())
                raise ConfigError(f"no tool is left for agent type {definition.name!r}: {asked}")
            self._registries[key] = self._mcp.within_bounds(tools) if self._mcp else tools
        return self._registries[key]

    # ── what is told of servers ────────────────────────────────────────────────────────────────────────────────────

    def told(self, registry: ToolRegistry) -> str | None:
        """What servers say about the tools in `registry`."""
        return self._mcp.told(registry) if self._mcp else None

    def told_top(self, registry: ToolRegistry, *, alone: bool) -> str | None:
        """The same for the session's own agent, which without tools of servers has workers that have them."""
        if self._mcp is None:
            return None
        return self._mcp.told(registry) if alone else self._mcp.told_coordinator()

    def news(self, registry: ToolRegistry, agent_type: str) -> Callable[[], str | None]:
        """What an agent with these tools is to be told when servers offer something else, each change once."""
        return self._mcp.news(registry, agent_type) if self._mcp else lambda: None
