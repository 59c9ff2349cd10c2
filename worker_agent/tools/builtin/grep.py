"""`Grep`: the content of files, searched with ripgrep."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from worker_agent import tool_facts
from worker_agent.tools import files
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.tools.builtin import ripgrep
from worker_agent.tools.builtin.glob import shown_path

HEAD_LIMIT = 250  # lines or entries shown when none is asked for
COLUMNS = 1_000  # characters of one line shown
OUTPUT_CAP = 8 * 1024 * 1024  # bytes read from ripgrep
_REMARK = re.compile(rb"[^\n]*: (?:binary file matches|WARNING: stopped searching)")


class Grep(Tool):
    facts = tool_facts.GREP
    description = (
        "Searches the content of files with a regular expression (ripgrep syntax: literal braces are written `\\{`). "
        "`output_mode`: `files_with_matches` (default, newest first), `content` (lines with numbers; `-A` `-B` `-C` "
        "for lines around them) or `count`. Narrow with `path`, `glob` (`*.ts`) or `type` (`py`, `js`, `rust` …). "
        "`multiline` lets a match span lines. Files that git ignores and binary files are left out."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 1, "description": "Regular expression"},
            "path": {"type": "string", "description": "File or directory (default: the working directory)"},
            "glob": {"type": "string", "description": "Only files whose name matches this glob"},
            "type": {"type": "string", "description": "Only files of this type, as ripgrep names it"},
            "output_mode": {"enum": ["content", "files_with_matches", "count"]},
            "-i": {"type": "boolean", "description": "Ignore case"},
            "-n": {"type": "boolean", "description": "Line numbers, in content mode (default true)"},
            "-A": {"type": "integer", "minimum": 0, "description": "Lines after each match"},
            "-B": {"type": "integer", "minimum": 0, "description": "Lines before each match"},
            "-C": {"type": "integer", "minimum": 0, "description": "Lines before and after each match"},
            "multiline": {"type": "boolean", "description": "Matches may span lines, and `.` matches line ends"},
            "head_limit": {
                "type": "integer",
                "minimum": 0,
                "description": "Most lines or files shown (default 250; 0: all)",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }
    result_cap = None  # bounded here, where what is left out can be said better

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        target = ripgrep.where(input.get("path"), context)
        mode = input.get("output_mode", "files_with_matches")
        found = await ripgrep.search(_arguments(input, mode, target.real), target, context, OUTPUT_CAP)
        fence = ripgrep.Fence(context, self.name)
        if mode == "content":
            entries = _content(found.stdout, target, context, fence)
        elif mode == "count":
            entries = [f"{path}:{count}" for path, count in _counts(found.stdout, target, context, fence)]
        else:
            entries = await _newest_first(found.stdout, target, context, fence)
        return _answer(entries, input, mode, found, target, context)

    def activity(self, input: Input) -> str:
        place = input.get("path") or input.get("glob") or input.get("type") or ""
        return f'Grep "{input.get("pattern", "")}" {place}'.rstrip()


def _arguments(input: Input, mode: str, root: Path) -> list[str]:
    arguments = ["--hidden", "--engine=auto", "--with-filename", "--no-heading"]
    if mode == "content":
        arguments += ["--sort=path", f"--max-columns={COLUMNS}", "--max-columns-preview"]
        arguments.append("--line-number" if input.get("-n", True) else "--no-line-number")
        arguments += [f"{flag}{input[flag]}" for flag in ("-A", "-B", "-C") if input.get(flag)]
    else:
        arguments += ["--sort=path", "--count"] if mode == "count" else ["--files-with-matches"]
    if input.get("-i"):
        arguments.append("--ignore-case")
    if input.get("multiline"):
        arguments += ["--multiline", "--multiline-dotall"]
    typed = input.get("type")
    arguments += _by_names(_globs(input.get("glob", ""), root), typed=typed is not None)
    if typed:
        arguments.append(f"--type={typed}")
    # The last glob that matches decides, so that nothing brings `.git` back.
    return [*arguments, "--glob=!.git", f"--regexp={input['pattern']}"]


def _by_names(globs: list[str], *, typed: bool) -> list[str]:
    """Types and globs narrow each other, so it is one or the other for all; with a type of the caller's, globs."""
    named = [argument for glob in globs for argument in ripgrep.by_name(glob)]
    types = sum(argument.startswith("--type") for argument in named)
    return [f"--glob={glob}" for glob in globs] if typed or 0 < types < len(named) else named


