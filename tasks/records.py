"""What the store gives and takes, as frozen values. Times are seconds since the epoch, UTC; durations are seconds.

Field order is column order, so that a row becomes a record without a look at names (`rows.py`); a test holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from tasks.ids import TaskType
from tasks.states import LIVE, TERMINAL, TaskStatus


class SessionStatus(StrEnum):
    OPEN = "open"
    ENDED = "ended"


class DeliveryKind(StrEnum):
    NOTIFICATION = "notification"  # a task ended
    MESSAGE = "message"  # SendMessage, or `tasks send`


class DeliveryStatus(StrEnum):
    WAITING = "waiting"
    CONSUMED = "consumed"
    UNDELIVERED = "undelivered"


class ApprovalStatus(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"  # and not used yet
    DENIED = "denied"
    TAKEN = "taken"  # approved, and the call went on with it: it is good for no other
    WITHDRAWN = "withdrawn"  # the call does not wait any more, unanswered


class Owner(Struct, frozen=True):
    """A process. `started_at` tells it from a later one with the same pid; `host` names machine and pid namespace."""

    pid: int
    started_at: float
    host: str


class SessionRecord(Struct, frozen=True):
    id: str
    parent_id: str | None
    goal: str
    title: str | None
    cwd: str
    model: str | None
    status: SessionStatus
    end_reason: str | None
    options: Mapping[str, Any]
    created_at: float
    updated_at: float
    ended_at: float | None
    owner_pid: int | None
    owner_started_at: float | None
    owner_host: str | None
    heartbeat_at: float | None
    lease_expires_at: float | None
    fence: int

    @property
    def owner(self) -> Owner | None:
        return _owner(self.owner_pid, self.owner_started_at, self.owner_host)


class AgentRecord(Struct, frozen=True, kw_only=True):
    """`created_at` None = now. The coordinator of a session has the session's id."""

    id: str
    session_id: str
    name: str | None = None
    definition: str | None = None
    model: str | None = None
    cwd: str | None = None
    is_coordinator: bool = False
    created_at: float | None = None


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to create. `id` None draws one. Without `agent_id` and `continues` a new agent is made whose id is the
    task's; `continues` takes the agent of that task. `fence`, where the creator owns the session, is checked. `asked_by` is
    the tool call that asks for it: after a crash it tells whether that call had its effect."""

    session_id: str
    type: TaskType = TaskType.LOCAL_AGENT
    description: str
    prompt: str
    id: str | None = None
    agent_id: str | None = None
    parent_id: str | None = None
    continues: str | None = None
    name: str | None = None
    definition: str | None = None
    model: str | None = None
    cwd: str | None = None
    worktree: str | None = None
    branch: str | None = None
    isolation: str | None = None
    background: bool = True
    result_schema: Mapping[str, Any] | None = None
    allowed_tools: Sequence[str] | None = None
    output_file: str | None = None
    fence: int | None = None
    tags: Sequence[str] | None = None
    asked_by: str | None = None


class Attempt(Struct, frozen=True):
    """One run of a task, which guards what it writes: a later claim of the task ends its right to."""

    task_id: str
    number: int


class Ended(Struct, frozen=True, kw_only=True):
    """How one run of a task ended, as it is stored. `status` is a terminal one. One that failed has an `error_class` and
    says whether trying again may help. `denied` are the calls that were refused to it, a line each; `exit_code` is a
    command's."""

    status: TaskStatus
    result: str | None
    end_reason: str
    error: str | None = None
    error_class: str | None = None
    retryable: bool | None = None
    exit_code: int | None = None
    denied: tuple[str, ...] = ()


