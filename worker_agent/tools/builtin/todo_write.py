"""`TodoWrite`: the agent's plan, kept where the agent and its observers see it: in the conversation itself."""

from __future__ import annotations

from worker_agent import tool_facts
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.words import counted


class TodoWrite(Tool):
    facts = tool_facts.TODO_WRITE
    description = (
        "Writes your plan: the whole list of steps, each `pending`, `in_progress` or `completed`. Use it for work of "
        "three steps or more; keep one step in progress, and mark a step completed as soon as it is, not before."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "maxItems": 200,
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string", "minLength": 1, "description": "What is to be done"},
                        "status": {"enum": ["pending", "in_progress", "completed"]},
                        "activeForm": {
                            "type": "string",
                            "description": "The same as something going on: `Running tests`",
                        },
                    },
                    "required": ["content", "status"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["todos"],
        "additionalProperties": False,
    }

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        if sum(todo["status"] == "in_progress" for todo in input["todos"]) > 1:
            return "More than one step is in progress. Finish one, or set the others back to pending."
        return None

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        todos = input["todos"]
        done = sum(todo["status"] == "completed" for todo in todos)
        now = next((todo["content"] for todo in todos if todo["status"] == "in_progress"), None)
        text = f"Plan noted: {done} of {counted(len(todos), 'step')} completed" + (f"; now: {now}." if now else ".")
        return ToolResult(text, data={"newTodos": todos})

    def activity(self, input: Input) -> str:
        current = (t for t in input.get("todos", ()) if t.get("status") == "in_progress")
        step = next(current, None)
        return (step.get("activeForm") or step.get("content") or "TodoWrite") if step else "TodoWrite"
