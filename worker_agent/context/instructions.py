"""Instructions: what people wrote down for agents in CLAUDE.md, AGENTS.md and `.claude/rules`.

Rules of this file:

1. Of the start: the managed file, the user's and their rules, then from the root of the file system down to the working
   directory each `CLAUDE.md` (or `.claude/CLAUDE.md`), `AGENTS.md`, the files of `.claude/rules` and `CLAUDE.local.md`.
   Of a directory beside or below it: the same when a file there was read. A rule with `paths` counts when a file that fits
   was read.
2. No file twice: neither by two ways (a link, an import) nor, in one directory, by the same bytes under two names.
3. `@path` imports are put in place, four hops far, relative to the file that asks, not inside code. HTML comments are
   taken out.
4. Of a repository nobody trusts only its own regular files count: a link or an import that leads out of it is named and
   left out. Of a trusted one an import may lead out of it to a document (`DOCUMENTS`), so that no import added later
   brings a key file along.
5. What was asked for and is not there is told to the person, a line each (`left_out`). A word that only looks like an
   import (`@types/node`) is prose.
6. Only the beginning of a regular file is ever read.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

from worker_agent import disk, front_matter
from worker_agent.messages import clean
from worker_agent.structs import replace

MANAGED = Path("/etc/claude-code/CLAUDE.md")
MAX_FILE = 200_000  # characters of one file
MAX_HOPS = 4
MAX_RULES = 200  # files of one directory of rules, and directories below it
MAX_PATTERNS = 100  # of one rule, braces expanded
MAX_LEVELS = 40  # directories looked at above one file
DOCUMENTS = frozenset({".md", ".mdc", ".mdx", ".markdown", ".rst", ".txt"})
RULES = Path(".claude/rules")

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]*`)", re.DOTALL)
_IMPORT = re.compile(r"(?<![\w@])@((?:~/|(?:\.{1,2}/)+|/)?\.?\w[\w./~-]*)")
_IS_PATH = re.compile(r"(?:~/|\.|/)|.*\.(?:md|mdc|mdx|markdown|rst|txt|json|ya?ml|toml)$", re.DOTALL)
_PATHS = re.compile(r"^(?:paths|globs)[ \t]*:[ \t]*(.*)((?:\n[ \t]*-.*)*)", re.MULTILINE)
_BRACES = re.compile(r"\{([^{}]*)\}")


class MemoryFile(Struct, frozen=True):
    """`paths` are the patterns of a rule that counts only beside files that fit, relative to `base`. `left_out` says, a
    line each, what of it or of its imports was not read."""

    path: Path
    text: str
    left_out: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    base: Path = Path("/")


class Instructions:
    """Those that hold in `cwd`; `trusted` says whether the person trusts its repository. Reads the disk when it is first
    asked, which blocks for some milliseconds. May be shared by the agents of one working directory."""

    def __init__(
        self, cwd: Path, home: Path, managed: Path = MANAGED, *, trusted: bool = False, user: bool = True, project: bool = True
    ) -> None:
        """`user`, `project`: whether the person's own files and those of the directories down to `cwd` count."""
        self.cwd, self._home, self._managed, self._trusted = cwd, home, managed, trusted
        self._user, self._project = user, project
        self._above = {Path(os.path.realpath(level)) for level in (cwd, *cwd.parents)}
        self._top = Path(os.path.realpath(_top(cwd)))
        self._lock = threading.Lock()
        self._start: list[MemoryFile] | None = None
        self._seen: set[Path] = set()  # real paths of what the start holds
        self._rules: list[MemoryFile] = []  # those with `paths`
        self._of_directories: dict[Path, tuple[MemoryFile, ...]] = {}

    def at_start(self) -> list[MemoryFile]:
        """What an agent is told before it begins: every file that counts, widest first, imports in place."""
        with self._lock:
            return self._at_start()

    def left_out(self) -> list[str]:
        """What of all that counts from the start, and of rules with `paths`, was not read: lines for the person."""
        with self._lock:
            return [line for file in (*self._at_start(), *self._rules) for line in file.left_out]

    def near(self, paths: Iterable[Path]) -> list[MemoryFile]:
        """What is to be known by who works on these files (real paths) and does not stand in `at_start`."""
        with self._lock:
            self._at_start()
            found: dict[Path, MemoryFile] = {}
            for path in paths:
                for directory in self._beside(path):
                    found |= {file.path: file for file in self._in_directory(directory) if _fits(file, path)}
                found |= {file.path: file for file in self._rules if _fits(file, path)}
            return list(found.values())

    def _at_start(self) -> list[MemoryFile]:
        if self._start is None:
            every = list(self._search())
            self._rules = [file for file in every if file.paths]
            self._start = [file for file in every if not file.paths]
        return self._start

    def _search(self) -> Iterator[MemoryFile]:
        own = _Source(self._home, free=True, seen=self._seen)
        yield from _read(self._managed, replace(own, root=self._managed.parent))
        if self._user:
            yield from _read(self._home / ".claude" / "CLAUDE.md", own)
            yield from _rules(self._home / RULES, self._top, own)
        for directory in [*reversed(self.cwd.parents), self.cwd] if self._project else ():
            yield from _of_directory(directory, self._source(directory, self._seen))

    def _source(self, directory: Path, seen: set[Path]) -> _Source:
        return _Source(_top(directory), free=self._trusted, seen=seen)

    def _beside(self, path: Path) -> list[Path]:
        """The directories from one that the start has looked at down to that of `path`, those excluded that it looked at."""
        found: list[Path] = []
        if not self._project or not path.is_relative_to(self._top):
            return found
        for directory in path.parents[:MAX_LEVELS]:
            if directory in self._above:
                break
            found.insert(0, directory)
        return found

    def _in_directory(self, directory: Path) -> tuple[MemoryFile, ...]:
        if directory not in self._of_directories:
            source = self._source(directory, set(self._seen))
            if Path(os.path.realpath(source.root)) != self._top:
                source = replace(source, free=False)  # another repository inside: never trusted along with this one
            self._of_directories[directory] = tuple(_of_directory(directory, source))
        return self._of_directories[directory]


