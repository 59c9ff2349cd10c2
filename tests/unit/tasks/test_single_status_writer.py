"""`tasks.status` is written in one module, held over the syntax trees of everything that ships."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WRITER = Path("tasks/registry.py")
PACKAGES = ("tasks", "coordinator", "worker_agent")
RAW = re.compile(r"\b(update|insert\s+into|replace\s+into)\s+[\"'`]?tasks\b[\"'`]?(?!\.)", re.IGNORECASE)


def violations(tree: ast.AST) -> Iterator[int]:
    """Lines that write a status of a task, or may: an insert, a status among values, values that cannot be read off."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and RAW.search(node.value)
            and not _is_prose(node.value)
        ):
            yield node.lineno
        if isinstance(node, ast.Call) and _writes_tasks(node):
            yield node.lineno


def _is_prose(text: str) -> bool:
    return "SET" not in text.upper() and "VALUES" not in text.upper()


def _writes_tasks(call: ast.Call) -> bool:
    """Whether it is `conn.insert("tasks", …)`, or a `conn.set("tasks", …)` that sets a status, or may: one whose columns
    cannot be read off."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("insert", "set") or not call.args:
        return False
    table, *rest = call.args
    if not (isinstance(table, ast.Constant) and table.value == "tasks"):
        return False
    if call.func.attr == "insert" or not rest or not isinstance(rest[0], ast.Dict):
        return True
    return any(not isinstance(key, ast.Constant) or key.value == "status" for key in rest[0].keys)


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_only_the_registry_writes_a_status() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        if path.relative_to(ROOT) != WRITER
        for line in violations(ast.parse(path.read_text()))
    }
    assert found == set()


def test_the_registry_writes_a_status_in_one_place_besides_creation() -> None:
    lines = list(violations(ast.parse((ROOT / WRITER).read_text())))
    source = (ROOT / WRITER).read_text()
    assert source.count("status = :target") == 1
    assert source.count('conn.insert("tasks"') == 1
    assert lines


@pytest.mark.parametrize("bad", [
    "conn.set('tasks', {'status': 'killed'}, 'id = :id')",
    "conn.set('tasks', values, 'id = :id')",
    "conn.set('tasks', {'fence': 1, **values}, 'id = :id')",
    "conn.insert('tasks', row)",
    "conn.execute(f'UPDATE tasks SET {columns}')",
    "conn.execute('UPDATE tasks SET status = 1')",
    "conn.execute('insert into tasks (id, status) values (1, 2)')",
])  # fmt: skip
def test_the_check_sees_what_it_must_refuse(bad: str) -> None:
    assert list(violations(ast.parse(bad)))


@pytest.mark.parametrize("good", [
    "conn.set('tasks', {'fence': 1}, 'id = :id')",
    "conn.set('deliveries', {'status': 'consumed'}, 'id = :id')",
    "conn.rows('SELECT * FROM tasks WHERE status = 1')",
    "'the update of tasks.status'",
])  # fmt: skip
def test_the_check_leaves_the_rest_alone(good: str) -> None:
    assert not list(violations(ast.parse(good)))
