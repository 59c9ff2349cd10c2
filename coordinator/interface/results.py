"""How a prompt ended, and the tasks of a session, as frozen values.

They are made of the same records as the result object and `tasks list --json`, under the names that Python wants. Durations
are in seconds, times in seconds since the epoch, money in USD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.interface.errors import CoordinatorError
from tasks.records import TaskRecord

Status = Literal["pending", "running", "completed", "failed", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens. `input_tokens` counts those that came from no cache."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A worker, or a shell command in the background, as it stands. `result` is its report once it has ended. `cost_usd` is
    None where a price is unknown."""

    id: str
    status: Status
    kind: Literal["worker", "shell"]
    description: str
    name: str | None
    agent: str | None  # the kind of worker
    model: str | None
    result: str | None
    error: str | None
    tool_uses: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def is_live(self) -> bool:
        return self.status in ("pending", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A call that was not allowed."""

    tool: str
    input: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a prompt ended. `text` is the last answer; `structured` what fits the output that was asked for; `reason` is the
    `terminal_reason` of the result object (`completed` where all is well), `errors` say it in sentences. Turns, duration,
    usage, cost and tasks are those of the session so far; `cost_usd` is None where a price is unknown."""

    text: str
    ok: bool
    reason: str
    errors: tuple[str, ...]
    structured: Any
    session_id: str
    turns: int
    duration: float
    usage: Usage
    cost_usd: float | None
    tasks: tuple[Task, ...]
    denials: tuple[Denial, ...]

    def raise_for_error(self) -> Result:
        """Itself. Raises `RunFailed` where it is no success."""
        if not self.ok:
            raise RunFailed(self)
        return self


class RunFailed(CoordinatorError):
    """The prompt ended without success."""

    def __init__(self, result: Result) -> None:
        line = " ".join("; ".join(result.errors).split())
        super().__init__(line or f"the run ended: {result.reason}")
        self.result = result


def task_of(record: TaskRecord) -> Task:
    return Task(
        id=record.id,
        status=record.status.value,
        kind="worker" if record.reports else "shell",
        description=record.description,
        name=record.name,
        agent=record.definition,
        model=record.model,
        result=record.result,
        error=record.error,
        tool_uses=record.tool_uses,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cost_usd=record.cost_usd,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
    )


def result_of(value: Mapping[str, Any], tasks: Iterable[TaskRecord]) -> Result:
    """Out of the documented result object, and the session's tasks."""
    return Result(
        text=value["result"],
        ok=not value["is_error"],
        reason=value["terminal_reason"],
        errors=tuple(value.get("errors", ())),
        structured=value.get("structured_output"),
        session_id=value["session_id"],
        turns=value["num_turns"],
        duration=value["duration_ms"] / 1000,
        usage=Usage(**value["usage"]),
        cost_usd=value["total_cost_usd"],
        tasks=tuple(map(task_of, tasks)),
        denials=tuple(
            Denial(tool=one["tool_name"], input=one["tool_input"], reason=one["reason"]) for one in value["permission_denials"]
        ),
    )
