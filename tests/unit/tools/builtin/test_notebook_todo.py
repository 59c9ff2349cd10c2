from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker_agent.tools.base import ToolContext
from worker_agent.tools.builtin.notebook_edit import NotebookEdit
from worker_agent.tools.builtin.read import Read
from worker_agent.tools.builtin.todo_write import TodoWrite

from .support import call, context, refused

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "intro", "metadata": {}, "source": ["# Grüße\n", "text"]},
        {
            "cell_type": "code",
            "id": "sum",
            "metadata": {"x": 1},
            "execution_count": 3,
            "outputs": [{"a": 1}],
            "source": "1+1",
        },
    ],
    "metadata": {"kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    (tmp_path / "n.ipynb").write_text(json.dumps(NOTEBOOK, indent=1, ensure_ascii=False) + "\n")
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="n.ipynb")
    return ctx


def cells(ctx: ToolContext) -> list[dict[str, Any]]:
    return json.loads((ctx.cwd / "n.ipynb").read_text())["cells"]


def test_a_replaced_code_cell_loses_its_outputs_and_keeps_the_rest(ctx: ToolContext) -> None:
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="sum", new_source="2+2\n3")
    changed = {"source": ["2+2\n", "3"], "outputs": [], "execution_count": None}
    assert cells(ctx)[1] == NOTEBOOK["cells"][1] | changed  # type: ignore[index]
    assert cells(ctx)[0] == NOTEBOOK["cells"][0]  # type: ignore[index]


def test_form_and_unicode_of_the_file_are_kept(ctx: ToolContext) -> None:
    before = (ctx.cwd / "n.ipynb").read_text()
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="intro", new_source="# Grüße\ntext")
    assert (ctx.cwd / "n.ipynb").read_text() == before


def test_a_cell_is_inserted_after_another_or_at_the_beginning(ctx: ToolContext) -> None:
    insert = {"notebook_path": "n.ipynb", "edit_mode": "insert"}
    call(NotebookEdit(), ctx, **insert, cell_id="intro", cell_type="code", new_source="x = 1")
    call(NotebookEdit(), ctx, **insert, cell_type="markdown", new_source="first")
    assert ["".join(cell["source"]) for cell in cells(ctx)] == ["first", "# Grüße\ntext", "x = 1", "1+1"]
    assert len({cell["id"] for cell in cells(ctx)}) == 4
    assert cells(ctx)[2]["outputs"] == []


def test_a_cell_is_deleted(ctx: ToolContext) -> None:
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="intro", new_source="", edit_mode="delete")
    assert [cell["id"] for cell in cells(ctx)] == ["sum"]


def test_a_cell_changes_its_type(ctx: ToolContext) -> None:
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="sum", new_source="text", cell_type="markdown")
    assert "outputs" not in cells(ctx)[1]


@pytest.mark.parametrize(
    ("input", "words"),
    [
        ({"cell_id": "nope"}, "has no cell nope. Its cells: intro, sum"),
        ({"edit_mode": "insert"}, "cell_type"),
        ({}, "give cell_id"),
        ({"edit_mode": "delete"}, "give cell_id"),
        ({"notebook_path": "a.py", "cell_id": "x"}, "Use Edit"),
        ({"cell_id": "sum", "new_source": "\ud800"}, "cannot hold"),
    ],
)
def test_what_makes_no_sense_is_refused(ctx: ToolContext, input: dict[str, str], words: str) -> None:
    before = (ctx.cwd / "n.ipynb").read_bytes()
    assert words in refused(NotebookEdit(), ctx, **({"notebook_path": "n.ipynb", "new_source": "x"} | input))
    assert (ctx.cwd / "n.ipynb").read_bytes() == before


def test_a_notebook_that_changed_since_is_refused(ctx: ToolContext) -> None:
    (ctx.cwd / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    assert "has changed" in refused(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="sum", new_source="x")


def test_a_plan_is_noted_with_one_step_at_a_time(tmp_path: Path) -> None:
    todos = [
        {"content": "look", "status": "completed"},
        {"content": "mend", "status": "in_progress", "activeForm": "Mending"},
    ]
    assert call(TodoWrite(), context(tmp_path), todos=todos) == "Plan noted: 1 of 2 steps completed; now: mend."
    assert TodoWrite().activity({"todos": todos}) == "Mending"
    assert "More than one step" in refused(TodoWrite(), context(tmp_path), todos=[todos[1], todos[1]])


UNTOUCHED = r"""{"metadata":{},  "outputs":[{"data":{"n":1E5,"t":"it\u2019s \/"}}],"cell_type":"code","source":"a","execution_count":1}"""
TOUCHED = r"""{ "cell_type" : "markdown",
   "metadata" : {"x":1.50, "q":"\u00e9"}, "source" : ["old"] }"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mode", ["replace", "insert", "first", "delete"])
def test_cells_that_are_not_edited_keep_their_bytes(tmp_path: Path, mode: str, newline: str) -> None:
    """Escapes, numbers, spaces and the order of keys are those of whoever wrote them."""
    head, tail = '{"nbformat":4,"nbformat_minor":2,"cells":[\n  ', '\n ],"metadata":{"v":1e0}}'
    text = f"{head}{UNTOUCHED},\n  {TOUCHED},\n  {UNTOUCHED}{tail}".replace("\n", newline)
    (tmp_path / "n.ipynb").write_bytes(text.encode())
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="n.ipynb")
    more = {"insert": {"edit_mode": "insert", "cell_type": "markdown"}, "delete": {"edit_mode": "delete"}}.get(mode, {})
    where = {"edit_mode": "insert", "cell_type": "code"} if mode == "first" else {"cell_id": "cell-1", **more}
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", new_source="new\u2019", **where)
    data = (tmp_path / "n.ipynb").read_bytes().decode()
    notebook = json.loads(data)
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    assert sources == {
        "replace": ["a", "new\u2019", "a"], "insert": ["a", "old", "new\u2019", "a"], "first": ["new\u2019", "a", "old", "a"], "delete": ["a", "a"],
    }[mode]  # fmt: skip
    assert data.count(UNTOUCHED) == 2 and data.endswith(tail.replace("\n", newline)) and data.startswith(head[:40])
    assert ('"metadata" : {"x":1.50, "q":"\\u00e9"}' in data) is (mode != "delete")
    assert newline == "\n" or data.count("\n") == data.count("\r\n")


@pytest.mark.parametrize("cells_text", ["[]", "[ ]", "[{}]", '[{"cell_type":"raw"}]'])
def test_a_notebook_with_hardly_a_cell_is_edited_too(tmp_path: Path, cells_text: str) -> None:
    (tmp_path / "n.ipynb").write_text(f'{{"cells": {cells_text}, "nbformat": 4}}')
    ctx = context(tmp_path)
    call(Read(), ctx, file_path="n.ipynb")
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", new_source="x", edit_mode="insert", cell_type="code")
    if cells_text.startswith("[{"):
        call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="cell-1", new_source="y", cell_type="markdown")
        assert [cell["source"] for cell in cells(ctx)] == [["x"], ["y"]]
        call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="cell-1", new_source="", edit_mode="delete")
    call(NotebookEdit(), ctx, notebook_path="n.ipynb", cell_id="cell-0", new_source="", edit_mode="delete")
    assert cells(ctx) == []
