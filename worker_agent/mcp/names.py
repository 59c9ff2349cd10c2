"""Names of servers and tools as a model sees them: `mcp__<server>__<tool>`, every other character an underscore."""

from __future__ import annotations

import re
from hashlib import blake2b

MAX_NAME = 64  # characters, as the API takes them
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def plain(name: str) -> str:
    """`name` with an underscore for every character that a tool's name cannot hold."""
    return _OTHER.sub("_", name)


def tool_name(server: str, tool: str) -> str:
    """The tool's name for the model. One that is too long keeps its beginning and gets a mark of the whole."""
    name = f"mcp__{plain(server)}__{plain(tool)}"
    if len(name) <= MAX_NAME:
        return name
    mark = blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{name[: MAX_NAME - len(mark) - 1]}_{mark}"


def plugin_server(plugin: str, server: str) -> str:
    """What a plugin's server is called."""
    return f"plugin_{plain(plugin)}_{plain(server)}"
