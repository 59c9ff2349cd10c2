"""`Agent`: start a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from coordinator.agents.definitions import Agents
from coordinator.session.coordinator import Coordinator, SpawnRequest
from coordinator.tools.agent_types import kinds
from tasks import notifications
from tasks.errors import NameTaken
from tasks.records import TaskRecord
from tasks.states import TaskStatus
from worker_agent import tool_facts
from worker_agent.errors import ConfigError, ToolError
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult

PROPERTIES: Mapping[str, Any] = {
    "description": {"type": "string", "minLength": 1, "description": "What the worker does, in 3 to 5 words."},
    "prompt": {
        "type": "string",
        "minLength": 1,
        "description": "The whole task. The worker sees nothing else of this conversation.",
    },
    "subagent_type": {"type": "string", "description": "The kind of worker; `worker` if left out."},
    "name": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,63}$", "description": "A name to address it by."},
    "model": {"type": "string", "description": "Another model than the usual one."},
    "isolation": {
        "type": "string",
        "enum": ["worktree"],
        "description": "`worktree`: work in a git worktree of its own.",
    },
    "run_in_background": {"type": "boolean"},
    "allowed_tools": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Only these tools; can only narrow.",
    },
    "result_schema": {"type": "object", "description": "A JSON schema that its report must fit."},
}

TAGS: Mapping[str, Any] = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"},
    "maxItems": 8,
    "description": "What the machine that runs it must have, by the tags of nodes.",
}


class AgentTool(Tool):
    """`foreground` allows `run_in_background: false` (the default then): the call answers with the worker's report."""

    facts = tool_facts.AGENT
    input_schema = {
        "type": "object",
        "properties": PROPERTIES,
        "required": ["description", "prompt"],
        "additionalProperties": False,
    }

    def __init__(self, coordinator: Coordinator, agents: Agents, *, foreground: bool = False, on_nodes: bool = False) -> None:
        """`on_nodes`: workers run on other machines, and may ask for what such a machine must have."""
        if on_nodes:
            self.input_schema = {**self.input_schema, "properties": {**PROPERTIES, "tags": TAGS}}
        self._coordinator = coordinator
        self._foreground = foreground
        self.description = _description(agents, foreground)

    def is_concurrency_safe(self, input: Input) -> bool:
        return True  # workers are started side by side, in the order asked

    def activity(self, input: Input) -> str:
        return f"Agent {input.get('description', '')}"

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        if context.fill.is_nearly_full:
            return (
                "your conversation fills nearly all of the window: no new worker now, its report would not fit. Finish"
                " what you have, or try again after the next summary."
            )
        if input.get("run_in_background") is False and not self._foreground:
            return "workers always run in the background here; leave run_in_background out"
        return None

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        background = not self._foreground or input.get("run_in_background", False)
        task = await self._spawn(input, background, context.tool_use_id)
        if background:
            return ToolResult(orjson.dumps(launched(task)).decode(), data=launched(task))
        return await self._wait(task)

    async def _spawn(self, input: Input, background: bool, call_id: str) -> TaskRecord:
        allowed = input.get("allowed_tools")
        request = SpawnRequest(
            description=input["description"],
            prompt=input["prompt"],
            agent_type=input.get("subagent_type") or "worker",
            name=input.get("name"),
            model=input.get("model"),
            isolation=input.get("isolation"),
            tags=tuple(input.get("tags") or ()),
            allowed_tools=None if allowed is None else tuple(allowed),
            result_schema=input.get("result_schema"),
            background=background,
            call_id=call_id,
        )
        try:
            return await self._coordinator.spawn(request)
        except (ConfigError, NameTaken) as error:
            raise ToolError(str(error)) from None

    async def _wait(self, task: TaskRecord) -> ToolResult:
        try:
            ended = await self._coordinator.wait_for(task.id)
        except asyncio.CancelledError:
            await self._coordinator.stop(task.id)
            raise
        text = notifications.render(notifications.from_task(ended))
        return ToolResult(text, is_error=ended.status is not TaskStatus.COMPLETED)


def launched(task: TaskRecord) -> dict[str, Any]:
    """The answer to a spawn."""
    return {"status": "async_launched", "task_id": task.id, "agent_id": task.agent_id, "output_file": task.output_file}


def _description(agents: Agents, foreground: bool) -> str:
    listed, whole = kinds(agents)
    more = "" if whole else " (AgentTypes tells more of each)"
    how = (
        "Answers with the worker's report, or with `run_in_background` at once with a task id."
        if foreground
        else "Answers at once with a task id; the report comes later as a <task-notification>."
    )
    return (
        f"Starts a worker: an agent with its own conversation and tools. {how} Independent work is started with "
        f"several calls in one answer. Kinds of worker{more}:\n{listed}"
    )
