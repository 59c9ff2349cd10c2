"""All MCP servers of one run: one connection each, whoever uses it, begun when the run begins and ended with it.

Servers start side by side, and nobody waits for them but who is about to hand out tools (`ready`). Those that an agent's
own file brings start with the first such agent and are shared by all of its kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from worker_agent.mcp.config import ServerConfig
from worker_agent.mcp.connection import Connection, State, Surroundings
from worker_agent.mcp.listing import McpTool


class Offered(Struct, frozen=True):
    """One tool with the connection that answers its calls."""

    tool: McpTool
    connection: Connection


class Servers:
    """Belongs to one event loop. `on_news` gets a sentence for a person whenever a server fails or changes."""

    def __init__(self, around: Surroundings, on_news: Callable[[str], None] = lambda text: None) -> None:
        self._around = around
        self._on_news = on_news
        self._connections: dict[str, Connection] = {}
        self._private: dict[tuple[str, str], Connection] = {}  # by agent and name
        self._starting: dict[Connection, asyncio.Task[None]] = {}
        self._told: dict[Connection, tuple[str, ...]] = {}
        self.version = 0  # rises whenever an offer changes

    def __bool__(self) -> bool:
        return bool(self._connections or self._private)

    @property
    def connections(self) -> tuple[Connection, ...]:
        return (*self._connections.values(), *self._private.values())

    def begin(self, servers: Iterable[ServerConfig]) -> None:
        """Start servers in the background."""
        for server in servers:
            if server.name not in self._connections:
                self._connections[server.name] = self._begun(server)

    def begin_private(self, agent: str, servers: Iterable[ServerConfig]) -> None:
        """Start, in the background, the servers that only agents of this kind may use."""
        for server in servers:
            if (agent, server.name) not in self._private:
                self._private[agent, server.name] = self._begun(server)

    def _begun(self, server: ServerConfig) -> Connection:
        connection = Connection(server, self._around, self._changed)
        self._starting[connection] = asyncio.create_task(self._start(connection), name=f"start mcp {server.name}")
        return connection

    async def _start(self, connection: Connection) -> None:
        await connection.start()
        name = connection.server.name
        if connection.state is State.FAILED:
            self._on_news(f"the MCP server {name!r} is not there: {connection.problem}; what it says is in {connection.log}")
        self._tell_problems(connection)

    def _changed(self, connection: Connection) -> None:
        self.version += 1
        count = len(connection.offer.tools)
        self._on_news(f"the MCP server {connection.server.name!r} changed its tools: it offers {count} now")
        self._tell_problems(connection)

    def _tell_problems(self, connection: Connection) -> None:
        told = self._told.get(connection, ())
        for problem in connection.offer.problems:
            if problem not in told:
                self._on_news(f"the MCP server {connection.server.name!r}: {problem}")
        self._told[connection] = connection.offer.problems

    async def ready(self) -> None:
        """Wait until each server that was begun is there or has failed; its time limit bounds that."""
        waiting = [task for task in self._starting.values() if not task.done()]
        if waiting:
            await asyncio.wait(waiting)

    def offered(self, agent: str = "") -> Iterator[Offered]:
        """The tools of all servers that are there, an agent's own servers before others of the same name."""
        private = {name: connection for (owner, name), connection in self._private.items() if owner == agent}
        names: set[str] = set()
        for connection in (private | {n: c for n, c in self._connections.items() if n not in private}).values():
            for tool in connection.offer.tools:
                if tool.name not in names:
                    names.add(tool.name)
                    yield Offered(tool, connection)

    def of(self, agent: str = "") -> Sequence[Connection]:
        """The connections that an agent of this kind may use and that are there."""
        private = {name: connection for (owner, name), connection in self._private.items() if owner == agent}
        every = {**{n: c for n, c in self._connections.items() if n not in private}, **private}
        return [connection for _, connection in sorted(every.items()) if connection.state is State.CONNECTED]

    async def close(self) -> None:
        """End all of them, side by side."""
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self.connections), return_exceptions=True)
