"""What a server offers, as it is safe to show to a model: its tools, and what it says about how to use them.

1. A tool whose schema the API would refuse, or that names something outside of itself, is left out and named: one bad
   tool must not spoil every request.
2. Names are made plain (`names.py`); of two that become one the later is left out and named.
3. Texts are cleaned and cut: a description is no place for a book.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from worker_agent.mcp.names import plain, tool_name
from worker_agent.messages import clean, clean_json

if TYPE_CHECKING:
    from mcp import Client

MAX_PAGES = 100
MAX_TOOLS = 2_000
MAX_DESCRIPTION = 8_000  # characters
MAX_INSTRUCTIONS = 2_048
_NOT_AT_TOP = ("oneOf", "anyOf", "allOf", "not", "if", "then", "else")  # the API takes none of these beside `type`


class McpTool(Struct, frozen=True):
    """One tool. `name` is the model's, `own_name` the server's. `read_only` is what the server says of itself."""

    name: str
    own_name: str
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool = False


class Offer(Struct, frozen=True):
    """All of it. `problems` are sentences: what was left out."""

    tools: tuple[McpTool, ...] = ()
    instructions: str = ""
    resources: bool = False
    version: str = ""
    problems: tuple[str, ...] = ()


async def read(server: str, client: Client) -> Offer:
    """Ask a server for everything it offers. Raises what the SDK raises."""
    capabilities = client.server_capabilities
    listed = [tool async for tool in _all_tools(client)] if capabilities.tools is not None else []
    tools, problems = usable(server, listed)
    about = client.server_info
    return Offer(
        tools=tools,
        instructions=clean((client.instructions or "").strip())[:MAX_INSTRUCTIONS],
        resources=capabilities.resources is not None,
        version=clean(f"{about.name} {about.version}".strip()) if about else "",
        problems=problems,
    )


async def _all_tools(client: Client) -> Any:
    cursor, pages, count = None, 0, 0
    while pages < MAX_PAGES:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        pages, count, cursor = pages + 1, count + len(page.tools), page.next_cursor
        if cursor is None or count >= MAX_TOOLS:
            return


def usable(server: str, listed: list[Any]) -> tuple[tuple[McpTool, ...], tuple[str, ...]]:
    """The tools that a model may be given, by name, and what is wrong with the others."""
    found: dict[str, McpTool] = {}
    problems: list[str] = []
    for tool in listed[:MAX_TOOLS]:
        name = tool_name(server, tool.name)
        if (why := _problem(tool.input_schema)) is not None:
            problems.append(f"its tool {clean(tool.name)[:100]!r} is left out: {why}")
        elif name in found:
            problems.append(f"its tool {clean(tool.name)[:100]!r} is left out: it would be named like {found[name].own_name!r}")
        else:
            found[name] = McpTool(
                name=name,
                own_name=tool.name,
                description=clean((tool.description or tool.title or tool.name).strip())[:MAX_DESCRIPTION],
                input_schema=_schema(tool.input_schema),
                read_only=bool(tool.annotations and tool.annotations.read_only_hint),
            )
    if len(listed) > MAX_TOOLS:
        problems.append(f"it lists {len(listed):,} tools; the first {MAX_TOOLS:,} are used")
    return tuple(found[name] for name in sorted(found)), tuple(problems)


def _problem(schema: Any) -> str | None:
    from jsonschema import Draft202012Validator, SchemaError

    if schema.get("type", "object") != "object":
        return "its input is no object"
    if any(not reference.startswith("#") for reference in _references(schema)):
        return "its schema refers to another document"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is none ({error.message[:200]})"
    return None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("$ref", "$dynamicRef") and isinstance(item, str):
                yield item
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema as the API takes it: an object whose alternatives are left to the server to check."""
    kept = {key: item for key, item in schema.items() if key not in _NOT_AT_TOP and key != "$schema"}
    cleaned: Mapping[str, Any] = clean_json({"type": "object", "properties": {}, **kept})
    return cleaned


def file_name(server: str) -> str:
    """A name for a server's file: plain, and another for every server."""
    name = plain(server)[:60]
    return (
        name
        if re.fullmatch(r"[A-Za-z0-9_-]+", server) and len(server) <= 60
        else f"{name}-{blake2b(server.encode(), digest_size=3).hexdigest()}"
    )
