"""What the program that begins a run brings of its own: functions that are hooks, MCP servers that live in it, tools.

The command line reaches such a program over standard input and output (`cli/control.py`). A program in Python has the
session in its own process (`interface/`).
"""

from __future__ import annotations

from msgspec import Struct

from worker_agent.hooks import HookConfig
from worker_agent.hooks.run import Callback
from worker_agent.mcp.program import ToProgram
from worker_agent.tools.base import Tool


class Program(Struct, frozen=True, kw_only=True):
    """`hooks` name functions that `callback` calls; `servers` reaches the MCP servers whose kind is `sdk`; `tools` are for
    whoever has the tools of workers; `skills` are those of all that a model may use (None: every one). `is_around`: this very
    process is the program's, and its children are none of ours."""

    hooks: HookConfig = HookConfig()
    callback: Callback | None = None
    servers: ToProgram | None = None
    tools: tuple[Tool, ...] = ()
    skills: tuple[str, ...] | None = None
    is_around: bool = False
