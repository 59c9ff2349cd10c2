"""Plain SQL against the tables: every column that a record names is there, of a kind that the record expects."""

from __future__ import annotations

import pytest

from tasks import models, rows
from tests.unit.tasks.support import Store

SHAPES = {
    "sessions": rows.SESSION, "agents": rows.AGENT, "tasks": rows.TASK, "messages": rows.MESSAGE, "steps": rows.STEP,
    "events": rows.EVENT, "processes": rows.PROCESS, "deliveries": rows.DELIVERY, "approvals": rows.APPROVAL,
}  # fmt: skip
LEFT_OUT = {"agents": {"next_seq"}, "steps": {"id", "agent_id"}}  # the store's own


@pytest.mark.parametrize("table", SHAPES)
def test_a_record_has_the_columns_of_its_table(table: str) -> None:
    shape, columns = SHAPES[table], models.metadata.tables[table].c
    assert set(shape.names) | LEFT_OUT.get(table, set()) == set(columns.keys())
    made = {shape.names[index] for index, _ in shape._makes}
    kinds = {name for name in shape.names if type(columns[name].type).__name__ in ("JsonText", "Boolean")}
    assert kinds <= made


def test_texts_are_cleaned_and_the_rest_is_json(store: Store) -> None:
    task = store.task(prompt="a\x00b\ud800", result_schema={"type": "object"}, allowed_tools=["Read"])
    assert (task.prompt, task.result_schema, task.allowed_tools) == ("a\ufffdb\ufffd", {"type": "object"}, ["Read"])
    assert task.background is True and task.retryable is None
