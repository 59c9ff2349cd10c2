"""What the hand-written programs say to the model: the same prompt, tools and notifications."""

from __future__ import annotations

from typing import Any

MODEL = "claude-sonnet-5-5"
SYSTEM = "Instructions. " * 500


def tool(name: str, *fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string"} for field in fields}
    return {"name": name, "description": name, "input_schema": {"type": "object", "properties": properties}}


AGENT, READ = tool("Agent", "description", "prompt"), tool("Read", "file_path")


def notification(id: str, report: str) -> str:
    return f"<task-notification><task-id>{id}</task-id>{report}</task-notification>"
