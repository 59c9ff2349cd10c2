"""`Write`: a whole file, new or replaced."""

from __future__ import annotations

import os

from worker_agent import tool_facts
from worker_agent.errors import ToolError
from worker_agent.tools import files
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.tools.builtin.edit import with_line_ends
from worker_agent.words import counted


class Write(Tool):
    facts = tool_facts.WRITE
    description = (
        "Writes a whole file, with the directories it needs. A file that exists is replaced: read all of it first. "
        "Prefer Edit for changing a part of a file."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "Absolute path of the file"},
            "content": {"type": "string", "description": "The whole content"},
        },
        "required": ["file_path", "content"],
        "additionalProperties": False,
    }

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        target = files.resolve(input["file_path"], context)
        files.refuse_way_out(target, context)
        if not context.cwd.is_dir() and target.path.is_relative_to(context.cwd):
            raise ToolError(f"The working directory {context.cwd} is gone; nothing was written. Say so and end the task.")
        content: str = input["content"]
        linked = files.other_names(target)
        if os.path.lexists(target.real):
            data, info, done = *await self._replace(target, content, context), "Replaced"
        else:
            data = files.with_text(files.Text(""), content, content, target).encode()
            info, done = await files.in_thread(files.create, target, data), "Created"
        context.read_files[target.real] = files.remembered(info, data)
        count = content.count("\n") + (not content.endswith("\n") and bool(content))
        return ToolResult(
            f"{done} {target.shown}: {counted(count, 'line')}, {counted(len(data), 'byte')}.{linked}",
            data={"type": "update" if done == "Replaced" else "create", "filePath": str(target.path)},
        )

    async def _replace(self, target: files.Target, content: str, context: ToolContext) -> tuple[bytes, os.stat_result]:
        known = context.read_files.get(target.real)
        if known is not None and known.partial:
            raise ToolError(f"Only a part of {target.shown} was read. Read the rest before replacing it, or use Edit.")
        return await files.in_thread(files.change, target, known, lambda old: _in_the_style_of(old, content, target))


def _in_the_style_of(old: bytes, content: str, target: files.Target) -> bytes:
    """`content` in the encoding of the file it replaces, with its mark, and with its line ends if it has one kind."""
    text = files.decode(old)
    if text is None or not text.text:
        text = files.Text("") if text is None else text
        return files.with_text(text, content, content, target).encode()
    content = with_line_ends(content, text.newline or "")
    return files.with_text(text, content, content, target).encode()
