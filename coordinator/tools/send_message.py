"""`SendMessage`: speak to a worker, running or ended."""

from __future__ import annotations

from typing import Any

import orjson

from coordinator.session.coordinator import Coordinator, Sent
from tasks.errors import Ambiguous, NotFound
from worker_agent import tool_facts
from worker_agent.errors import ConfigError, ToolError
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult


class SendMessageTool(Tool):
    facts = tool_facts.SEND_MESSAGE
    description = (
        "Sends a message to a worker. A running worker reads it at its next step; one that has ended goes on with its "
        "conversation in a new task, whose id is answered. A killed worker cannot be written to."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "to": {"type": "string", "minLength": 1, "description": "A task id, or the worker's name."},
            "message": {"type": "string", "minLength": 1},
        },
        "required": ["to", "message"],
        "additionalProperties": False,
    }

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        if not input["message"].strip():
            raise ToolError("not delivered: the message is blank. Say in words what the worker is to do.")
        try:
            outcome = await self._coordinator.send(input["to"], input["message"])
        except (NotFound, Ambiguous, ConfigError) as error:
            raise ToolError(str(error)) from None
        task = outcome.task
        if outcome.sent is Sent.KILLED:
            raise ToolError(f"not delivered: task {task.id} was killed. A new worker must be started instead.")
        answer: dict[str, Any] = {"status": str(outcome.sent), "task_id": task.id, "agent_id": task.agent_id}
        if outcome.sent is Sent.CONTINUED:
            answer |= {"continues": task.continues, "output_file": task.output_file}
        return ToolResult(orjson.dumps(answer).decode(), data=answer)
