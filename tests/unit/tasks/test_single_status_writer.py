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
        if isinstance(node, ast.Call) and _statement_on_tasks(node) == "insert":
            yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values":
            if _root_statement(node.func.value) and _may_set_status(node):
                yield node.lineno


def _is_prose(text: str) -> bool:
    return "SET" not in text.upper() and "VALUES" not in text.upper()


def _statement_on_tasks(call: ast.Call) -> str | None:
    """ "insert" or "update" for `insert(tasks)`, `update(models.tasks)`, `tasks.insert()` and the like."""
    if isinstance(call.func, ast.Name) and call.func.id in ("insert", "update") and call.args and _is_tasks(call.args[0]):
        return call.func.id
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("insert", "update"):
        if _is_tasks(call.func.value) or (call.args and _is_tasks(call.args[0])):
            return call.func.attr
    return None


def _is_tasks(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("tasks", "tasks_table")


def _root_statement(node: ast.AST) -> bool:
    while isinstance(node, ast.Call):
        if _statement_on_tasks(node):
            return True
        if not isinstance(node.func, ast.Attribute):
            return False
        node = node.func.value
    return False


def _may_set_status(call: ast.Call) -> bool:
    return bool(call.args) or any(keyword.arg in (None, "status") for keyword in call.keywords)


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
    assert source.count("status=target") == 1
    assert source.count("insert(tasks)") == 1
    assert lines


@pytest.mark.parametrize("bad", [
    "update(tasks).where(x).values(status='killed')",
    "update(models.tasks).values(**values)",
    "update(tasks).values({'status': 1})",
    "tasks.update().values(status=1)",
    "insert(tasks)",
    "conn.execute('UPDATE tasks SET status = 1')",
    "text('insert into tasks (id, status) values (1, 2)')",
])  # fmt: skip
def test_the_check_sees_what_it_must_refuse(bad: str) -> None:
    assert list(violations(ast.parse(bad)))


@pytest.mark.parametrize("good", [
    "update(tasks).values(fence=1)",
    "update(table).values(status='consumed')",
    "select(tasks).where(tasks.c.status == 1)",
    "'the update of tasks.status'",
])  # fmt: skip
def test_the_check_leaves_the_rest_alone(good: str) -> None:
    assert not list(violations(ast.parse(good)))