def _top(directory: Path) -> Path:
    """The root of the repository around `directory`; itself where there is none."""
    return next((level for level in (directory, *directory.parents) if (level / ".git").exists()), directory)


class _Source(Struct, frozen=True):
    """Where a file and its imports may lie: below `root`; if `free`, the file anywhere and imported documents, too. `seen`
    are the real paths of all that was read. `chain` are the files that ask for one another, `left_out` what was not read."""

    root: Path
    free: bool
    seen: set[Path]
    chain: tuple[Path, ...] = ()
    left_out: list[str] = field(default_factory=list)


def _of_directory(directory: Path, source: _Source) -> Iterator[MemoryFile]:
    claude = next((p for p in (directory / "CLAUDE.md", directory / ".claude" / "CLAUDE.md") if p.is_file()), None)
    agents = directory / "AGENTS.md"
    yield from _read(claude, source) if claude else []
    if not _same_bytes(claude, agents, source):
        yield from _read(agents, source)
    yield from _rules(directory / RULES, directory, source)
    yield from _read(directory / "CLAUDE.local.md", source)


def _same_bytes(claude: Path | None, agents: Path, source: _Source) -> bool:
    inside = None if source.free else source.root
    try:
        texts = {disk.read_beginning(path, limit=MAX_FILE, inside=inside) for path in (claude, agents) if path is not None}
        return claude is not None and len(texts) == 1
    except OSError:
        return False


def _rules(place: Path, base: Path, source: _Source) -> Iterator[MemoryFile]:
    """The rules below `place`, in linked directories where they are trusted; patterns of theirs are relative to `base`."""
    found: list[Path] = []
    seen: set[str] = set()
    for directory, below, names in os.walk(place, followlinks=source.free):
        seen.add(os.path.realpath(directory))
        below[:] = sorted(name for name in below if os.path.realpath(os.path.join(directory, name)) not in seen)
        found += [Path(directory, name) for name in sorted(names) if name.endswith(".md")]
        if max(len(found), len(seen)) > MAX_RULES:
            break
    for path in found[:MAX_RULES]:
        for file in _read(path, source):
            yield replace(file, base=Path(os.path.realpath(base)))


