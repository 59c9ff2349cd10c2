"""What happens in a session while a prompt is worked on, as frozen values, each of its own type.

`task_id` names the worker that it happened in; None is the agent that the program talks to. `match` over `Event` needs a last
`case _`: further types may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator import observed as seen
from coordinator.interface.results import Result, Task, task_of
from worker_agent import events


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of an answer, as it is written."""

    text: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of what a model thinks before it answers, where the model shows it."""

    text: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of an answer that is whole; empty ones are left out."""

    text: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call passed to its tool. `activity` says it in a few words."""

    id: str
    tool: str
    input: Mapping[str, Any]
    activity: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """`duration` in seconds."""

    id: str
    tool: str
    is_error: bool
    duration: float
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """A task was created, got on, or ended."""

    task: Task

    @property
    def task_id(self) -> str:
        return self.task.id


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know: a retry, a summary, what a file means. `kind` is one word for programs."""

    kind: str
    text: str
    task_id: str | None = None


Event = TextDelta | ThinkingDelta | Answer | ToolStarted | ToolFinished | TaskChanged | Notice | Result
"""`Result` comes once a prompt, and last."""


def event_of(observed: seen.Observed) -> Event | None:
    """What a program sees of it; None where it is nothing for programs. Results of turns are none: a prompt has one result."""
    task_id = observed.task_id
    match observed.event:
        case seen.TaskChanged(task=record):
            return TaskChanged(task_of(record))
        case events.TextDelta(text=text):
            return TextDelta(text, task_id)
        case events.ThinkingDelta(text=text):
            return ThinkingDelta(text, task_id)
        case events.MessageAdded(message=message) if message.kind == "answer" and message.text:
            return Answer(message.text, task_id)
        case events.ToolStarted() as started:
            return ToolStarted(started.tool_use_id, started.name, started.input, started.activity, task_id)
        case events.ToolFinished() as finished:
            return ToolFinished(finished.tool_use_id, finished.name, finished.is_error, finished.duration, task_id)
        case events.Notice(kind=kind, text=text):
            return Notice(str(kind), text, task_id)
    return None
