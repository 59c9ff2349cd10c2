"""`Glob`: files by name, newest first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
from pathlib import Path, PurePath

from worker_agent import tool_facts
from worker_agent.tools import files
from worker_agent.tools.base import Input, Tool, ToolContext, ToolResult
from worker_agent.tools.builtin import ripgrep

SHOWN = 100  # files in one answer
LISTING_CAP = 16 * 1024 * 1024  # bytes of names looked at: some 200,000 files


class Glob(Tool):
    facts = tool_facts.GLOB
    description = (
        "Finds files by name, newest first, at most 100. `pattern` is a glob such as `**/*.py`, `src/**/test_*.js` or "
        "`*.{md,rst}`; without a slash it matches at every depth. `path` is the directory to look in. Files that git "
        "ignores are listed only if nothing else matches."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 1, "description": "Glob of file names"},
            "path": {"type": "string", "description": "Directory to look in (default: the working directory)"},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        pattern, path = _split_absolute(input["pattern"], input.get("path"))
        target = ripgrep.where(path, context, directory=True)
        place, glob = _nearer(pattern, target)
        fence = ripgrep.Fence(context, self.name)
        found = await self._list(glob, place, context)
        notes = list(found.notes)
        if not found.stdout and not found.cut:
            found = await self._list(glob, place, context, "--no-ignore")
            notes = [*found.notes, *(["Only files that git ignores match."] if found.stdout else [])]
        names = found.stdout.split(b"\0")[:-1]  # what follows the last NUL is a name cut off by the limit, or nothing
        if found.cut:
            notes.append(f"Only the first {len(names):,} names were looked at. Use a narrower pattern or path.")
        newest = await asyncio.to_thread(_newest, names, fence) if len(names) > SHOWN else _newest(names, fence)
        return _answer(pattern, place, newest, len(names), notes, context)

    async def _list(self, pattern: str, target: files.Target, context: ToolContext, *more: str) -> ripgrep.Found:
        arguments = ["--files", "--hidden", *ripgrep.by_name(pattern), "--glob=!.git", *more]
        return await ripgrep.search(arguments, target, context, LISTING_CAP)

    def activity(self, input: Input) -> str:
        return f"Glob {input.get('pattern', '')} {input.get('path', '')}".rstrip()


def _split_absolute(pattern: str, path: str | None) -> tuple[str, str | None]:
    """ripgrep wants a glob relative to the directory searched. An absolute one is cut where its first wildcard stands;
    a leading `!` would mean "all but"."""
    if pattern.startswith("!"):
        return "\\" + pattern, path
    pure = PurePath(os.path.expanduser(pattern))
    if not pure.is_absolute() or path is not None:
        # gitignore rules read "./" as a directory named "."
        return pattern.removeprefix("./") or "*", path
    count = 1 + ripgrep.fixed(Path(pure.anchor), pure.parts[1:-1])
    return "/" + "/".join(pure.parts[count:]), str(PurePath(*pure.parts[:count]))


def _nearer(pattern: str, target: files.Target) -> tuple[files.Target, str]:
    """Search only where the fixed beginning of the pattern leads, if that is a directory inside of `target`."""
    parts = pattern.lstrip("/").split("/")
    fixed = parts[: ripgrep.fixed(target.real, parts[:-1])]
    real = Path(os.path.realpath(target.real.joinpath(*fixed)))
    if not real.is_dir() or not real.is_relative_to(target.real):
        return target, pattern
    if len(fixed) == len(parts) - 1 and (fixed or "/" in pattern) and os.path.lexists(real / parts[-1]):
        parts[-1] = ripgrep.literal(parts[-1])
    elif not fixed:
        return target, pattern
    rest = "/".join(parts[len(fixed) :])
    shown = f"{target.shown}/{'/'.join(fixed)}"
    return files.Target(target.path.joinpath(*fixed), real, shown), rest if rest.startswith("**") else f"/{rest}"


def _newest(names: list[bytes], fence: ripgrep.Fence) -> list[bytes]:
    """The `SHOWN` files that changed last; files of one time in the order of their names. Vanished ones come last."""

    def age(name: bytes) -> tuple[int, bytes]:
        try:
            return -os.lstat(name).st_mtime_ns, name
        except OSError:
            return 0, name

    heap = [age(name) for name in names]
    heapq.heapify(heap)
    shown = (name for _, name in (heapq.heappop(heap) for _ in range(len(heap))) if not fence.hides(name))
    return list(itertools.islice(shown, SHOWN))


def _answer(
    pattern: str, target: files.Target, names: list[bytes], total: int, notes: list[str], context: ToolContext
) -> ToolResult:
    shown = [shown_path(name, target, context) for name in names]
    if not shown and not notes:
        return ToolResult(f"No file in {target.shown} matches {pattern}.", data={"filenames": [], "numFiles": 0})
    if total > len(shown):
        notes.append(f"{total - len(shown):,} more, older than these. Use a narrower pattern or path.")
    text = "\n".join([*(shown or [f"No file matches {pattern}."]), *(f"[{note}]" for note in notes)])
    return ToolResult(text, data={"filenames": shown, "numFiles": total})


def shown_path(name: bytes, target: files.Target, context: ToolContext) -> str:
    """A name that ripgrep printed, under the path the model searched rather than where its links lead."""
    text = os.fsdecode(name)
    real = str(target.real)
    if text.startswith(real):
        text = str(target.path) + text[len(real) :] if real != os.sep else text
    return files.show(text, context)
