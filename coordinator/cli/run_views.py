"""What a person or a program sees of a run while it goes on: four views over the same observed events.

A view is called for every event (`on`), now and then (`tick`), and once at the end (`finish`). Views hold what they need
to draw and nothing else; drawing is in `render.py`, lines of stream-json in `stream_json.py`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from coordinator.cli import markdown, render
from coordinator.cli.console import Console
from coordinator.cli.stream_json import StreamJson, init_line
from coordinator.cli.tree import Spent
from coordinator.observed import CallWaits, Observed, TaskChanged
from coordinator.views.terminal_text import literal, one_line
from coordinator.views.values import approval_json, task_detail_json
from tasks.records import ApprovalRecord
from worker_agent.events import Notice, NoticeKind
from worker_agent.words import counted

TELLING = frozenset(NoticeKind) - {NoticeKind.API_ERROR}  # that one the result tells
ENDED = frozenset({"completed", "failed", "killed"})


class Started(Struct, frozen=True, kw_only=True):
    """What is known of a session when it begins."""

    session_id: str
    cwd: str
    model: str
    tools: tuple[str, ...] = ()
    permission_mode: str = "default"
    version: str = ""
    offline: bool = False
    mcp_servers: tuple[tuple[str, str], ...] = ()  # names, and how each stands
    spent: Callable[[], Spent | None] = lambda: None  # what the session has used by now, as far as known; at once
    agents: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()  # names, and where each lies


class View(Protocol):
    def started(self, session: Started) -> None: ...

    def on(self, observed: Observed) -> None: ...

    def tick(self) -> None: ...

    def pause(self) -> None:
        """Keep off the terminal until `resume`: a person is asked something."""
        ...

    def resume(self) -> None: ...

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """The run is over; `result` is the documented result object, None when there is none."""
        ...


class Still:
    """What most views do about most things: nothing."""

    def started(self, session: Started) -> None:
        return None

    def on(self, observed: Observed) -> None:
        return None

    def tick(self) -> None:
        return None

    def pause(self) -> None:
        return None

    def resume(self) -> None:
        return None


def tell(console: Console, observed: Observed) -> None:
    """A line for what a person should know at once."""
    match observed.event:
        case Notice(kind, text) if kind in TELLING:
            who = f"{observed.task_id}: " if observed.task_id else ""
            console.note(f"{who}{one_line(text)}")
        case CallWaits(call, is_over=False):
            console.note(waiting_words(call))


def waiting_words(call: ApprovalRecord) -> str:
    what = one_line(call.shown, 120)
    return f"▲ {call.task_id or 'the coordinator'} needs approval: {call.tool} {what}  (coordinator approve {call.id})"


def task_values(changed: TaskChanged) -> dict[str, Any]:
    return task_detail_json(changed.task, str(changed.task.status), time.time())


class JsonView(Still):
    """One object at the end on stdout; what a person should know meanwhile on stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on(self, observed: Observed) -> None:
        tell(self._console, observed)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            self._console.json(result)
            tell_failure(self._console, result)


class StreamJsonView(Still):
    """One object a line, as things happen."""

    def __init__(self, console: Console, *, partial_messages: bool, hook_events: bool = False) -> None:
        self._console = console
        self._partial = partial_messages
        self._hook_events = hook_events
        self._lines: StreamJson | None = None
        self._session_id = ""

    def started(self, session: Started) -> None:
        self.begin(session.session_id)
        self.announce(session)

    def begin(self, session_id: str) -> None:
        """From now on events can be told."""
        self._session_id = session_id
        self._lines = StreamJson(session_id, partial_messages=self._partial, hook_events=self._hook_events)

    def announce(self, session: Started) -> None:
        self.write(
            init_line(
                session.session_id,
                cwd=session.cwd,
                model=session.model,
                tools=session.tools,
                permission_mode=session.permission_mode,
                version=session.version,
                mcp_servers=session.mcp_servers,
                agents=session.agents,
                skills=session.skills,
                plugins=session.plugins,
            )
        )

    def on(self, observed: Observed) -> None:
        assert self._lines is not None, "a session is announced before its first event"
        event = observed.event
        match event:
            case TaskChanged():
                lines = self._lines.task(task_values(event), event.asked_by)
            case CallWaits(call, is_over):
                lines = self._lines.approval(approval_json(call, call.agent_id), is_over)
            case _:
                lines = self._lines.event(observed.task_id, event)
        for line in lines:
            self.write(line)

    def write(self, line: Mapping[str, Any]) -> None:
        """Print a line; each names its session, and has an id of its own, which a reader may know it by."""
        self._console.json_line({"session_id": self._session_id, **line, "uuid": line.get("uuid") or str(uuid.uuid4())})

    def finish(self, result: Mapping[str, Any] | None) -> None:
        for line in self._lines.rest() if self._lines else ():
            self.write(line)
        if result is not None:
            self.write(result)
            tell_failure(self._console, result)


class Transitions:
    """A line for each task that begins or ends, and none for what happens between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._statuses: dict[str, str] = {}

    def tell(self, changed: TaskChanged) -> None:
        id, status = changed.task.id, str(changed.task.status)
        before = self._statuses.get(id)
        self._statuses[id] = status
        if status == before or (before is None and status == "pending"):
            return
        task = task_values(changed)
        sign = render.SIGNS[status][0]
        more = [render.span(task["duration_ms"]), counted(task["tool_uses"], "tool")] if status in ENDED else []
        why = render.now_words(task) if status in ("failed", "killed") else ""
        words = [f"{sign} {task['id']} {status}", one_line(task["description"]), *more, *([one_line(why)] if why else [])]
        self._console.note("  ".join(words))


class PlainView(Still):
    """The answer on stdout, what happens on stderr, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._transitions = Transitions(console)

    def started(self, session: Started) -> None:
        self._console.note(headline(session))

    def on(self, observed: Observed) -> None:
        match observed.event:
            case TaskChanged() as changed:
                self._transitions.tell(changed)
            case _:
                tell(self._console, observed)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            print_answer(self._console, result)


def headline(session: Started) -> str:
    model = f"{session.model} (no language model)" if session.offline else session.model
    return f"session {session.session_id}  model {one_line(model)}  permission {session.permission_mode}"


def print_answer(console: Console, result: Mapping[str, Any], *, rendered: bool = False) -> None:
    """The answer to stdout, as it is or with its Markdown rendered; what went wrong, and what was denied, to stderr."""
    text = literal(str(result.get("result") or "")).strip("\n")
    if text and rendered:
        for line in markdown.lines(text):
            console.styled(line)
    elif text:
        console.line(text)
    tell_failure(console, result)
    for denial in result.get("permission_denials") or ():
        reason = denial.get("reason") or "needs a person's consent"
        console.note(f"denied: {one_line(str(denial.get('tool_name')))}: {one_line(str(reason))}")


def tell_failure(console: Console, result: Mapping[str, Any]) -> None:
    """What went wrong, in one line of stderr; lines that an error brings along follow it."""
    if not result.get("is_error"):
        return
    errors = [str(error).splitlines() or [""] for error in result.get("errors") or ("the run failed",)]
    console.error("; ".join(one_line(first) for first, *_ in errors), [literal(line) for _, *more in errors for line in more])
