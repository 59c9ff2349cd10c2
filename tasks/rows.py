"""A row of a table as the record it is, and the names of its columns. A test holds both against the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import orjson
from msgspec import Struct

from tasks.ids import TaskType
from tasks.records import (
    AgentRecord,
    ApprovalRecord,
    ApprovalStatus,
    DeliveryKind,
    DeliveryStatus,
    EventRecord,
    MessageRecord,
    ProcessRecord,
    SessionRecord,
    SessionStatus,
    StepRecord,
    TaskRecord,
)
from tasks.states import TaskStatus

R = TypeVar("R")


class Rows(Generic[R]):
    """How rows become records of one kind: `rows(row)`. `columns` are to be selected in this order."""

    def __init__(self, record: Callable[..., R], names: Sequence[str], **makes: Callable[[Any], Any]) -> None:
        self.names = tuple(names)
        self.columns = ", ".join(self.names)
        self._record = record
        self._makes = [(index, makes[name]) for index, name in enumerate(self.names) if name in makes]

    def of(self, table: str) -> str:
        """The columns with the table's name before them."""
        return ", ".join(f"{table}.{name}" for name in self.names)

    def values(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for index, make in self._makes:
            values[index] = make(values[index])
        return values

    def __call__(self, row: Sequence[Any]) -> R:
        return self._record(**dict(zip(self.names, self.values(row), strict=True)))


class Positional(Rows[R]):
    """The same for a record whose fields stand in the order of the columns: without a look at names."""

    def __call__(self, row: Sequence[Any]) -> R:
        return self._record(*self.values(row))


def _json(value: str | None) -> Any:
    return None if value is None else orjson.loads(value)


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _names(record: type[Struct]) -> tuple[str, ...]:
    return record.__struct_fields__


SESSION = Positional(SessionRecord, _names(SessionRecord), status=SessionStatus, options=_json)
AGENT = Rows(AgentRecord, _names(AgentRecord), is_coordinator=bool)
TASK = Positional(
    TaskRecord,
    _names(TaskRecord),
    type=TaskType,
    status=TaskStatus,
    background=bool,
    notified=bool,
    retryable=_flag,
    result_schema=_json,
    allowed_tools=_json,
    activities=_json,
    denied=_json,
    tags=_json,
)
MESSAGE = Rows(MessageRecord, _names(MessageRecord), meta=bool, extra=_json)
STEP = Rows(StepRecord, _names(StepRecord))
EVENT = Positional(EventRecord, _names(EventRecord), data=_json)
PROCESS = Positional(ProcessRecord, _names(ProcessRecord))
APPROVAL = Positional(ApprovalRecord, _names(ApprovalRecord), input=_json, status=ApprovalStatus)
# A delivery's body is its own or made of its task (`outbox.py`): the row as a dictionary.
DELIVERY: Rows[dict[str, Any]] = Rows(
    dict,
    ("position", "id", "session_id", "agent_id", "kind", "task_id", "sender", "body", "status", "why", "consumed_seq",
     "created_at", "settled_at"),
    kind=DeliveryKind,
    status=DeliveryStatus,
)  # fmt: skip