def _read(path: Path, source: _Source) -> list[MemoryFile]:
    real = Path(os.path.realpath(path))
    if real in source.seen:
        return []
    try:
        data = disk.read_beginning(path, limit=MAX_FILE, inside=None if source.free else source.root)
    except disk.Outside:
        return [
            MemoryFile(path, "(left out: a link to a file outside the project)", (f"{path} is left out: it is a link out",))
        ]
    except disk.NotRegular as error:
        return [] if stat.S_ISDIR(error.mode) else [MemoryFile(path, "", (f"{path} is left out: it {error.strerror}",))]
    except OSError:
        return []
    source.seen.add(real)
    source = replace(source, chain=(path,), left_out=[])
    text = _text(data)
    paths: tuple[str, ...] = ()
    if RULES.parts[-1] in path.parts:
        front, text = front_matter.split(text)
        paths = _patterns(front or "")
    text = _expand(_COMMENT.sub("", text), path.parent, source).strip()
    return [MemoryFile(path, text, tuple(source.left_out), paths)] if text or source.left_out else []


def _text(data: bytes) -> str:
    return clean(data.decode("utf-8-sig", "replace"))


# ── imports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _expand(text: str, directory: Path, source: _Source) -> str:
    """`text` with its `@path` imports in place, code left as it is."""

    def imported(match: re.Match[str]) -> str:
        return _import(match, directory, source)

    pieces = _CODE.split(text)
    return "".join(piece if index % 2 else _IMPORT.sub(imported, piece) for index, piece in enumerate(pieces))


def _import(match: re.Match[str], directory: Path, source: _Source) -> str:
    named = match[1].rstrip(".")

    def without(why: str) -> str:
        if _IS_PATH.match(named):  # else it is prose, such as a name
            source.left_out.append(f"{source.chain[-1]}: the import @{named} is left out: {why}")
        return match[0]

    try:
        path = Path(named).expanduser() if named.startswith("~/") else directory / named
        real = path.resolve()
        if real in source.seen:
            return match[0]
        if len(source.chain) > MAX_HOPS:
            return without(f"it is more than {MAX_HOPS} imports away")
        inside = None if source.free and real.suffix.lower() in DOCUMENTS else source.root
        text = _text(disk.read_beginning(path, limit=MAX_FILE, inside=inside))
    except disk.Outside:
        other = " and is no document" if source.free else ""
        return without(f"it leads out of {source.root}{other}") if path.exists() else match[0]
    except (FileNotFoundError, NotADirectoryError):
        return without("there is no such file")
    except OSError as error:
        return without(f"it {error.strerror}" if isinstance(error, disk.NotRegular) else f"{error.strerror}")
    except RuntimeError:  # a ring of links, a home that is not known
        return without("it leads nowhere")
    source.seen.add(real)
    return _expand(_COMMENT.sub("", text), real.parent, replace(source, chain=(*source.chain, real))).strip()


# ── the paths of rules ───────────────────────────────────────────────────────────────────────────────────────────────


def _patterns(front: str) -> tuple[str, ...]:
    """The patterns of a rule's front matter: a list, a list in brackets, or text with commas. Read by hand: `*.ts` and
    `**/*.ts`, as people write them without quotes, are no YAML."""
    match = _PATHS.search(front.replace("\r\n", "\n"))
    if match is None:
        return ()
    text = match[1].split(" #")[0].strip()
    inline = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    listed = [line.strip().removeprefix("-") for line in match[2].splitlines()]
    named = (one.strip().strip("\"'") for one in (*re.split(r",(?![^{]*\})", inline), *listed))
    return tuple(pattern for one in named if one for pattern in _expanded(one))[:MAX_PATTERNS]


def _expanded(pattern: str) -> list[str]:
    """`{a,b}/*.{c,d}` without braces."""
    done: list[str] = []
    todo = [pattern]
    while todo and len(done) + len(todo) < MAX_PATTERNS:
        one = todo.pop(0)
        if (braces := _BRACES.search(one)) is None:
            done.append(one)
        else:
            todo += [one[: braces.start()] + part.strip() + one[braces.end() :] for part in braces[1].split(",")]
    return done


def _fits(file: MemoryFile, path: Path) -> bool:
    """Whether a file counts for who works on `path`. A pattern hangs on the directory of the rules, as in Claude Code."""
    if not file.paths:
        return True
    if not path.is_relative_to(file.base):
        return False
    from pathspec import GitIgnoreSpec

    anchored = [one if one.startswith(("/", "!")) else f"/{one.removeprefix('./')}" for one in file.paths]
    try:
        return GitIgnoreSpec.from_lines(anchored).match_file(path.relative_to(file.base))
    except ValueError:
        return True  # no patterns: better told once too often than never
