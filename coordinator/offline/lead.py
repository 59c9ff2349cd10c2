"""The coordinator's part: start a worker for each question, wait, have the citations verified, report.

Tasks are known by the description they were started with, their ends by the notifications that the coordinator writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, field

from coordinator.offline.citations import citations
from coordinator.offline.conversation import PLAIN, is_prompt, text_of
from coordinator.offline.plan import Call
from coordinator.offline.plans import verdicts_in
from coordinator.offline.questions import QUESTIONS, prompt_for, verification_prompt
from coordinator.offline.report import HEADING, report
from worker_agent.api.client import ModelRequest
from worker_agent.messages import Message
from worker_agent.words import counted


class _Survey(Struct):
    """What a coordinator's conversation holds of the survey under way. Tasks are known by the description they were
    started with; `tasks` maps it to a task id, or to None if the start failed."""

    goal: str
    tasks: dict[str, str | None] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    done: bool = False
    unread: int = 0  # messages of a person that came while it ran

    def leave_unread(self) -> None:
        self.unread += 1

    def answered(self, message: Message) -> None:
        """Note what the answer starts, and whether it is the report."""
        for use in message.tool_uses:
            if use["name"] == "Agent":
                self.prompts[use["id"]] = use["input"].get("description", "")
        self.done = self.done or (not message.tool_uses and message.text.startswith(HEADING))


class _End(Struct, frozen=True):
    """How a worker ended, as its notification says."""

    status: str
    result: str


VERIFICATION = "Verify cited lines"


def as_coordinator(request: ModelRequest) -> tuple[str, Sequence[Call]]:
    current, ends = _read_survey(request.messages)
    directory = _directory(request)
    if current is None or current.done:
        return f"{PLAIN} The report above stands. Give me a new goal for a new ", []
    if not current.tasks:
        return _start(current.goal, directory)
    waiting = [d for d, task in current.tasks.items() if task is not None and task not in ends]
    if waiting:
        return f"Waiting for {len(waiting)} of {counted(len(current.tasks), 'worker')}: {', '.join(waiting).lower()}.", []
    return _go_on(current, ends, directory)


def _start(goal: str, directory: str | None) -> tuple[str, Sequence[Call]]:
    calls = [
        Call("Agent", {"description": title, "prompt": prompt_for(question, goal, directory)})
        for question, (title, _) in QUESTIONS.items()
    ]
    return f"I have no language model. I survey the directory with {len(calls)} workers side by side.", calls


def _go_on(current: _Survey, ends: dict[str, _End], directory: str | None) -> tuple[str, Sequence[Call]]:
    """All that was started has ended: have the citations verified, or report."""
    sections = {name: _section(current, ends, title) for name, (title, _) in QUESTIONS.items()}
    cited = citations("\n".join(sections.values()))
    if cited and VERIFICATION not in current.tasks:
        prompt = verification_prompt(cited, directory)
        said = f"All reports are here. A fresh worker reads {counted(len(cited), 'cited line')} again."
        return said, [Call("Agent", {"description": VERIFICATION, "prompt": prompt})]
    end = ends.get(current.tasks.get(VERIFICATION) or "")
    held = verdicts_in(end.result) if end else set()
    failure = None if end and end.status == "completed" else f"the verification worker {end.status if end else 'did not start'}"
    return report(current.goal, directory, sections, cited, held, failure if cited else None, current.unread), []


def _section(current: _Survey, ends: dict[str, _End], title: str) -> str:
    end = ends.get(current.tasks.get(title) or "")
    if end is None:
        return "The worker could not be started."
    if end.status != "completed":
        partial = f" What it had written:\n\n{end.result}" if end.result.strip() else ""
        return f"The worker {end.status} before it was done.{partial}"
    return end.result


def _read_survey(messages: Sequence[Message]) -> tuple[_Survey | None, dict[str, _End]]:
    current: _Survey | None = None
    ends: dict[str, _End] = {}
    for message in messages:
        if message.role == "assistant":
            if current is not None:
                current.answered(message)
            continue
        if is_prompt(message):
            if current is None or current.done:
                current = _Survey(message.text)
            else:
                current.leave_unread()
        ends |= _notifications(message)
        if current is not None:
            _note_started(current, message)
    return current, ends


def _note_started(current: _Survey, message: Message) -> None:
    for result in message.tool_results:
        if description := current.prompts.get(result["tool_use_id"]):
            found = re.search(r'"task_id":\s*"([^"]+)"', text_of(result))
            current.tasks[description] = found[1] if found and not result.get("is_error") else None


def _notifications(message: Message) -> dict[str, _End]:
    """The ends of tasks that a message tells of. What workers wrote is escaped, so an element is one element."""
    if message.kind != "attachment" or "<task-notification>" not in message.text:
        return {}
    from xml.etree import ElementTree

    found = {}
    for element in re.findall(r"<task-notification>.*?</task-notification>", message.text, re.DOTALL):
        try:
            root = ElementTree.fromstring(element)
        except ElementTree.ParseError:
            continue  # not from the system: its elements always parse
        found[root.findtext("task-id", "")] = _End(root.findtext("status", ""), root.findtext("result", "") or "")
    return found


def _directory(request: ModelRequest) -> str | None:
    """The working directory, if the context names it."""
    texts = [*request.system, *(m.text for m in request.messages if m.meta)]
    pattern = re.compile(r"^\W*(?:working directory|cwd)\W*[:=]\s*`?([^`\n]+?)`?\s*$", re.IGNORECASE | re.MULTILINE)
    return next((match[1] for text in texts if (match := pattern.search(text))), None)
