"""`Edit`: one exact replacement in a text file.

The model sees every line end as one newline, so matching is done on that view; what is written keeps the file's own
line ends. In a file that mixes them, a replaced piece takes the line end it had, and every other line stays as it is.
"""

from __future__ import annotations

import re

from worker_agent import tool_facts
from worker_agent.errors import ToolError
from worker_agent.structs import replace
from worker_agent.tools import files
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult


class Edit(Tool):
    facts = tool_facts.EDIT
    description = (
        "Replaces exact text in a file. Read the file first. `old_string` must be in the file exactly once, white "
        "space included and without the line numbers that Read puts in front; give more lines around it to make it "
        "unique, or set `replace_all` to replace every occurrence. Encoding and line ends of the file are kept."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "Absolute path of the file"},
            "old_string": {"type": "string", "description": "The text to replace"},
            "new_string": {"type": "string", "description": "What to put in its place"},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence (default false)"},
        },
        "required": ["file_path", "old_string", "new_string"],
        "additionalProperties": False,
    }

    async def validate_input(self, input: Input, context: ToolContext) -> str | None:
        if input["old_string"] == "":
            return "old_string is empty. Use Write to create a file, or give the text to replace."
        if input["old_string"] == input["new_string"]:
            return "old_string and new_string are the same: nothing would change."
        return None

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        if problem := await self.validate_input(input, context):
            raise ToolError(problem)
        target = files.resolve(input["file_path"], context)
        files.refuse_way_out(target, context)
        known = context.read_files.get(target.real)
        edit = _Edit(target, input["old_string"], input["new_string"], bool(input.get("replace_all")))
        linked = files.other_names(target)
        data, info = await files.in_thread(files.change, target, known, edit.apply)
        assert known is not None
        context.read_files[target.real] = replace(files.remembered(info, data), partial=known.partial)
        times = "once" if edit.count == 1 else f"{edit.count} times"
        return ToolResult(
            f"Replaced {times} in {target.shown}. It now reads, around the first change:\n{edit.snippet}{linked}",
            data={"filePath": str(target.path), "replacements": edit.count},
        )


class _Edit:
    """One replacement; `count` and `snippet` say afterwards what it did."""

    def __init__(self, target: files.Target, old: str, new: str, everywhere: bool) -> None:
        self.target, self.old, self.new, self.everywhere = target, old, new, everywhere
        self.count = 0
        self.snippet = ""

    def apply(self, data: bytes) -> bytes:
        text = files.decode(data)
        if text is None:
            raise ToolError(f"{self.target.shown} is a binary file and cannot be edited as text.")
        spans = find(text, self.old)
        self._must_be_clear(text, len(spans))
        spans = apart(spans)
        result = files.with_text(text, *self._replaced(text, spans), self.target)
        self.count = len(spans)
        self.snippet = _snippet(result, spans[0][0], self.new)
        return result.encode()

    def _must_be_clear(self, text: files.Text, count: int) -> None:
        if count == 0:
            raise ToolError(f"old_string was not found in {self.target.shown}. {_near_miss(text, self.old)}")
        if count > 1 and not self.everywhere:
            raise ToolError(
                f"old_string is in {self.target.shown} {count} times. Give more lines around the place you mean, or "
                "set replace_all to change all of them."
            )

    def _replaced(self, text: files.Text, spans: list[tuple[int, int]]) -> tuple[str, str]:
        """The whole new text, and what of it is new."""
        pieces, added, end = [], [], 0
        for start, stop in spans:
            new = with_line_ends(self.new, _line_end(text, text.text[start:stop]))
            pieces += [text.text[end:start], new]
            added.append(new)
            end = stop
        return "".join([*pieces, text.text[end:]]), "".join(added)


def find(text: files.Text, old: str) -> list[tuple[int, int]]:
    """Everywhere `old` is in `text`, overlapping places too: where it may stand in two ways, it is not clear which one
    is meant. Any line end stands for any; only if it is nowhere so, it is looked for exactly."""
    newline = text.newline
    if newline in ("\n", "") and "\r" not in old:
        return _spans(text.text, old)
    end = "\r" if newline == "\r" else r"\r?\n"
    pattern = end.join(re.escape(line) for line in _plain(old).split("\n"))
    return [match.span(1) for match in re.finditer(f"(?=({pattern}))", text.text)] or _spans(text.text, old)


def _spans(text: str, old: str) -> list[tuple[int, int]]:
    spans, start = [], text.find(old)
    while start >= 0:
        spans.append((start, start + len(old)))
        start = text.find(old, start + 1)
    return spans


def apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the places, from the first on, that do not overlap the one before."""
    chosen: list[tuple[int, int]] = []
    for span in spans:
        if not chosen or span[0] >= chosen[-1][1]:
            chosen.append(span)
    return chosen


def _line_end(text: files.Text, replaced: str) -> str:
    """The line end for what takes the place of `replaced`; "" = as the model wrote it (the file has no line end)."""
    newline = text.newline
    if newline is not None:
        return newline
    match = re.search("\r?\n", replaced)
    return match[0] if match else text.dominant_newline


def with_line_ends(text: str, newline: str) -> str:
    """`text` with every line end as `newline`; "" leaves it alone."""
    return _plain(text).replace("\n", newline) if newline else text


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _snippet(text: files.Text, start: int, new: str) -> str:
    """Numbered lines around the change that begins at character `start`; at most about 20."""
    before = text.text[:start]
    line = before.count("\r" if text.newline == "\r" else "\n")
    first, last = max(0, line - 3), min(line + new.count("\n"), line + 12) + 4
    shown = text.lines()[first:last]
    return "\n".join(f"{first + i + 1:>6}\t{files.printable(s)[:500]}" for i, s in enumerate(shown))


def _near_miss(text: files.Text, old: str) -> str:
    """A hint at what the model probably meant."""
    squeezed = [" ".join(line.split()) for line in text.lines()]
    wanted = [" ".join(line.split()) for line in _plain(old).split("\n")]
    size = len(wanted)
    for i in range(min(len(squeezed) - size + 1, 200_000)):
        if squeezed[i : i + size] == wanted:
            return f"Lines {i + 1}–{i + size} differ from it only in white space: copy them exactly."
    first = next((line for line in wanted if line), "")
    if first and first in squeezed:
        return f"Its first line is line {squeezed.index(first) + 1}, but what follows differs. Read that part again."
    return "Read the part to change again and copy it exactly, without line numbers."
