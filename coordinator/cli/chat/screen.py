"""The chat on a terminal: what is said scrolls above, and around the line one types on stands how things are.

What was sent is *queued* until the coordinator has read it; then it stands in what scrolls, where it was read. A question about
permission stands in full in what scrolls, and in short above the line until it is answered, here or from elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coordinator.agents.asking import AT_TERMINAL
from coordinator.cli import render
from coordinator.cli.approval import NO, YES
from coordinator.cli.chat import bottom
from coordinator.cli.chat.bottom import Bottom, Question
from coordinator.cli.chat.commands import own_commands
from coordinator.cli.chat.completing import Offering, Offers
from coordinator.cli.chat.conversation import Conversation
from coordinator.cli.chat.editor import Editor
from coordinator.cli.chat.files import Files
from coordinator.cli.chat.history import Typed
from coordinator.cli.context import Context
from coordinator.cli.render import Piece
from coordinator.cli.run_flags import MODES
from coordinator.cli.run_views import ENDED, TELLING, Started, headline, task_values
from coordinator.observed import CallWaits, Observed, TaskChanged
from coordinator.views.terminal_text import literal, one_line
from coordinator.views.values import approval_json
from tasks import approvals, sessions
from tasks.errors import StoreError
from tasks.records import ApprovalRecord, ApprovalStatus
from worker_agent.api.models import ALIASES
from worker_agent.config import secret_values
from worker_agent.events import MessageAdded, Notice, PromptSuggested, RequestStarted, Result, TextDelta, Tombstone, ToolStarted
from worker_agent.loop.reasons import TerminalReason
from worker_agent.messages import Message
from worker_agent.redaction import Redactor
from worker_agent.tools.base import Allow, Ask, Deny, Input, Tool, ToolContext
from worker_agent.tools.trust import repository_root
from worker_agent.words import counted

if TYPE_CHECKING:
    from prompt_toolkit.input import Input as Keys
    from prompt_toolkit.output import Output

    from coordinator.session.handle import SessionHandle

ALWAYS = frozenset({"a", "always"})
LATE = 3.0  # seconds after a question in which a bare yes or no is meant for it, and no message
INTERRUPTED = frozenset({TerminalReason.ABORTED_STREAMING, TerminalReason.ABORTED_TOOLS})
SPAWNS = "Agent"  # a call that the line of its task tells
OFFERED = 30  # sessions


class Queued(Struct):
    typed: str
    sent: str


class ChatScreen:
    """The parts of one chat on a terminal, as `Drive` takes them: its view, its approver, what runs beside it."""

    def __init__(
        self,
        cli: Context,
        lines: Iterable[str],
        cwd: Path,
        *,
        goal: str | None = None,
        input: Keys | None = None,
        output: Output | None = None,
    ) -> None:
        """`goal` is the prompt that it begins with."""
        self._console = cli.console
        self._goal = goal
        self.conversation = Conversation(cli, self, lines)
        self.editor = Editor(
            cli.console,
            above=lambda width, height: bottom.above(self._shown(), width, height),
            below=lambda width, height: bottom.below(self._shown(), width, height),
            on_line=self._line,
            on_stop=self._stop,
            on_end=self.conversation.leave,
            on_gone=self._gone,
            history=Typed(cli.paths.typed(repository_root(cwd)), Redactor(secret_values())),
            completer=Offering(Files(cwd), self._own_commands, self._words),
            input=input,
            output=output,
        )
        self._handle: SessionHandle | None = None
        self._said, self._streamed, self._printed = "", False, 0
        self._queued: list[Queued] = []
        self._tasks: dict[str, Mapping[str, Any]] = {}
        self._waits: dict[str, ApprovalRecord] = {}
        self._asked_at = 0.0  # when the oldest question became that, on the monotonic clock
        self._answered_at = float("-inf")  # the last of them
        self._doing: str | None = None
        self._turn_began = 0.0
        self._session: Started | None = None
        self._now_shown: Bottom | None = None  # None: something has changed

    # ── as the view of a run ───────────────────────────────────────────────────────────────────────────────────────

    def started(self, session: Started) -> None:
        self._session = session
        self._console.note(f"{headline(session)}\n/help lists commands; Ctrl+D leaves.")
        if self._goal:
            self._echo(self._goal)

    def ready(self, handle: SessionHandle) -> None:
        self._handle = handle
        self.conversation.ready(handle)

    def pause(self) -> None:
        return None

    def resume(self) -> None:
        return None

    def tick(self) -> None:
        """Ages and clocks go on without an event; nothing is drawn that has not changed."""
        before, self._now_shown = self._now_shown, None
        if self._shown() != before:
            self.editor.refresh()

    def _shown(self) -> Bottom:
        """How things stand, worked out once for all drawings until something changes: every key draws."""
        if self._now_shown is None:
            self._now_shown = self._bottom()
        return self._now_shown

    def _refresh(self) -> None:
        """Something a person waits to see has changed; all else is seen at the next tick."""
        self._now_shown = None
        self.editor.refresh()

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._flush("")
        self._doing = None
        if result is not None:
            self._console.note(f"coordinator chat -r {result['session_id']} goes on with this session")

    def on(self, observed: Observed) -> None:
        match observed.event:
            case TaskChanged() as changed:
                self._task(task_values(changed))
            case CallWaits(call, is_over):
                self._call(call, is_over)
                self._refresh()
            case Notice(kind, text) if kind in TELLING:
                who = f"{self.called(observed.task_id)}: " if observed.task_id else ""
                self._console.note(f"{who}{one_line(text)}")
            case event if observed.task_id is None:
                self._turn(event)
                self._refresh()

    # ── the coordinator's turn ─────────────────────────────────────────────────────────────────────────────────────

    def _turn(self, event: object) -> None:
        match event:
            case RequestStarted():
                self._do("thinking")
            case TextDelta(text):
                self._do("writing")
                self._stream(text)
            case ToolStarted(name=name, activity=activity):
                self._do(activity)
                if name != SPAWNS:
                    self._console.styled((Piece(f"→ {one_line(activity)}", "dim"),))
            case MessageAdded(message) if message.kind == "answer":
                self._flush(message.text)
            case MessageAdded(message) if message.kind == "prompt":
                self._read(message)
            case Tombstone(reason=reason):
                if self._printed:
                    self._console.note(f"(what was written of this answer does not count: {one_line(reason)})")
                self._said, self._streamed, self._printed = "", False, 0
            case Result() as result:
                self._ended(result)
            case PromptSuggested(text) if self._doing is None:
                self.editor.suggest(one_line(text))

    def _do(self, doing: str) -> None:
        if self._doing is None:
            self._turn_began = time.monotonic()
            self.editor.suggest("")
        self._doing = doing

    def _ended(self, result: Result) -> None:
        self._doing = None
        if result.error and result.reason not in INTERRUPTED:  # that was told when it was done
            self._console.error(literal(result.error))
        elif not result.turns:  # a command's answer: no model said it, so nothing has shown it yet
            self._console.line(literal(result.text))

    def _stream(self, text: str) -> None:
        *lines, self._said = (self._said + text).split("\n")
        self._streamed = True
        self._printed += len(lines)
        for line in lines:
            self._console.line(literal(line))

    def _flush(self, whole: str) -> None:
        rest = self._said if self._streamed else whole
        self._said, self._streamed, self._printed = "", False, 0
        if rest:
            self._console.line(literal(rest))

    # ── as the sight of a conversation ─────────────────────────────────────────────────────────────────────────────

    def queued(self, typed: str, sent: str) -> None:
        self._queued.append(Queued(typed, sent))
        self._refresh()

    def refused(self, sent: str) -> None:
        self._queued = [one for one in self._queued if one.sent != sent]

    def done(self) -> None:
        self._refresh()

    def _read(self, message: Message) -> None:
        """The coordinator has read what somebody sent: this chat, or another terminal."""
        mine = next((one for one in self._queued if message.text.startswith(one.sent)), None)
        if mine is not None:
            self._queued.remove(mine)
        self._echo(mine.typed if mine is not None else message.text)

    def _echo(self, text: str) -> None:
        first, *more = literal(text).split("\n")
        for line in ("", f"> {first}", *(f"  {line}" for line in more)):
            self._console.styled((Piece(line, "bold"),))

    # ── workers, and what waits ────────────────────────────────────────────────────────────────────────────────────

    def called(self, task_id: str | None) -> str:
        """Who a task is, for a person."""
        if task_id is None:
            return "the coordinator"
        task = self._tasks.get(task_id)
        name = one_line(task["name"] or task["agent"] or "") if task else ""
        return f"{name} ({task_id})" if name else task_id

    def _task(self, task: Mapping[str, Any]) -> None:
        before, status = self._tasks.get(task["id"]), task["status"]
        self._tasks[task["id"]] = task
        if (before is not None and before["status"] == status) or (before is None and status == "pending"):
            return
        sign, style = render.SIGNS[status]
        spent = [render.span(task["duration_ms"]), counted(task["tool_uses"], "tool")] if status in ENDED else []
        why = render.now_words(task) if status in ("failed", "killed") else ""
        words = [status, one_line(task["description"] or ""), *spent, one_line(why)]
        told = "  ".join(word for word in words if word)
        self._console.styled((Piece(f"{sign} {self.called(task['id'])} ", style), Piece(told)))

    def _call(self, call: ApprovalRecord, is_over: bool) -> None:
        front = next(iter(self._waits), None)
        if is_over:
            self._waits.pop(call.id, None)
            self._tell_answer(call)
        else:
            self._waits[call.id] = call
            for line in render.approval(approval_json(call, self.called(call.task_id)) | {"task_id": None}, time.time()):
                self._console.styled(line)
            self.editor.ring()
        if next(iter(self._waits), None) != front:
            self._asked_at = self._answered_at = time.monotonic()

    def _tell_answer(self, call: ApprovalRecord) -> None:
        assert self._handle is not None
        try:
            record = self._handle.read(lambda conn: approvals.get(conn, call.id))
        except StoreError:
            return
        if record.answered_by == AT_TERMINAL:
            return  # the command that answered has told it
        said = {ApprovalStatus.TAKEN: "allowed", ApprovalStatus.APPROVED: "allowed", ApprovalStatus.DENIED: "denied"}
        by = f" by {record.answered_by}" if record.answered_by else ""
        word = said.get(record.status, "does not wait any more")
        self._console.note(f"  {call.id} {word}{by if record.status in said else ''}: {call.tool} {one_line(call.shown, 80)}")

    async def ask(self, tool: Tool, input: Input, ask: Ask, context: ToolContext) -> Allow | Deny:
        """As `Approver.ask`: the person is there. Their answer is stored as those from elsewhere are, so nothing comes here."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    # ── what a person types ────────────────────────────────────────────────────────────────────────────────────────

    def _line(self, text: str, began: float) -> None:
        word = text.strip().lower()
        call = next(iter(self._waits.values()), None)
        if word not in YES | NO | ALWAYS or (call is None and time.monotonic() - self._answered_at > LATE):
            self.conversation.line(text)
        elif call is None:
            self._console.note(f"{word!r} is not sent: the question was answered before")
        elif began < self._asked_at:
            self._console.note(f"{word!r} was typed before this question stood here: answer again, or deny it")
        elif word in ALWAYS:
            self.conversation.at_once(f"/approve {call.id} --always")
        else:
            self.conversation.at_once(f"/approve {call.id}" if word in YES else f"/deny {call.id}")

    def _stop(self) -> None:
        if self._handle is not None and self._handle.stop_turn():
            self._console.note("stopped; workers go on")

    def _gone(self) -> None:
        self._console.notice_hangup()
        self.conversation.leave()

    # ── what is shown and offered ──────────────────────────────────────────────────────────────────────────────────

    def _bottom(self) -> Bottom:
        waits = {call.task_id: call for call in reversed(self._waits.values())}
        now = time.time()
        live = [task for task in self._tasks.values() if task["status"] not in ENDED]
        is_asked = None in waits and self._doing is not None
        return Bottom(
            said=self._said,
            queued=tuple(one.typed for one in self._queued),
            question=self._question(),
            tasks=[_aged(task, now) | _asking(waits.get(task["id"])) for task in live],
            doing="waits for you" if is_asked else self._doing,
            is_leaving=self.conversation.has_left,
            since=float(round(time.monotonic() - self._turn_began)) if self._doing is not None else 0.0,
            cost=self._cost(),
            facts=self._facts(),
        )

    def _question(self) -> Question | None:
        call = next(iter(self._waits.values()), None)
        if call is None:
            return None
        return Question(
            id=call.id,
            who=self.called(call.task_id),
            tool=call.tool,
            shown=call.shown,
            rule=call.suggested_rule,
            total=len(self._waits),
        )

    def _facts(self) -> tuple[str, ...]:
        if self._handle is None:
            return ("starting",)
        return self._handle.current_model, str(self._handle.policy.mode), self._handle.session_id

    def _cost(self) -> float | None:
        """USD; None where a price is unknown."""
        spent = self._session.spent() if self._session else None
        return 0.0 if spent is None else spent.usd

    def _own_commands(self) -> Offers:
        return own_commands(self._handle.skills.discover()) if self._handle is not None else {}

    def _words(self, kind: str) -> Offers:
        """What may stand behind a command that takes this kind of word."""
        match kind:
            case "task":
                return {id: f"{task['status']}: {task['description']}" for id, task in reversed(self._tasks.items())}
            case "approval":
                return {call.id: f"{call.tool} {call.shown}" for call in self._waits.values()}
            case "model":
                return dict(ALIASES)
            case "mode":
                return dict.fromkeys(MODES, "")
            case "session" if self._handle is not None:
                here = str(self._handle.cwd)
                found = self._handle.read(lambda conn: sessions.list_sessions(conn))
                return {one.id: one.title or one.goal or "" for one in found if one.cwd == here}
        return {}


def _asking(call: ApprovalRecord | None) -> dict[str, str]:
    return {} if call is None else {"needs_approval": call.id, "asks": f"asks: {call.tool} {one_line(call.shown)}"}


def _aged(task: Mapping[str, Any], now: float) -> dict[str, Any]:
    """A running task's age as of now."""
    if task["status"] != "running" or not task["started_at"]:
        return dict(task)
    return {**task, "duration_ms": round(now - render.seconds_of(task["started_at"])) * 1000}
