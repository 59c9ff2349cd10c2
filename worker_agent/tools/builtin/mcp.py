"""Tools of MCP servers as tools of ours: one object a tool, and two that list and read a server's resources.

What a server says of its tool (`readOnlyHint`) counts only where a person's rule allows the whole server: it may run beside
others then, and again when an answer broke off. It never makes a call run unasked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from worker_agent import tool_facts
from worker_agent.errors import ToolError
from worker_agent.mcp import content
from worker_agent.mcp.connection import Connection
from worker_agent.mcp.servers import Offered
from worker_agent.messages import Block
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult

FAILED = "the tool failed and said nothing"


class McpTool(Tool):
    """One tool of one server. `trusted`: a rule allows the whole server."""

    def __init__(self, offered: Offered, *, trusted: bool = False, deferred: bool = False) -> None:
        tool = offered.tool
        self.facts = Facts(name=tool.name)
        self.description = tool.description
        self.input_schema = tool.input_schema
        self.deferred = deferred
        self.offered = offered
        self._trusted = trusted
        self._harmless = trusted and tool.read_only

    def put_off(self) -> McpTool:
        """The same tool, told to a model only once it was found."""
        return McpTool(self.offered, trusted=self._trusted, deferred=True)

    def is_read_only(self, input: Input) -> bool:
        return self._harmless

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        connection, tool = self.offered.connection, self.offered.tool
        answer = await connection.call(tool.own_name, input, context.progress)
        blocks = await asyncio.to_thread(content.of_call, answer, context.spill_dir)
        data = {"structuredContent": answer.structured_content} if answer.structured_content is not None else {}
        return ToolResult(_plain(blocks) or (FAILED if answer.is_error else ""), is_error=answer.is_error, data=data)

    def activity(self, input: Input) -> str:
        return f"{self.offered.connection.server.name}: {self.offered.tool.own_name}"


class _ResourceTool(Tool):
    """What the two tools about resources have in common: the servers that have some."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = {connection.server.name: connection for connection in connections}

    def _named(self, name: str) -> Connection:
        if name not in self._connections:
            raise ToolError(f"no MCP server {name!r} has resources; those that have: {', '.join(self._connections)}")
        return self._connections[name]


class ListMcpResources(_ResourceTool):
    facts = tool_facts.LIST_MCP_RESOURCES
    description = "Lists what MCP servers offer to be read (resources), of one server or of all."
    input_schema = {
        "type": "object",
        "properties": {"server": {"type": "string", "description": "Only this server's."}},
        "additionalProperties": False,
    }

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        wanted = [self._named(input["server"])] if input.get("server") else list(self._connections.values())
        lines: list[str] = []
        for connection in wanted:
            for resource in await connection.resources():
                about = f": {resource.description}" if resource.description else ""
                lines.append(f"{connection.server.name}: {resource.uri} ({resource.mime_type or 'unknown type'}){about}")
        return ToolResult("\n".join(lines) or "There are no resources.")


class ReadMcpResource(_ResourceTool):
    facts = tool_facts.READ_MCP_RESOURCE
    description = "Reads one resource of an MCP server by its address (`uri`), as `ListMcpResourcesTool` lists it."
    input_schema = {
        "type": "object",
        "properties": {"server": {"type": "string"}, "uri": {"type": "string"}},
        "required": ["server", "uri"],
        "additionalProperties": False,
    }

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        answer = await self._named(input["server"]).read(input["uri"])
        return ToolResult(_plain(await asyncio.to_thread(content.of_resource, answer, context.spill_dir)))


def _plain(blocks: list[Block]) -> str | Sequence[Any]:
    """Text where there is nothing else."""
    if all(block.get("type") == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks
