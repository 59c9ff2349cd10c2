"""What a task can be, and the complete table of moves. No database here.

    pending ──► running ──► completed
       │           ├──────► failed
       │           └──────► killed
       ├──────────────────► failed
       └──────────────────► killed

1. Terminal is terminal: the first terminal state wins, later ones are refused by the guarded UPDATE in `registry.py`.
2. Taking a running task over (its owner is gone) is no move: it stays `running`, its attempt goes up.
3. `interrupted` is not in the table: it is derived when shown (`registry.shown_status`), never stored, so that the
   record cannot lie after a reboot.
"""

from __future__ import annotations

from enum import StrEnum


class TaskStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"


MOVES: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.RUNNING, TaskStatus.FAILED, TaskStatus.KILLED}),
    TaskStatus.RUNNING: frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED}),
    TaskStatus.COMPLETED: frozenset(),
    TaskStatus.FAILED: frozenset(),
    TaskStatus.KILLED: frozenset(),
}
TERMINAL: frozenset[TaskStatus] = frozenset(status for status, targets in MOVES.items() if not targets)
LIVE: frozenset[TaskStatus] = frozenset(MOVES) - TERMINAL
INTERRUPTED = "interrupted"


def sources(target: TaskStatus) -> list[TaskStatus]:
    """The states from which `target` can be reached."""
    return [before for before, targets in MOVES.items() if target in targets]
