"""`NotebookEdit`: one cell of a Jupyter notebook replaced, inserted or deleted.

Everything that is not the cell keeps its bytes (`notebook_source.py`). A replaced code cell loses its outputs: they came
from another source.
"""

from __future__ import annotations

import hashlib
from typing import Any

from worker_agent import tool_facts
from worker_agent.errors import ToolError
from worker_agent.structs import replace
from worker_agent.tools import files
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.tools.builtin import notebook_text
from worker_agent.tools.builtin.notebook_source import Source


class NotebookEdit(Tool):
    facts = tool_facts.NOTEBOOK_EDIT
    description = (
        "Changes one cell of a Jupyter notebook that you have read. `edit_mode`: `replace` (default) puts `new_source` "
        "into the cell, `insert` adds a cell after it (at the beginning without `cell_id`; `cell_type` is needed), "
        "`delete` removes it. Cells are named as Read shows them."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "notebook_path": {"type": "string", "description": "Absolute path of the .ipynb file"},
            "cell_id": {"type": "string", "description": "The cell, as Read names it"},
            "new_source": {"type": "string", "description": "The new source of the cell"},
            "cell_type": {"enum": ["code", "markdown"]},
            "edit_mode": {"enum": ["replace", "insert", "delete"]},
        },
        "required": ["notebook_path", "new_source"],
        "additionalProperties": False,
    }

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        mode = input.get("edit_mode", "replace")
        if not input["notebook_path"].endswith(".ipynb"):
            return "This is no notebook (.ipynb). Use Edit for other files."
        if mode == "insert" and "cell_type" not in input:
            return "To insert a cell, say its cell_type: code or markdown."
        if mode != "insert" and "cell_id" not in input:
            return f"To {mode} a cell, say which: give cell_id as Read shows it."
        return None

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        if problem := await self.validate_input(input, context):
            raise ToolError(problem)
        target = files.resolve(input["notebook_path"], context)
        files.refuse_way_out(target, context)
        known = context.read_files.get(target.real)
        linked = files.other_names(target)
        data, info = await files.in_thread(files.change, target, known, lambda old: edited(old, input, target))
        assert known is not None
        context.read_files[target.real] = replace(files.remembered(info, data), partial=known.partial)
        done = {"replace": "Replaced", "insert": "Inserted a cell after", "delete": "Deleted"}
        where = input.get("cell_id", "the beginning")
        return ToolResult(f"{done[input.get('edit_mode', 'replace')]} {where} in {target.shown}.{linked}")


def edited(data: bytes, input: Input, target: files.Target) -> bytes:
    """The notebook's bytes after the edit."""
    text = files.decode(data)
    if text is None:
        raise ToolError(f"{target.shown} is binary and no notebook.")
    notebook = notebook_text.parse(text.text.encode("utf-8", "replace"), target)
    source = Source(text.text, text.newline or "\n")
    new = _edited(source, notebook["cells"], input, target, _has_ids(notebook))
    return files.with_text(text, new, input["new_source"], target).encode()


def _has_ids(notebook: dict[str, Any]) -> bool:
    """Cells have ids from format 4.5 on; an older notebook with ids would not be valid."""
    return (notebook.get("nbformat", 4), notebook.get("nbformat_minor", 0)) >= (4, 5)


def _edited(source: Source, cells: list[dict[str, Any]], input: Input, target: files.Target, ids: bool) -> str:
    mode = input.get("edit_mode", "replace")
    index = _index(cells, input["cell_id"], target) if "cell_id" in input else -1
    if mode == "delete":
        return source.deleted(index)
    if mode == "insert":
        return source.inserted(index, _new_cell(input, [cell.get("id") for cell in cells], ids))
    kind = input.get("cell_type", cells[index].get("cell_type"))
    cell = cells[index] | {"cell_type": kind, "source": _lines(input["new_source"])}
    return source.replaced(index, cells[index], _as_code(cell) if kind == "code" else _as_markdown(cell))


def _index(cells: list[dict[str, Any]], name: str, target: files.Target) -> int:
    for index, cell in enumerate(cells):
        if notebook_text.cell_name(cell, index) == name:
            return index
    names = [notebook_text.cell_name(cell, index) for index, cell in enumerate(cells[:20])]
    raise ToolError(f"{target.shown} has no cell {name}. Its cells: {', '.join(names) or 'none'}.")


def _new_cell(input: Input, taken: list[Any], ids: bool) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": input["cell_type"], "metadata": {}, "source": _lines(input["new_source"])}
    if ids:
        seed = hashlib.sha256(f"{len(taken)} {input['new_source']}".encode("utf-8", "replace")).hexdigest()
        cell = {"id": next(seed[i : i + 8] for i in range(56) if seed[i : i + 8] not in taken)} | cell
    return _as_code(cell) if input["cell_type"] == "code" else cell


def _as_code(cell: dict[str, Any]) -> dict[str, Any]:
    return cell | {"execution_count": None, "outputs": []}


def _as_markdown(cell: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cell.items() if key not in ("outputs", "execution_count")}


def _lines(source: str) -> list[str]:
    """Notebook form: a list of lines that keep their ends. Only "\\n" ends a line here."""
    parts = source.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
