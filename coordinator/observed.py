"""What an observer of a session sees: the events of its agents, and its tasks as they change."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tasks.records import ApprovalRecord, TaskRecord
from worker_agent.events import Event


class TaskChanged(Struct, frozen=True):
    """A task was created, changed its status, or got on. The record may be newer than the stored one. `asked_by` is the call
    that a new one came of."""

    task: TaskRecord
    asked_by: str | None = None


class CallWaits(Struct, frozen=True):
    """A call waits for a person, or (`is_over`) does not wait any more."""

    approval: ApprovalRecord
    is_over: bool


class Observed(Struct, frozen=True):
    """`task_id` is None for the coordinator itself."""

    session_id: str
    task_id: str | None
    event: Event | TaskChanged | CallWaits


Observer = Callable[[Observed], None]
