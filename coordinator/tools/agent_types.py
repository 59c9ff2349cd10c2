"""`AgentTypes`: the kinds of worker in full, where there are too many to tell of them all in every request.

Rules of this file:

1. What `Agent` says of the kinds stays below `LIST_CAP` characters, however many there are: whole descriptions while they
   fit, then their beginnings, then names, then the number of the others.
2. The built-in kinds stand first, and are always told in full.
3. The list is made once and keeps its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from coordinator.agents.definitions import AgentDefinition, Agents
from worker_agent import tool_facts
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.words import counted

LIST_CAP = 6_000  # characters of the list of kinds in the description of `Agent`
BEGINNING = 120  # characters told of a description where not all fit
FULL = 2_000  # characters of a description where it is asked for
MAX_FOUND = 20
_WORD = re.compile(r"[a-z0-9]{2,}")


def kinds(agents: Agents) -> tuple[str, bool]:
    """The list of kinds for a model, and whether it is whole."""
    every = sorted(agents.by_name.values(), key=lambda one: (one.source is not None, one.name))
    own = [_line(one, one.description) for one in every if one.source is None]
    theirs = [one for one in every if one.source is not None]
    makers: tuple[Callable[[AgentDefinition], str], ...] = (
        lambda one: _line(one, one.description),
        lambda one: _line(one, _beginning(one.description)),
        lambda one: f"- {one.name}",
    )
    for number, make in enumerate(makers):
        lines = [*own, *map(make, theirs)]
        if sum(map(len, lines)) + len(lines) <= LIST_CAP:
            return "\n".join(lines), number == 0
    return "\n".join([*own, *_as_many_as_fit(own, theirs)]), False


def _as_many_as_fit(own: Sequence[str], theirs: Sequence[AgentDefinition]) -> list[str]:
    room, names = LIST_CAP - sum(map(len, own)) - 100, []
    for one in theirs:
        room -= len(one.name) + 2
        if room < 0:
            break
        names.append(one.name)
    return [f"- also: {', '.join(names)}", f"- and {len(theirs) - len(names):,} more"]


def _line(one: AgentDefinition, text: str) -> str:
    return f"- {one.name}: {text}"


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= BEGINNING else line[: BEGINNING - 1].rstrip() + "…"


class AgentTypesTool(Tool):
    facts = tool_facts.AGENT_TYPES
    description = (
        "Tells of kinds of worker in full: their descriptions, tools and models. Asked with words of the work to be done, or"
        " with names separated by commas. Ask before you choose a kind by its name alone."
    )
    input_schema = {
        "type": "object",
        "properties": {"query": {"type": "string", "minLength": 1, "maxLength": 500}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    def is_concurrency_safe(self, input: Input) -> bool:
        return True

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        found = self._named(input["query"]) or self._ranked(input["query"])
        if not found:
            return ToolResult("No kind of worker fits these words. `worker` does any work.")
        return ToolResult("\n\n".join(map(_in_full, found[:MAX_FOUND])))

    def _named(self, query: str) -> list[AgentDefinition]:
        names = dict.fromkeys(name.strip() for name in query.split(","))
        return [self._agents.by_name[name] for name in names if name in self._agents.by_name]

    def _ranked(self, query: str) -> list[AgentDefinition]:
        """Those that have most of the words, those of the name counted twice."""
        words = set(_WORD.findall(query.lower()))

        def score(one: AgentDefinition) -> int:
            name, text = one.name.lower(), set(_WORD.findall(one.description.lower()))
            return len(words & text) + 2 * sum(word in name for word in words)

        every = sorted(self._agents.by_name.values(), key=lambda one: (-score(one), one.name))
        return [one for one in every if score(one)][:MAX_FOUND]


def _in_full(one: AgentDefinition) -> str:
    text = one.description if len(one.description) <= FULL else one.description[: FULL - 1] + "…"
    tools = "all" if one.tools is None else f"{counted(len(one.tools), 'tool')}: {', '.join(one.tools)}"
    return f"{one.name} (tools: {tools}; model: {one.model or 'the usual one'})\n{text}"
