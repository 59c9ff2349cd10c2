"""The tools of one agent, by name, in an order that is the same for every agent of one definition.

The specs are made once: agents with the same tools send the same bytes, and share the provider's prompt cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from worker_agent import tool_facts
from worker_agent.api.client import ToolSpec
from worker_agent.tool_facts import Facts
from worker_agent.tools.base import Tool


class ToolRegistry:
    """Tools by name: our own in alphabetical order, then those of MCP servers likewise."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        named: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in named:
                raise ValueError(f"two tools are named {tool.name}")
            named[tool.name] = tool
        self._tools = dict(sorted(named.items(), key=lambda item: (item[0].startswith("mcp__"), item[0])))
        self._by_alias = {alias: tool for tool in self._tools.values() for alias in tool.facts.aliases}
        self._specs: tuple[ToolSpec, ...] | None = None

    @classmethod
    def builtin(cls, extra: Iterable[Tool] = ()) -> ToolRegistry:
        """The full set of file, shell and web tools, and `extra` ones."""
        from worker_agent.tools.builtin.bash import Bash
        from worker_agent.tools.builtin.edit import Edit
        from worker_agent.tools.builtin.glob import Glob
        from worker_agent.tools.builtin.grep import Grep
        from worker_agent.tools.builtin.notebook_edit import NotebookEdit
        from worker_agent.tools.builtin.read import Read
        from worker_agent.tools.builtin.todo_write import TodoWrite
        from worker_agent.tools.builtin.web_fetch import WebFetch
        from worker_agent.tools.builtin.write import Write

        tools = (Bash(), Edit(), Glob(), Grep(), NotebookEdit(), Read(), TodoWrite(), WebFetch(), Write())
        return cls((*tools, *extra))

    def get(self, name: str) -> Tool | None:
        """The tool with this name or alias."""
        return self._tools.get(name) or self._by_alias.get(name)

    def facts(self, name: str) -> Facts:
        """What is known of the tool with this name, also of one that is not here."""
        tool = self.get(name)
        return tool_facts.of(name) if tool is None else tool.facts

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told of the tools, always the same tuple."""
        if self._specs is None:
            self._specs = tuple(ToolSpec(t.name, t.description, t.input_schema, t.deferred) for t in self)
        return self._specs

    def narrowed(
        self, allowed: Sequence[str] | None = None, removed: Callable[[str], bool] = lambda name: False
    ) -> ToolRegistry:
        """The tools that `allowed` names (None: all) less those that `removed` takes away. An entry is a name, a rule
        of which the name counts (`Bash(git *)`), an MCP server (`mcp__srv`, `mcp__srv__*`), or `*`."""
        kept = (t for t in self if (allowed is None or any(names(entry, t.facts) for entry in allowed)))
        return ToolRegistry(t for t in kept if not removed(t.name))

    def unknown(self, allowed: Sequence[str]) -> tuple[str, ...]:
        """The entries of an allow list that name no tool here."""
        return tuple(entry for entry in allowed if not any(names(entry, t.facts) for t in self))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None


def names(entry: str, facts: Facts) -> bool:
    """Whether an entry of a list of tools speaks of the tool; see `narrowed`."""
    name = entry.partition("(")[0].strip()
    if name.startswith("mcp__"):
        server = name.removesuffix("__*")
        return name == facts.name or (server.count("__") == 1 and facts.name.startswith(f"{server}__"))
    return name == "*" or name in facts.names
