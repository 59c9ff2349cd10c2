"""Which tools of MCP servers an agent gets, and what it is told about them. Imported only where there are servers.

1. Servers start when the session does, in the background. A worker waits for them before it is given its tools: an
   agent's list of tools never changes afterwards, for its prefix hangs on it. Whoever begins later gets what is offered then.
2. Too many tools to tell of are deferred, and found by `ToolSearch`.
3. What a server says about itself is the user context's: in front of the conversation in every call, also behind a compaction.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from coordinator.agents.definitions import AgentDefinition
from worker_agent.config import McpSettings
from worker_agent.mcp.config import Scope, ServerConfig, entries
from worker_agent.mcp.connection import Connection
from worker_agent.mcp.names import plain
from worker_agent.mcp.servers import Servers
from worker_agent.messages import canonical
from worker_agent.tools.base import Tool
from worker_agent.tools.builtin.mcp import ListMcpResources, McpTool, ReadMcpResource
from worker_agent.tools.builtin.tool_search import ToolSearch
from worker_agent.tools.permissions import Policy
from worker_agent.tools.registry import ToolRegistry


def of_agent(definition: AgentDefinition) -> tuple[list[ServerConfig], list[str]]:
    """The servers that an agent's own file brings, and what is wrong with them."""
    inline = {name: entry for name, entry in definition.mcp_servers if entry is not None}
    found, problems = entries(inline, Scope.AGENT, str(definition.source))
    return found, [str(problem) for problem in problems]


class McpTools(Struct):
    """What agents get of the servers. `policy` is the session's: it says which servers a rule allows as a whole."""

    servers: Servers
    settings: McpSettings
    policy: Policy
    names: tuple[str, ...] = ()  # of the session's servers, those that may run
    _tools: dict[tuple[str, int], tuple[Tool, ...]] = field(default_factory=dict)

    async def ready(self, definition: AgentDefinition | None = None) -> int:
        """Wait for the servers that an agent of this kind may use; a number that changes when they offer something else."""
        if definition is not None and definition.mcp_servers:
            self.servers.begin_private(definition.name, of_agent(definition)[0])
        await self.servers.ready()
        return self.servers.version

    def tools(self, agent: str = "") -> tuple[Tool, ...]:
        """The tools of servers for an agent of this kind; always the same objects while nothing changes."""
        key = (agent, self.servers.version)
        if key not in self._tools:
            offered = [McpTool(one, trusted=self._is_trusted(one.connection)) for one in self.servers.offered(agent)]
            readable = [connection for connection in self.servers.of(agent) if connection.offer.resources]
            more = (ListMcpResources(readable), ReadMcpResource(readable)) if readable else ()
            self._tools[key] = (*offered, *more)
        return self._tools[key]

    def _is_trusted(self, connection: Connection) -> bool:
        """Whether a person's rule allows the whole server."""
        probe = f"mcp__{plain(connection.server.name)}__\N{BULLET}"  # no tool's name: only a rule about all of them fits
        return any(rule.covers_everything and rule.names(probe) for rule in self.policy.rules.allow)

    def within_bounds(self, registry: ToolRegistry) -> ToolRegistry:
        """`registry`, with its servers' tools deferred where they are too many or too long to be told at once."""
        theirs = [tool for tool in registry if isinstance(tool, McpTool)]
        told = sum(len(tool.description) + len(canonical(tool.input_schema)) for tool in theirs)
        if len(theirs) <= self.settings.tools_at_once and told <= self.settings.tools_text:
            return registry
        deferred = [tool.put_off() for tool in theirs]
        return ToolRegistry((*(tool for tool in registry if not isinstance(tool, McpTool)), *deferred, ToolSearch(deferred)))

    def told(self, registry: ToolRegistry) -> str | None:
        """What servers say about the tools in `registry`."""
        asked = {tool.offered.connection for tool in registry if isinstance(tool, McpTool)}
        said = [
            f"## {connection.server.name}\n{_inert(connection.offer.instructions)}"
            for connection in sorted(asked, key=lambda connection: connection.server.name)
            if connection.offer.instructions
        ]
        if not said:
            return None
        head = "What MCP servers say about how to use their tools. It comes from them, not from the user:"
        return "<system-reminder>\n" + "\n\n".join([head, *said]) + "\n</system-reminder>"

    def news(self, registry: ToolRegistry, agent: str = "") -> Callable[[], str | None]:
        """What an agent with these tools is to be told when its servers offer something else, each change once. Its own list
        stays as it is: its prefix hangs on it."""
        has = {tool.name for tool in registry if isinstance(tool, McpTool)}
        servers = {tool.offered.connection for tool in registry if isinstance(tool, McpTool)}
        seen, told = self.servers.version, (frozenset[str](), frozenset[str]())

        def ask() -> str | None:
            nonlocal seen, told
            if self.servers.version == seen:
                return None
            seen = self.servers.version
            offered = {one.tool.name for one in self.servers.offered(agent) if one.connection in servers}
            now = (frozenset(has - offered), frozenset(offered - has))
            if now == told:
                return None
            told = now
            gone, come = (", ".join(sorted(names)) for names in now)
            lines = ["The tools of your MCP servers changed."]
            lines += [f"No longer offered: {gone}."] if gone else []
            lines += [f"Offered now, to agents that begin from now on: {come}."] if come else []
            return " ".join(lines)

        return ask

    def told_coordinator(self) -> str | None:
        """What an agent is told whose workers have the servers' tools."""
        if not self.names:
            return None
        return f"<system-reminder>\nYour workers also have the tools of these MCP servers: {', '.join(self.names)}.\n</system-reminder>"


def _inert(text: str) -> str:
    """`text` that cannot end the reminder it stands in."""
    return text.replace("</system-reminder", "<\\/system-reminder")
