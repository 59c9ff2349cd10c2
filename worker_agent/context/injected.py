"""Injected context: what an agent is told about where it is, built once per conversation and byte-identical after.

*System context* (date, working directory, git state, platform) is the last block of the system prompt. *User context*
(project memory: CLAUDE.md, AGENTS.md) is one meta user message in front of the conversation, added at the moment of the
call only. What changes later is appended as news, never put in here.

Memory files: the managed one, the user's, then from the root of the file system down to the working directory each
`CLAUDE.md` (or `.claude/CLAUDE.md`), `CLAUDE.local.md` and `AGENTS.md`. Of a directory's `CLAUDE.md` and `AGENTS.md` one
is dropped when it is a link to, an import of, or the same bytes as the other. `@path` imports are followed four hops,
not inside code and not out of the directory of the file that asks (the user's own files may import from home). A project's
file that is a link out of its repository is left out, and the model is told so: it may show what no repository holds.
"""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from worker_agent import messages as m
from worker_agent.messages import Message, clean

MAX_FILE = 200_000  # characters of one memory file
MAX_HOPS = 4
GIT_TIMEOUT = 5.0
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]*`)", re.DOTALL)
_IMPORT = re.compile(r"(?<![\w@])@((?:~/|\.{1,2}/|/)?[\w][\w./~-]*)")


@dataclass(frozen=True, slots=True)
class MemoryFile:
    path: Path
    text: str


async def system_context(cwd: Path, now: float, *more: str) -> str:
    """Date, directory, platform, `more` lines and the git state, as the last block of the system prompt."""
    lines = [*_changing(cwd, now), f"Platform: {platform.system().lower()}", *more]
    lines += await _git_state(cwd)
    return "<environment>\n" + "\n".join(lines) + "\n</environment>"


def news(system: str, cwd: Path, now: float) -> str | None:
    """What of a system context, made when a conversation began, does not hold any more; None if all of it does."""
    changed = [line for line in _changing(cwd, now) if line not in system.splitlines()]
    if not changed:
        return None
    return f"<system-reminder>\nChanged since the beginning: {'; '.join(changed)}\n</system-reminder>"


def _changing(cwd: Path, now: float) -> list[str]:
    return [f"Date: {datetime.fromtimestamp(now, UTC).date().isoformat()}", f"Working directory: {cwd}"]


async def _git_state(cwd: Path) -> list[str]:
    branch = await _git(cwd, "rev-parse", "--abbrev-ref", "HEAD")
    if branch is None:
        inside = await _git(cwd, "rev-parse", "--is-inside-work-tree")
        return ["Git: a repository without a commit"] if inside == "true" else ["Git: not a repository"]
    status = (await _git(cwd, "status", "--porcelain=v1", "--untracked-files=normal") or "").splitlines()
    log = (await _git(cwd, "log", "-5", "--format=%h %s") or "").splitlines()
    shown = [f"  {line}" for line in status[:20]] + ([f"  … {len(status) - 20} more"] if len(status) > 20 else [])
    return [
        f"Git branch: {branch}",
        f"Git status at the start: {'clean' if not status else f'{len(status)} changed'}",
        *shown,
        "Last commits:",
        *(f"  {line}" for line in log),
    ]


async def _git(cwd: Path, *arguments: str) -> str | None:
    """The output of a git command without the line end; None when it fails or takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            "git", "--no-optional-locks", *arguments,
            cwd=cwd, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), GIT_TIMEOUT)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return clean(output.decode("utf-8", "replace").rstrip("\n")) if process.returncode == 0 else None


def user_context(files: Iterable[MemoryFile], now: float) -> Message | None:
    """The meta message in front of the conversation; None when there is nothing to tell."""
    parts = [f"Contents of {file.path}:\n\n{file.text}" for file in files]
    if not parts:
        return None
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    text = (
        "<system-reminder>\nProject memory and the current date. It may or may not matter for what you are asked; where"
        " it gives instructions about this project, follow them.\n\n"
        + "\n\n".join(parts)
        + f"\n\nToday is {today}.\n</system-reminder>"
    )
    return m.user(text, kind="meta", meta=True, id="user-context", at=now)


def memory_files(cwd: Path, home: Path, managed: Path = Path("/etc/claude-code/CLAUDE.md")) -> list[MemoryFile]:
    """Every memory file that counts for `cwd`, widest first, imports in place. Files that cannot be read are left out."""
    found: list[MemoryFile] = []
    for path in (managed, home / ".claude" / "CLAUDE.md"):
        found += _read(path, path.parent if path == managed else home)
    for directory in [*reversed(cwd.parents), cwd]:
        found += [file for file in _of_directory(directory) if file.path != home / ".claude" / "CLAUDE.md"]
    return found


def _of_directory(directory: Path) -> Iterator[MemoryFile]:
    claude = next((p for p in (directory / "CLAUDE.md", directory / ".claude" / "CLAUDE.md") if p.is_file()), None)
    agents = directory / "AGENTS.md"
    mine = _own(claude, directory) if claude else []
    yield from mine
    if agents.is_file() and not _says_the_same(claude, agents):
        yield from _own(agents, directory)
    yield from _own(directory / "CLAUDE.local.md", directory)


def _own(path: Path, directory: Path) -> list[MemoryFile]:
    """A project's file, unless it is a link that leaves the repository (without one, the directory)."""
    top = next((level for level in (directory, *directory.parents) if (level / ".git").exists()), directory)
    if path.is_file() and not path.resolve().is_relative_to(top.resolve()):
        return [MemoryFile(path, "(left out: a link to a file outside the project)")]
    return _read(path, directory)


def _says_the_same(claude: Path | None, agents: Path) -> bool:
    if claude is None:
        return False
    try:
        text = claude.read_bytes()
        same = claude.resolve() == agents.resolve() or text == agents.read_bytes()
        return same or b"@AGENTS.md" in text or b"@./AGENTS.md" in text
    except OSError:
        return False


def _read(path: Path, root: Path) -> list[MemoryFile]:
    try:
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8", errors="replace")[:MAX_FILE]
    except OSError:
        return []
    text = _expand(_COMMENT.sub("", clean(text)), path.parent, root, (path,)).strip()
    return [MemoryFile(path, text)] if text else []


def _expand(text: str, directory: Path, root: Path, chain: tuple[Path, ...]) -> str:
    """`text` with its `@path` imports in place, code left as it is."""

    def replace(match: re.Match[str]) -> str:
        return _import(match, directory, root, chain)

    pieces = _CODE.split(text)
    return "".join(piece if index % 2 else _IMPORT.sub(replace, piece) for index, piece in enumerate(pieces))


def _import(match: re.Match[str], directory: Path, root: Path, chain: tuple[Path, ...]) -> str:
    named = match[1].rstrip(".")
    path = Path(named).expanduser() if named.startswith("~/") else directory / named
    try:
        real = path.resolve()
        inside = real.is_relative_to(root.resolve())
        if len(chain) > MAX_HOPS or real in {p.resolve() for p in chain} or not inside or not real.is_file():
            return match[0]
        text = real.read_text(encoding="utf-8", errors="replace")[:MAX_FILE]
    except OSError:
        return match[0]
    return _expand(_COMMENT.sub("", clean(text)), real.parent, root, (*chain, real)).strip()
