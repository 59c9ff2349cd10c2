"""Injected context: what an agent is told about where it is, built once per conversation and byte-identical after.

*System context* (date, working directory, git state, platform) is the last block of the system prompt. *User context*
(project memory: CLAUDE.md, AGENTS.md) is one meta user message in front of the conversation, added at the moment of the
call only. What changes later is appended as news, never put in here.

Memory files: the managed one, the user's, then from the root of the file system down to the working directory each
`CLAUDE.md` (or `.claude/CLAUDE.md`), `CLAUDE.local.md` and `AGENTS.md`. Of a directory's `CLAUDE.md` and `AGENTS.md` one
is dropped when it is a link to, an import of, or the same bytes as the other. `@path` imports are followed four hops,
not inside code and not out of the directory of the file that asks (the user's own files may import from home). Of a project
that nobody trusts a file that is a link out of its repository is left out, and the model is told so: it may show what no
repository holds. What is left out is told to the person, too. Only the beginning of a regular file is ever read.
"""

from __future__ import annotations

import platform
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from worker_agent import disk
from worker_agent import messages as m
from worker_agent.git import NOT_INTO, place_of, read_branch, run_git
from worker_agent.messages import Message, clean

MAX_FILE = 200_000  # characters of one memory file
MAX_HOPS = 4
GIT_TIMEOUT = 5.0
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]*`)", re.DOTALL)
_IMPORT = re.compile(r"(?<![\w@])@((?:~/|\.{1,2}/|/)?[\w][\w./~-]*)")


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """`left_out` says, a line each, what of it or of its imports was not read."""

    path: Path
    text: str
    left_out: tuple[str, ...] = ()


async def system_context(cwd: Path, now: float, *more: str, trusted: bool) -> str:
    """Date, directory, platform, `more` lines and the git state, as the last block of the system prompt. Git is started
    only in a `trusted` directory; elsewhere the branch is read from its file."""
    lines = [*_changing(cwd, now), f"Platform: {platform.system().lower()}", *more]
    lines += await _git_state(cwd, trusted)
    return "<environment>\n" + "\n".join(lines) + "\n</environment>"


def news(system: str, cwd: Path, now: float) -> str | None:
    """What of a system context, made when a conversation began, does not hold any more; None if all of it does."""
    changed = [line for line in _changing(cwd, now) if line not in system.splitlines()]
    if not changed:
        return None
    return f"<system-reminder>\nChanged since the beginning: {'; '.join(changed)}\n</system-reminder>"


def _changing(cwd: Path, now: float) -> list[str]:
    return [f"Date: {datetime.fromtimestamp(now, UTC).date().isoformat()}", f"Working directory: {cwd}"]


async def _git_state(cwd: Path, trusted: bool) -> list[str]:
    place = place_of(cwd)
    if place is None:
        return ["Git: not a repository"]
    if not trusted:
        return [f"Git branch: {clean(read_branch(place) or 'unknown')}", "Git status: not read, the directory is not trusted"]
    branch = await _git(cwd, "rev-parse", "--abbrev-ref", "HEAD")
    if branch is None:
        inside = await _git(cwd, "rev-parse", "--is-inside-work-tree")
        return ["Git: a repository without a commit"] if inside == "true" else ["Git: its state cannot be read"]
    status = (await _git(cwd, "status", "--porcelain=v1", "--untracked-files=normal", NOT_INTO) or "").splitlines()
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
    done = await run_git(cwd, *arguments, timeout=GIT_TIMEOUT)
    return clean(done.out.decode("utf-8", "replace").rstrip("\n")) if done.code == 0 else None


def user_context(files: Iterable[MemoryFile], now: float) -> Message | None:
    """The meta message in front of the conversation; None when there is nothing to tell."""
    parts = [f"Contents of {file.path}:\n\n{file.text}" for file in files if file.text]
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


def memory_files(
    cwd: Path, home: Path, managed: Path = Path("/etc/claude-code/CLAUDE.md"), *, trusted: bool = False
) -> list[MemoryFile]:
    """Every memory file that counts for `cwd`, widest first, imports in place. Files that cannot be read are left out;
    links out of the project are followed only where it is `trusted`."""
    found: list[MemoryFile] = []
    for path in (managed, home / ".claude" / "CLAUDE.md"):
        found += _read(path, path.parent if path == managed else home)
    for directory in [*reversed(cwd.parents), cwd]:
        found += [file for file in _of_directory(directory, trusted) if file.path != home / ".claude" / "CLAUDE.md"]
    return found


def _of_directory(directory: Path, trusted: bool) -> Iterator[MemoryFile]:
    top = next((level for level in (directory, *directory.parents) if (level / ".git").exists()), directory)
    inside = None if trusted else top
    claude = next((p for p in (directory / "CLAUDE.md", directory / ".claude" / "CLAUDE.md") if p.is_file()), None)
    agents = directory / "AGENTS.md"
    yield from _read(claude, directory, inside) if claude else []
    if not _says_the_same(claude, agents, inside):
        yield from _read(agents, directory, inside)
    yield from _read(directory / "CLAUDE.local.md", directory, inside)


def _says_the_same(claude: Path | None, agents: Path, inside: Path | None) -> bool:
    if claude is None:
        return False
    try:
        text = disk.read_beginning(claude, limit=MAX_FILE, inside=inside)
        same = claude.resolve() == agents.resolve() or text == disk.read_beginning(agents, limit=MAX_FILE, inside=inside)
        return same or b"@AGENTS.md" in text or b"@./AGENTS.md" in text
    except OSError:
        return False


def _read(path: Path, root: Path, inside: Path | None = None) -> list[MemoryFile]:
    try:
        data = disk.read_beginning(path, limit=MAX_FILE, inside=inside)
    except disk.Outside:
        return [
            MemoryFile(path, "(left out: a link to a file outside the project)", (f"{path} is left out: it is a link out",))
        ]
    except disk.NotRegular as error:
        return [] if stat.S_ISDIR(error.mode) else [MemoryFile(path, "", (f"{path} is left out: it {error.strerror}",))]
    except OSError:
        return []
    left_out: list[str] = []
    text = _expand(_COMMENT.sub("", _text(data)), path.parent, _Imports(root, (path,), left_out)).strip()
    return [MemoryFile(path, text, tuple(left_out))] if text or left_out else []


def _text(data: bytes) -> str:
    return clean(data.decode("utf-8-sig", "replace"))


@dataclass(frozen=True, slots=True)
class _Imports:
    """Where imports may lead, the files that ask for one another, and what was not read so far."""

    root: Path
    chain: tuple[Path, ...]
    left_out: list[str]


def _expand(text: str, directory: Path, imports: _Imports) -> str:
    """`text` with its `@path` imports in place, code left as it is."""

    def imported(match: re.Match[str]) -> str:
        return _import(match, directory, imports)

    pieces = _CODE.split(text)
    return "".join(piece if index % 2 else _IMPORT.sub(imported, piece) for index, piece in enumerate(pieces))


def _import(match: re.Match[str], directory: Path, imports: _Imports) -> str:
    named = match[1].rstrip(".")
    try:
        path = Path(named).expanduser() if named.startswith("~/") else directory / named
        real = path.resolve()
        if len(imports.chain) > MAX_HOPS or real in {p.resolve() for p in imports.chain}:
            return match[0]
        text = _text(disk.read_beginning(path, limit=MAX_FILE, inside=imports.root))
    except disk.Outside:
        if path.exists():  # else it is prose, such as a name
            imports.left_out.append(f"{imports.chain[-1]}: the import @{named} is left out: it leads out of {imports.root}")
        return match[0]
    except (OSError, RuntimeError):  # a ring of links, a home that is not known
        return match[0]
    return _expand(_COMMENT.sub("", text), real.parent, replace(imports, chain=(*imports.chain, real))).strip()
