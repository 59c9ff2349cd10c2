"""`Skill`: the text of a skill, when the model decides to follow one.

The listing stands in the tool's description, made once: agents of one definition send the same bytes. Commands inside a
skill run only where a runner was given.
"""

from __future__ import annotations

from worker_agent import tool_facts
from worker_agent.errors import ConfigError, ToolError
from worker_agent.skills import Runner, SkillIndex
from worker_agent.skills import Skill as Described
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult

_DESCRIPTION = (
    "Loads a skill: instructions for one kind of work, written by the person or the project. When a skill fits the "
    "task, load it before you begin and follow what it says; do not guess what it holds. Load each only once. Skills "
    "here:\n"
)


class Skill(Tool):
    facts = tool_facts.SKILL
    input_schema = {
        "type": "object",
        "properties": {
            "skill": {"type": "string", "minLength": 1, "maxLength": 200, "description": "The name of the skill"},
            "args": {"type": "string", "maxLength": 20_000, "description": "Arguments, as the skill asks for them"},
        },
        "required": ["skill"],
        "additionalProperties": False,
    }

    def __init__(self, index: SkillIndex, run: Runner | None = None) -> None:
        """`run` executes the commands inside skills, under the permission rules; None leaves them as text. Reads the
        disk when `index` has not done so yet."""
        self.index, self.run = index, run
        self.description = _DESCRIPTION + (index.listing() or "(none yet; some come up next to files you read)")

    def is_read_only(self, input: Input) -> bool:
        return self.run is None

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        try:
            skill = self.index.get(input["skill"])
            if not skill.model_invocable:
                raise ToolError(f"The skill {skill.name} is for the person alone; they start it with /{skill.name}.")
            body = await self._body(skill, input.get("args", ""))
        except ConfigError as error:
            raise ToolError(_sentence(str(error))) from None
        head = f"Skill {skill.name}. Paths in it start at {skill.directory}\n"
        if (agent := _worker(skill)) is not None:
            head += f"It asks to be done by a worker of its own{agent}: hand it on where you can.\n"
        return ToolResult(f"{head}\n{body}", data={"skill": skill.name, "allowedTools": list(skill.allowed_tools)})

    async def _body(self, skill: Described, arguments: str) -> str:
        if self.run is None:
            return self.index.load(skill.name, arguments)
        return await self.index.load_running(skill.name, arguments, self.run)

    def activity(self, input: Input) -> str:
        return f"Skill {input.get('skill', '')} {input.get('args', '')}".rstrip()


def _worker(skill: Described) -> str | None:
    if skill.fields.get("context") != "fork":
        return None
    agent = skill.fields.get("agent")
    return f" (type {agent})" if isinstance(agent, str) else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
