"""What the tests of the file tools share: a context on a directory, and a call that gives the words or the failure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema

from worker_agent.config import ToolSettings
from worker_agent.errors import ToolError
from worker_agent.structs import replace
from worker_agent.tools.base import Allow, Tool, ToolContext, ToolResult


class AllowAll:
    mode = "default"

    async def decide(self, *args: Any) -> Allow:
        return Allow()

    def removes(self, tool_name: str) -> bool:
        return False

    def denies_path(self, path: Path, tool_name: str = "Read", project: Path | None = None) -> bool:
        return False


def context(cwd: Path, *, roots: tuple[Path, ...] = (), **settings: Any) -> ToolContext:
    return ToolContext(
        session_id="s",
        agent_id="a",
        cwd=cwd,
        roots=roots or (cwd,),
        spill_dir=cwd / ".spill",
        permissions=AllowAll(),
        environment={"PATH": os.environ["PATH"]},
        settings=replace(ToolSettings(), **settings),
    )


async def acall(tool: Tool, ctx: ToolContext, **input: Any) -> ToolResult:
    """One call as the lifecycle makes it: schema, then `validate_input`, then `call`."""
    jsonschema.validate(input, tool.input_schema)
    if problem := await tool.validate_input(input, ctx):
        raise ToolError(problem)
    return await tool.call(input, ctx)


def call(tool: Tool, ctx: ToolContext, **input: Any) -> str:
    """The text of the answer."""
    content = asyncio.run(acall(tool, ctx, **input)).content
    return content if isinstance(content, str) else "\n".join(b.get("text", f"<{b['type']}>") for b in content)


def refused(tool: Tool, ctx: ToolContext, **input: Any) -> str:
    """The words of a refusal. Anything but a `ToolError` is a failure of the test."""
    try:
        answer = call(tool, ctx, **input)
    except ToolError as error:
        return str(error)
    raise AssertionError(f"not refused: {answer}")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything; in here the process is nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
