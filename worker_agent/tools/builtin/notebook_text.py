"""A Jupyter notebook as text for a reader: cells with their ids, sources and outputs; pictures as image blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from worker_agent.errors import ToolError
from worker_agent.messages import Block
from worker_agent.tools.files import Target

OUTPUT_CAP = 10_000  # characters of one cell's outputs
IMAGE_CAP = 5 * 1024 * 1024  # bytes of base64 of one picture
MAX_IMAGES = 8


class Rendered(Struct, frozen=True):
    lines: list[str]
    images: list[Block]


def parse(data: bytes, target: Target) -> dict[str, Any]:
    """The notebook as a JSON object with a list of cells, or a `ToolError`."""
    try:
        notebook: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ToolError(f"{target.shown} is no valid notebook: it is not JSON. Look at it with Bash (head, cat).") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(notebook, dict) or not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ToolError(f"{target.shown} is no valid notebook: it has no list of cells (format 4 or later is needed).")
    return notebook


def joined(value: Any) -> str:
    """Notebook text: a string or a list of strings."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def cell_name(cell: dict[str, Any], index: int) -> str:
    """What a cell is called here: its id, or `cell-N` where the file gives none."""
    identity = cell.get("id")
    return identity if isinstance(identity, str) and identity else f"cell-{index}"


def render(data: bytes, target: Target) -> Rendered:
    notebook = parse(data, target)
    lines: list[str] = []
    images: list[Block] = []
    for index, cell in enumerate(notebook["cells"]):
        lines.append(f"── {cell_name(cell, index)} ({cell.get('cell_type', 'unknown')}) ──")
        lines += joined(cell.get("source")).split("\n")
        if output := "\n".join(_outputs(cell, images)).strip("\n"):
            cut = f"\n[outputs cut at {OUTPUT_CAP:,} characters]" if len(output) > OUTPUT_CAP else ""
            lines += ["── output ──", *(output[:OUTPUT_CAP] + cut).split("\n")]
    return Rendered(lines, images)


def _outputs(cell: dict[str, Any], images: list[Block]) -> Iterator[str]:
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        if output.get("output_type") == "error":
            yield f"{output.get('ename')}: {output.get('evalue')}"
            continue
        bundle = output.get("data")
        yield joined(output.get("text")) or joined(bundle.get("text/plain") if isinstance(bundle, dict) else None)
        for media in ("image/png", "image/jpeg"):
            picture = joined(bundle.get(media)) if isinstance(bundle, dict) else ""
            picture = "".join(picture.split())
            if picture and len(picture) <= IMAGE_CAP and len(images) < MAX_IMAGES:
                images.append({"type": "image", "source": {"type": "base64", "media_type": media, "data": picture}})
                yield f"[picture {len(images)}, below]"
