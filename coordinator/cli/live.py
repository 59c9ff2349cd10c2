"""A run on a terminal: a tree of its tasks that is drawn anew in place, a line above it for each transition, and at the end the
answer with its Markdown rendered.

What a frame costs goes by what it shows, not by how many tasks there are: tasks are kept in their states, and only those
that are shown become values.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.cli import tree
from coordinator.cli.console import Console, Region
from coordinator.cli.doing import Doing
from coordinator.cli.run_views import (
    TELLING,
    JsonView,
    PlainView,
    Started,
    Still,
    StreamJsonView,
    Transitions,
    View,
    headline,
    print_answer,
    waiting_words,
)
from coordinator.observed import CallWaits, Observed, TaskChanged
from coordinator.views.terminal_text import one_line
from coordinator.views.values import ORDER, task_json
from tasks.records import ApprovalRecord, TaskRecord
from worker_agent.events import Event, Notice, NoticeKind

TOLD = 3  # notices that stay below the tree, each until newer ones take its line
FRAME = 0.25  # seconds between two frames at least
TERMINAL = frozenset({"completed", "failed", "killed"})


class LiveView(Still):
    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskRecord] = {}
        self._states: dict[str, dict[str, None]] = {state: {} for state in ORDER}  # ids, the oldest in it first
        self._doing: dict[str | None, Doing] = {None: Doing()}  # None: the coordinator
        self._waits: dict[str, ApprovalRecord] = {}
        self._transitions = Transitions(console)
        self._session: Started | None = None
        self._drawn = float("-inf")
        self._told: deque[str] = deque(maxlen=TOLD)
        self._region: Region | None = None

    def started(self, session: Started) -> None:
        self._session = session
        self.resume()
        self.tick()

    def resume(self) -> None:
        self._region = self._console.region()

    def pause(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None

    def on(self, observed: Observed) -> None:
        match observed.event:
            case TaskChanged() as changed:
                self._tasks[changed.task.id] = changed.task
                self._place(changed.task.id)
                self._transitions.tell(changed)
            case Notice(NoticeKind.TOOL_USE_SUMMARY, text):
                self._console.note(one_line(text))  # above what is drawn, where it stays
            case Notice(kind, text):
                if kind in TELLING:
                    self._told.append(f"{observed.task_id}: {text}" if observed.task_id else text)
            case CallWaits(call, is_over):
                self._wait(call, is_over)
            case event:
                self._do(observed.task_id, event)
        self.tick()

    def _do(self, task_id: str | None, event: Event) -> None:
        if task_id not in self._doing:
            self._doing[task_id] = Doing()
        self._doing[task_id].on(event)

    def _wait(self, call: ApprovalRecord, is_over: bool) -> None:
        if is_over:
            self._waits.pop(call.id, None)
        elif call.id not in self._waits:
            self._waits[call.id] = call
            self._console.note(waiting_words(call))
        if call.task_id in self._tasks:
            self._place(call.task_id)

    def _place(self, id: str) -> None:
        """Put the task among those of its state."""
        task, waits = self._tasks[id], any(call.task_id == id for call in self._waits.values())
        state = "waiting" if waits and task.status == "running" else str(task.status)
        if id in self._states[state]:
            return
        for ids in self._states.values():
            ids.pop(id, None)
        self._states[state][id] = None
        if state in TERMINAL:
            self._doing.pop(id, None)

    def tick(self) -> None:
        now = time.monotonic()
        if self._region is None or now - self._drawn < FRAME:
            return
        self._drawn = now
        width, height = self._console.size
        self._region.draw(tree.scene_lines(self._scene(height), width, height))

    def _scene(self, height: int) -> tree.Scene:
        waits = [waiting_words(call) for call in self._waits.values() if call.task_id is None]
        return tree.Scene(
            head=headline(self._session) if self._session else "",
            counts=self._counts(),
            rows=list(self._rows(height)),
            spent=self._spent(),
            told=[*self._told, *waits],
            said=self._doing[None].last_line,
        )

    def _counts(self) -> dict[str, int]:
        return {state: len(ids) for state, ids in self._states.items() if ids}

    def _rows(self, room: int) -> Iterator[tree.Row]:
        """As many as a terminal of so many lines may show; of what ended the newest first."""
        now = time.time()
        for state, ids in self._states.items():
            for id in reversed(ids) if state in TERMINAL else ids:
                if room <= 0:
                    return
                room -= 1
                yield self._row(id, now)

    def _row(self, id: str, now: float) -> tree.Row:
        call = next((call for call in self._waits.values() if call.task_id == id), None)
        task, doing = self._tasks[id], self._doing.get(id)
        values = task_json(task, str(task.status), now, call.id if call else None)
        words = f"{call.id}: {call.tool} {call.shown[: tree.SAID]}" if call else doing.words if doing else ""
        return tree.Row(values, tree.words_of(values, words), doing.turns if doing else None)

    def _spent(self) -> tree.Spent | None:
        return self._session.spent() if self._session else None

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self.pause()
        if counts := self._counts():
            width, _ = self._console.size
            self._console.styled(tree.summary(counts, self._spent(), width))
        if result is not None:
            self._console.line()
            print_answer(self._console, result, rendered=True)


def choose(
    console: Console, output_format: str, *, print_only: bool, partial_messages: bool, hook_events: bool = False
) -> View:
    """The view for these flags and this stdout."""
    if output_format == "json":
        return JsonView(console)
    if output_format == "stream-json":
        return StreamJsonView(console, partial_messages=partial_messages, hook_events=hook_events)
    if print_only or not console.has_colour:
        return PlainView(console)
    return LiveView(console)