class TaskRecord(Struct, frozen=True):
    id: str
    agent_id: str
    session_id: str
    parent_id: str | None
    continues: str | None
    type: TaskType
    status: TaskStatus
    description: str
    name: str | None
    definition: str | None
    model: str | None
    prompt: str
    cwd: str | None
    worktree: str | None
    branch: str | None
    isolation: str | None
    background: bool
    result_schema: Mapping[str, Any] | None
    allowed_tools: Sequence[str] | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    result: str | None
    error: str | None
    error_class: str | None
    retryable: bool | None
    end_reason: str | None
    output_file: str | None
    exit_code: int | None
    notified: bool
    attempt: int
    fence: int | None
    owner_pid: int | None
    owner_started_at: float | None
    owner_host: str | None
    stop_requested_at: float | None
    stop_requested_by: str | None
    stop_wrap_up: float | None
    tool_uses: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    activities: Sequence[str]
    last_activity_at: float | None
    denied: Sequence[str] | None
    tags: Sequence[str] | None

    @property
    def owner(self) -> Owner | None:
        return _owner(self.owner_pid, self.owner_started_at, self.owner_host)

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def reports(self) -> bool:
        """Whether it works towards a report of its own. What does not (a shell command) ends with whoever began it."""
        return self.type is not TaskType.LOCAL_BASH

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def total_tokens(self) -> int:
        """The latest prompt and everything that was written."""
        return self.input_tokens + self.output_tokens

    def duration(self, now: float) -> float | None:
        """Seconds from start to end, or to `now` while it runs; None before the start."""
        if self.started_at is None:
            return None
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.started_at)


class MessageRecord(Struct, frozen=True, kw_only=True):
    """A message of a transcript. `content` is the canonical JSON of its content array; `extra` holds usage,
    stop_reason, model, response_id and data as far as there are any. `seq` and `agent_id` are given by the store."""

    id: str
    role: str
    kind: str
    content: str
    meta: bool = False
    task_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    at: float
    agent_id: str = ""
    seq: int = -1


class StepRecord(Struct, frozen=True, kw_only=True):
    """A part of an unfinished turn: the closed blocks so far of the answer `message_id` (`kind` "answer", `part` ""),
    or one tool result of the results message `message_id` (`kind` "result", `part` its tool_use id). `content` is the
    JSON array of the blocks."""

    kind: str
    message_id: str
    content: str
    part: str = ""
    model: str | None = None
    at: float


class Delivery(Struct, frozen=True, kw_only=True):
    """Something an agent must read. `body` is a message's text, or a notification's XML as of now; `why` says why it
    could not be delivered; `consumed_seq` is the message of the transcript that holds it."""

    position: int
    id: str
    session_id: str
    agent_id: str
    kind: DeliveryKind
    task_id: str | None
    sender: str | None
    body: str
    status: DeliveryStatus
    why: str | None
    consumed_seq: int | None
    created_at: float
    settled_at: float | None


class EventRecord(Struct, frozen=True):
    id: int
    session_id: str
    task_id: str | None
    kind: str
    data: Mapping[str, Any]
    at: float


class ProcessRecord(Struct, frozen=True):
    pid: int
    started_at: float
    host: str
    session_id: str
    task_id: str | None
    marker: str
    command: str | None
    added_at: float


def _owner(pid: int | None, started_at: float | None, host: str | None) -> Owner | None:
    return None if pid is None or started_at is None or host is None else Owner(pid, started_at, host)


class NewApproval(Struct, frozen=True, kw_only=True):
    """A call that needs a person's word. `input` holds no secret, `digest` is of the input as it is."""

    session_id: str
    agent_id: str
    task_id: str | None
    fence: int
    tool_use_id: str
    tool: str
    input: Mapping[str, Any]
    digest: str
    shown: str
    reason: str
    suggested_rule: str | None


class ApprovalRecord(Struct, frozen=True):
    id: str
    session_id: str
    agent_id: str
    task_id: str | None
    fence: int
    tool_use_id: str
    tool: str
    input: Mapping[str, Any]
    digest: str
    shown: str
    reason: str
    suggested_rule: str | None
    asked_at: float
    status: ApprovalStatus
    answered_at: float | None
    answered_by: str | None
    note: str | None
    rule: str | None
