"""What a person or a program sees of a run while it goes on: four views over the same observed events.

A view is called for every event (`on`), now and then (`tick`), and once at the end (`finish`). Views hold what they need
to draw and nothing else; drawing is in `render.py`, lines of stream-json in `stream_json.py`.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.cli import render
from coordinator.cli.console import Console, Region
from coordinator.cli.stream_json import StreamJson, init_line
from coordinator.observed import CallWaits, Observed, TaskChanged
from coordinator.views.terminal_text import literal, one_line
from coordinator.views.values import approval_json, task_detail_json
from tasks.records import ApprovalRecord
from worker_agent.events import MessageAdded, Notice, NoticeKind, TextDelta, Tombstone
from worker_agent.words import counted

TELLING = frozenset(NoticeKind) - {NoticeKind.API_ERROR}  # that one the result tells
TOLD = 3  # notices that stay in the live view, each until newer ones take its line
FRAME = 0.125  # seconds between two frames at least
ENDED = frozenset({"completed", "failed", "killed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What is known of a session when it begins."""

    session_id: str
    cwd: str
    model: str
    tools: tuple[str, ...] = ()
    permission_mode: str = "default"
    version: str = ""
    offline: bool = False
    mcp_servers: tuple[tuple[str, str], ...] = ()  # names, and how each stands


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

    def __init__(self, console: Console, *, partial_messages: bool) -> None:
        self._console = console
        self._partial = partial_messages
        self._lines: StreamJson | None = None

    def started(self, session: Started) -> None:
        self._lines = StreamJson(session.session_id, partial_messages=self._partial)
        self.write(
            init_line(
                session.session_id,
                cwd=session.cwd,
                model=session.model,
                tools=session.tools,
                permission_mode=session.permission_mode,
                version=session.version,
                mcp_servers=session.mcp_servers,
            )
        )

    def on(self, observed: Observed) -> None:
        assert self._lines is not None, "a session is announced before its first event"
        event = observed.event
        match event:
            case TaskChanged():
                lines = self._lines.task(task_values(event))
            case CallWaits(call, is_over):
                lines = self._lines.approval(approval_json(call, call.agent_id), is_over)
            case _:
                lines = self._lines.event(observed.task_id, event)
        for line in lines:
            self.write(line)

    def write(self, line: Mapping[str, Any]) -> None:
        """Print a line; each has an id of its own, which a reader may know it by."""
        self._console.json_line(dict(line) | {"uuid": line.get("uuid") or str(uuid.uuid4())})

    def finish(self, result: Mapping[str, Any] | None) -> None:
        for line in self._lines.rest() if self._lines else ():
            self.write(line)
        if result is not None:
            self.write(result)
            tell_failure(self._console, result)


class PlainView(Still):
    """The answer on stdout, what happens on stderr, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._statuses: dict[str, str] = {}

    def started(self, session: Started) -> None:
        self._console.note(headline(session))

    def on(self, observed: Observed) -> None:
        match observed.event:
            case TaskChanged() as changed:
                self._task(task_values(changed))
            case _:
                tell(self._console, observed)

    def _task(self, task: Mapping[str, Any]) -> None:
        before, status = self._statuses.get(task["id"]), task["status"]
        self._statuses[task["id"]] = status
        if status == before or (before is None and status == "pending"):
            return
        sign = render.SIGNS[status][0]
        more = [render.span(task["duration_ms"]), counted(task["tool_uses"], "tool")] if status in ENDED else []
        why = render.now_words(task) if status in ("failed", "killed") else ""
        words = [f"{sign} {task['id']} {status}", one_line(task["description"]), *more, *([one_line(why)] if why else [])]
        self._console.note("  ".join(words))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            print_answer(self._console, result)


class LiveView(Still):
    """A tree of the tasks that is drawn anew in place, then the answer."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, Mapping[str, Any]] = {}
        self._waits: dict[str, ApprovalRecord] = {}
        self._head = ""
        self._said = ""
        self._told: deque[str] = deque(maxlen=TOLD)
        self._drawn = 0.0
        self._region: Region | None = None

    def started(self, session: Started) -> None:
        self._head = headline(session)
        self.resume()

    def resume(self) -> None:
        self._region = self._console.region()

    def pause(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None

    def on(self, observed: Observed) -> None:
        match observed.event:
            case TaskChanged() as changed:
                self._tasks[changed.task.id] = task_values(changed)
            case TextDelta(text) if observed.task_id is None:
                self._said = (self._said + text)[-400:]
            case MessageAdded() | Tombstone() if observed.task_id is None:
                self._said = ""
            case Notice(NoticeKind.TOOL_USE_SUMMARY, text):
                self._console.note(one_line(text))  # above what is drawn, where it stays
            case Notice(kind, text) if kind in TELLING:
                self._told.append(f"{observed.task_id}: {text}" if observed.task_id else text)
            case CallWaits(call, is_over):
                self._waits.pop(call.id, None)
                if not is_over:
                    self._waits[call.id] = call
            case _:
                return
        self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if self._region is None or now - self._drawn < FRAME:
            return
        self._drawn = now
        size = self._console.size
        waits = {call.task_id: call.id for call in reversed(self._waits.values())}
        tasks = [_aged(task) | {"needs_approval": waits.get(task["id"])} for task in self._tasks.values()]
        told = [*self._told, *(waiting_words(call) for call in self._waits.values())][-TOLD:]
        last = self._said.rsplit("\n", 1)[-1]
        self._region.draw(render.run_lines(self._head, tasks, last, *size, told=told))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self.pause()
        size = self._console.size
        for line in render.run_lines(self._head, list(self._tasks.values()), "", size[0], 10_000):
            self._console.styled(line)
        if result is not None:
            self._console.line()
            print_answer(self._console, result)


def _aged(task: Mapping[str, Any]) -> dict[str, Any]:
    """A running task's age as of now."""
    if task["status"] != "running" or not task["started_at"]:
        return dict(task)
    started = render.seconds_of(task["started_at"])
    return {**task, "duration_ms": round((time.time() - started) * 1000)}


def headline(session: Started) -> str:
    model = f"{session.model} (no language model)" if session.offline else session.model
    return f"session {session.session_id}  model {one_line(model)}  permission {session.permission_mode}"


def print_answer(console: Console, result: Mapping[str, Any]) -> None:
    """The answer to stdout; what went wrong, and what was denied, to stderr."""
    text = literal(str(result.get("result") or "")).strip("\n")
    if text:
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


def choose(console: Console, output_format: str, *, print_only: bool, partial_messages: bool) -> View:
    """The view for these flags and this stdout."""
    if output_format == "json":
        return JsonView(console)
    if output_format == "stream-json":
        return StreamJsonView(console, partial_messages=partial_messages)
    return PlainView(console) if print_only or not console.has_colour else LiveView(console)
