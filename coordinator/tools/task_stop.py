"""`TaskStop`: end a task."""

from __future__ import annotations

import orjson

from coordinator.session.coordinator import Coordinator, StopOutcome
from tasks.errors import Ambiguous, NotFound
from worker_agent import tool_facts
from worker_agent.errors import ToolError
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.words import counted

PARTIAL_CAP = 10_000  # characters


class TaskStopTool(Tool):
    facts = tool_facts.TASK_STOP
    description = "Ends a running task with all its processes. The answer brings what it had written so far."
    input_schema = {
        "type": "object",
        "properties": {"task_id": {"type": "string", "minLength": 1}},
        "required": ["task_id"],
        "additionalProperties": False,
    }

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        try:
            outcome = await self._coordinator.stop(input["task_id"])
        except (NotFound, Ambiguous) as error:
            raise ToolError(str(error)) from None
        return ToolResult(orjson.dumps(_answer(outcome)).decode(), is_error=bool(outcome.survivors))


def _answer(outcome: StopOutcome) -> dict[str, object]:
    task = outcome.task
    answer: dict[str, object] = {
        "message": _message(outcome),
        "task_id": task.id,
        "task_type": str(task.type),
        "status": str(task.status),
    }
    if outcome.ended_now and task.result:
        answer["partial_result"] = task.result[:PARTIAL_CAP]
    return answer


def _message(outcome: StopOutcome) -> str:
    task = outcome.task
    if not outcome.ended_now:
        return f"Task {task.id} had ended already: {task.status}."
    parts = [f"Task {task.id} ({task.description}) was stopped."]
    if outcome.survivors:
        parts.append(f"These processes could not be ended: {'; '.join(outcome.survivors)}.")
    if outcome.undelivered:
        parts.append(f"Not delivered to it: {counted(outcome.undelivered, 'message')}.")
    return " ".join(parts)
