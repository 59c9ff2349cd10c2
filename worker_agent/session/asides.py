"""What a session asks the small model beside its turns: what to remember of it, what the person may type next.

Nobody waits for either, and neither may spend what an agent needs: the calls are `spare`. An endpoint without the small
model answers with the agent's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from worker_agent import prompts
from worker_agent.api.call import Caller
from worker_agent.api.client import ModelRequest
from worker_agent.api.retry import RetrySchedule
from worker_agent.context.tokens import estimate
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.events import Purpose
from worker_agent.memory_notes import Note
from worker_agent.messages import Message, user
from worker_agent.session import schema
from worker_agent.session.plain_text import said
from worker_agent.structs import replace

MAX_NOTES = 5
NOTES_ROOM = 60_000  # characters of a session that are looked at
TITLES_ROOM = 6_000
NOTES_TOKENS = 4_096
SUGGESTION_ROOM = 6_000
SUGGESTION_LATEST = 6  # messages that a suggestion follows from
SUGGESTION_LENGTH = 120  # characters; what is longer is no line that a person types
SUGGESTION_TOKENS = 512
NO_SUGGESTION = "NOTHING"

_NOTE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
    "required": ["title", "text"],
    "additionalProperties": False,
}
_NOTES: dict[str, Any] = {
    "type": "object",
    "properties": {"notes": {"type": "array", "items": _NOTE}},
    "required": ["notes"],
    "additionalProperties": False,
}


class Asides(Struct, frozen=True, kw_only=True):
    """`small` and `own` are names of models; `schedule` says when a call is tried again, None: not at all."""

    caller: Caller
    small: str
    own: str
    schedule: RetrySchedule | None = None

    async def worth_remembering(self, messages: Sequence[Message], known: Sequence[str]) -> tuple[Note, ...] | None:
        """What of a session is worth a note, where notes titled as `known` are there; None where the answer cannot be read.
        Raises `ModelError`."""
        titles = "\n".join(f"- {title}" for title in known)[:TITLES_ROOM]
        text = f"Notes that are there already:\n{titles or '(none)'}\n\nThe session:\n{said(messages, NOTES_ROOM)}"
        answer = await self._ask("remember", text, NOTES_TOKENS, Purpose.MEMORY, _NOTES)
        if schema.problem(answer, _NOTES) is not None:
            return None
        return tuple(Note(note["title"], note["text"]) for note in schema.parse(answer)["notes"][:MAX_NOTES])

    async def next_prompt(self, messages: Sequence[Message]) -> str | None:
        """What the person may type next, one line; None where that is not plain. Raises `ModelError`."""
        spoken = [message for message in messages if message.kind in ("prompt", "answer")]
        text = said(spoken[-SUGGESTION_LATEST:], SUGGESTION_ROOM)
        return _line(await self._ask("suggest", text, SUGGESTION_TOKENS, Purpose.SUGGESTION)) if text else None

    async def _ask(
        self, prompt: str, text: str, max_tokens: int, purpose: Purpose, output_schema: dict[str, Any] | None = None
    ) -> str:
        request = ModelRequest(
            model=self.small,
            max_tokens=max_tokens,
            effort="low",
            system=(prompts.load(prompt),),
            tools=(),
            messages=(user(text),),
            output_schema=output_schema,
            single=True,
        )
        try:
            answer = await self._answer(request, purpose)
        except ModelError as error:
            if error.kind is not ErrorKind.NOT_FOUND or self.own == self.small:
                raise
            answer = await self._answer(replace(request, model=self.own), purpose)
        return answer.text

    async def _answer(self, request: ModelRequest, purpose: Purpose) -> Message:
        tokens = estimate(request.messages, 4.0)
        return await self.caller.ask(request, tokens, purpose=purpose, schedule=self.schedule, spare=True)


def _line(text: str) -> str | None:
    """The answer as a line to type; None if it is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        return None
    line = "".join(char if char.isprintable() else " " for char in lines[0]).strip().strip("\"'`").strip()
    return line if line and len(line) <= SUGGESTION_LENGTH and line.strip(".").upper() != NO_SUGGESTION else None