def _globs(text: str, root: Path) -> list[str]:
    """`*.ts *.tsx` and `*.ts,*.tsx` are two globs; commas inside braces separate nothing, and a blank nothing where it
    stands in the name of something below `root`. Names that are there are taken as names, brackets and all."""
    globs = [part.strip() for part in re.split(r",(?![^{]*\})", text)]
    found = (glob for part in globs for glob in ([part] if _names_with_a_blank(part, root) else part.split()))
    return [_as_named(glob, root) for glob in found]


def _names_with_a_blank(glob: str, root: Path) -> bool:
    parts = glob.strip("/").split("/")
    there = parts[: ripgrep.fixed(root, parts)]
    while there and not os.path.lexists(root.joinpath(*there)):
        there.pop()
    return any(" " in part for part in there)


def _as_named(glob: str, root: Path) -> str:
    parts = glob.split("/")
    if len(parts) == 1 or parts[0] == "**":
        return glob
    count = ripgrep.fixed(root, parts[1:] if parts[0] == "" else parts) + (parts[0] == "")
    return "/".join([*map(ripgrep.literal, parts[:count]), *parts[count:]])


def _content(stdout: bytes, target: files.Target, context: ToolContext, fence: ripgrep.Fence) -> list[str]:
    """Lines as `path:number:text` for matches and `path-number-text` around them."""
    lines, shown = [], {}
    for name, rest in _records(stdout, target):
        if not name:
            lines.append(_readable(rest))
            continue
        if fence.hides(name):
            continue
        if name not in shown:
            shown[name] = shown_path(name, target, context)
        between = "-" if re.match(rb"\d+-", rest) else ":"
        lines.append(f"{shown[name]}{between}{_readable(rest)}")
    return lines


def _records(stdout: bytes, target: files.Target) -> Iterator[tuple[bytes, bytes]]:
    """Name and rest of each line that ripgrep printed; the name is empty for what is no match (`--`, remarks on binary
    files). Names end with NUL and may hold line ends; lines of text hold neither. An unfinished line is left out."""
    place, start = os.fsencode(target.real), 0
    while (nul := stdout.find(b"\0", start)) >= 0 and (end := stdout.find(b"\n", nul)) >= 0:
        name = stdout[start:nul]
        while b"\n" in name and (not name.startswith(place) or _REMARK.match(name)):
            remark, _, name = name.partition(b"\n")
            yield b"", remark
        yield name, stdout[nul + 1 : end]
        start = end + 1
    for remark in stdout[start:].split(b"\n")[:-1]:
        yield b"", remark


def _readable(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")


def _counts(stdout: bytes, target: files.Target, context: ToolContext, fence: ripgrep.Fence) -> Iterable[tuple[str, int]]:
    for name, count in _records(stdout, target):
        if name and count.isdigit() and not fence.hides(name):
            yield shown_path(name, target, context), int(count)


async def _newest_first(stdout: bytes, target: files.Target, context: ToolContext, fence: ripgrep.Fence) -> list[str]:
    names = [name for name in stdout.split(b"\0")[:-1] if not fence.hides(name)]
    ordered = await asyncio.to_thread(_by_age, names) if len(names) > 1000 else _by_age(names)
    return [shown_path(name, target, context) for name in ordered]


def _by_age(names: list[bytes]) -> list[bytes]:
    def age(name: bytes) -> tuple[int, bytes]:
        try:
            return -os.lstat(name).st_mtime_ns, name
        except OSError:
            return 0, name

    return sorted(names, key=age)


def _answer(
    entries: list[str], input: Input, mode: str, found: ripgrep.Found, target: files.Target, context: ToolContext
) -> ToolResult:
    notes = list(found.notes)
    if not entries:
        text = "\n".join([f"No match in {target.shown}.", *(f"[{note}]" for note in notes)])
        return ToolResult(text, data={"mode": mode, "numEntries": 0})
    limit = input.get("head_limit", HEAD_LIMIT) or len(entries)
    shown = _within(entries[:limit], context.settings.result_cap)
    if len(shown) < len(entries) or found.cut:
        more = "at least " if found.cut else ""
        kind = "lines" if mode == "content" else "files"
        notes.append(
            f"{len(shown):,} of {more}{len(entries):,} {kind} shown. "
            "Narrow the search, or raise head_limit up to the size limit."
        )
    text = "\n".join([*shown, *(f"[{note}]" for note in notes)])
    return ToolResult(text, data={"mode": mode, "numEntries": len(entries)})


def _within(entries: list[str], room: int) -> list[str]:
    """The first entries that fit into `room` characters; one at least."""
    for index, entry in enumerate(entries):
        room -= len(entry) + 1
        if room < 0:
            return entries[: max(index, 1)]
    return entries
