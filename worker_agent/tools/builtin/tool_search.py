"""`ToolSearch`: finds tools by name or by what they do, where there are too many to tell of all.

The found ones are *referenced*: a model that knows deferred tools gets their schemas from the endpoint, which has them in
the request already, so that its cached prefix stays. For any other model the request tells those tools in full from then
on that the conversation references (`api/request.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from worker_agent import tool_facts
from worker_agent.messages import text_block
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult

MAX_RESULTS = 20
LISTED = 600  # names that the description holds
_WORD = re.compile(r"[a-z0-9]+")


class ToolSearch(Tool):
    facts = tool_facts.TOOL_SEARCH
    input_schema = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words, or `select:` and names separated by commas."},
            "max_results": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS},
        },
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._words = {tool.name: Counter(_WORD.findall(f"{tool.name} {tool.description}".lower())) for tool in tools}
        names = list(self._tools)
        rest = f"\nand {len(names) - LISTED:,} more" if len(names) > LISTED else ""
        self.description = (
            "Finds tools that can be used only after they were found here: by words of what they do, or exactly, with"
            ' "select:name,name". What is found can be called from the next step on. There are:\n'
            + "\n".join(names[:LISTED])
            + rest
        )

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        query = input["query"].strip()
        found = self._selected(query[7:]) if query.lower().startswith("select:") else self._ranked(query)
        found = found[: input.get("max_results") or (MAX_RESULTS if query.lower().startswith("select:") else 5)]
        if not found:
            return ToolResult("No tool fits. Use other words, or names from the description of ToolSearch.")
        lines = "\n".join(f"{tool.name}: {' '.join(tool.description.split())[:200]}" for tool in found)
        references = [{"type": "tool_reference", "tool_name": tool.name} for tool in found]
        return ToolResult([text_block(f"Found, and ready to be called:\n{lines}"), *references])

    def _selected(self, names: str) -> list[Tool]:
        wanted = [name.strip() for name in names.split(",")]
        return [self._tools[name] for name in dict.fromkeys(wanted) if name in self._tools]

    def _ranked(self, query: str) -> list[Tool]:
        """The tools that have most of the words, rare words first."""
        words = set(_WORD.findall(query.lower()))
        spread = {word: sum(word in known for known in self._words.values()) for word in words}
        scores = {
            name: sum(len(self._words) / spread[word] for word in words if word in known) for name, known in self._words.items()
        }
        return [self._tools[name] for name, score in sorted(scores.items(), key=lambda item: (-item[1], item[0])) if score]
