"""Skills: `<dir>/<name>/SKILL.md`, found, listed, and turned into a prompt when they are used.

Rules of this file:

1. Order of precedence, highest first: managed, personal (`~/.claude/skills`, `~/.agents/skills`,
   `~/.config/agents/skills`), those of the project from the working directory up to the repository root, plugins (as
   `plugin:skill`). A `.claude/commands/*.md` of the same level is a skill named like the file, behind the skills.
2. What comes with a repository counts only when a person trusted it. A repository inside it is another one, and is
   never trusted along with it.
3. A description is read at discovery, the body when the skill is used. No file is trusted to be short, regular or YAML:
   what cannot be read as YAML is read line by line, and what cannot be used becomes a `Problem`.
4. Placeholders are replaced in one pass over the file's own text: nothing in an argument or in the output of a command
   is ever taken for a placeholder or a command.
5. A command in a skill (``!`…` ``) runs only through the runner that a caller passes, which stands for trust and for
   the permission rules; and never with arguments that mean something to a shell.
6. The listing is made once and keeps its bytes; what is found later is told as news.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from worker_agent import disk
from worker_agent.errors import ConfigError

MAX_SKILLS = 500  # of one directory
HEAD_BYTES = 16 * 1024  # read of a file at discovery
BODY_BYTES = 256 * 1024  # read of a file on use
ENTRY_CAP = 1_536  # characters of description and when_to_use of one skill
LISTING_CAP = 16_000  # characters
MAX_LEVELS = 40  # directories looked at above one file

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FRONT = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)(?:\r?\n)?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"!`([^`\n]+)`")
_SHELL_SAFE = re.compile(r"[\w@%+=:,./ -]*")
_PROJECT_PLACES = (".claude/skills", ".agents/skills")
_PERSONAL_PLACES = (*_PROJECT_PLACES, ".config/agents/skills")
_COMMANDS_PLACE = ".claude/commands"

Runner = Callable[[str, "Skill"], Awaitable[str]]
"""Runs one shell command of a skill under the permission rules, and gives what to put in its place."""


class Origin(StrEnum):
    MANAGED = "managed"
    PERSONAL = "personal"
    PROJECT = "project"
    NESTED = "nested"  # next to files that were read
    PLUGIN = "plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """What is known of a skill before it is used. `file` holds its text; `fields` are the front matter's other ones."""

    name: str
    description: str
    file: Path
    origin: Origin
    when_to_use: str = ""
    arguments: tuple[str, ...] = ()  # names of positional arguments
    allowed_tools: tuple[str, ...] = ()  # wants to use these unasked
    paths: tuple[str, ...] = ()  # offered only once a file that fits was touched
    model_invocable: bool = True
    plugin_root: Path | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.file.parent

    def entry(self) -> str:
        """One line for a listing."""
        text = " ".join(f"{self.description} {self.when_to_use}".split())
        text = text if len(text) <= ENTRY_CAP else text[: ENTRY_CAP - 1] + "…"
        return f"- {self.name}: {text}" if text else f"- {self.name}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file is no skill, in words for a person."""

    file: Path
    text: str


class SkillIndex:
    """The skills that hold in `cwd`. `home` is the person's directory (None: no personal ones), `managed` a directory
    of skills, `plugins` the roots of plugins by name, `strict` those whose skills must hold the standard, `variables` the values of further `${CLAUDE_…}`. Reads the disk
    when it is first asked, which blocks: call `discover` in a thread before. May be shared by agents of one working
    directory."""

    def __init__(
        self, cwd: Path, *, home: Path | None = None, trusted: bool = False, managed: Path | None = None,
        plugins: Mapping[str, Path] | None = None, strict: Collection[str] = (), variables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.cwd = Path(os.path.realpath(cwd))
        self._levels = list(_levels(self.cwd))
        self.root = self._levels[-1]
        self._home = None if home is None else Path(os.path.realpath(home))
        self._managed, self._trusted = managed, trusted
        self._plugins, self._strict = plugins or {}, strict
        self._variables = {"CLAUDE_PROJECT_DIR": str(self.root), **(variables or {})}
        self._lock = threading.Lock()
        self._known: dict[str, Skill] | None = None
        self._first: tuple[Skill, ...] = ()
        self._nested: dict[Path, tuple[Skill, ...]] = {}  # of directories below that were looked at
        self._listing: str | None = None
        self.problems: list[Problem] = []

    # ── what there is ──────────────────────────────────────────────────────────────────────────────────────────────

    def discover(self) -> tuple[Skill, ...]:
        """The skills known from the start, by name."""
        with self._lock:
            self._all()
            return self._first

    def get(self, name: str) -> Skill:
        """Raises `ConfigError` naming those that are spelled much like it."""
        known = self._known
        if known is None:
            with self._lock:
                known = self._all()
        name = name.strip().removeprefix("/")
        if (skill := known.get(name)) is not None:
            return skill
        raise ConfigError(f"there is no skill {name[:100]!r}. {_near(name[:100], dict(known))}")

    def listing(self) -> str:
        """Name and description of each skill a model may use, a line each; always the same bytes. What does not fit is
        named without a description. "" where there is none."""
        if self._listing is None:
            self._listing = _listing([s for s in self.discover() if s.model_invocable and not s.paths])
        return self._listing

    def near(self, paths: Iterable[Path]) -> tuple[Skill, ...]:
        """The skills that these files bring into play: those in directories above them that the listing does not look
        at, and those whose `paths` fit. Blocks; cheap when asked again."""
        found: dict[str, Skill] = {}
        with self._lock:
            conditional = [skill for skill in self._all().values() if skill.paths]
            for path in paths:
                real = Path(os.path.realpath(path))
                for directory in self._below(real):
                    found |= {skill.name: skill for skill in self._in_nested(directory)}
                found |= {skill.name: skill for skill in conditional if _fits(skill, real, self.root)}
        return tuple(skill for skill in found.values() if skill.model_invocable)

    def _below(self, path: Path) -> list[Path]:
        """The directories from the one of `path` up to a level of the project, as far as they belong to a trusted one."""
        between: list[Path] = []
        if not self._trusted or not path.is_relative_to(self.root):
            return between
        for directory in (path, *path.parents)[0 if path.is_dir() else 1 :][:MAX_LEVELS]:
            if directory in self._levels:
                return between
            if (directory / ".git").exists():
                between.clear()  # what lies in there is another repository's
            else:
                between.append(directory)
        return []

    def _in_nested(self, directory: Path) -> tuple[Skill, ...]:
        if directory not in self._nested:
            known, here = self._all(), []
            for skill in self._of_level(directory, _PROJECT_PLACES, Origin.NESTED):
                if skill.name in known:
                    skill = _renamed(skill, f"{directory.relative_to(self.root)}:{skill.name}")
                if skill.name not in known:
                    known[skill.name] = skill
                    here.append(skill)
            self._nested[directory] = tuple(here)
        return self._nested[directory]

    def _all(self) -> dict[str, Skill]:
        if self._known is None:
            found: dict[str, Skill] = {}
            for skill in self._search():
                found.setdefault(skill.name, skill)
            self._known = found
            self._first = tuple(sorted(found.values(), key=lambda skill: skill.name))
        return self._known

    def _search(self) -> Iterator[Skill]:
        """Every skill, those that win first."""
        if self._managed:
            yield from self._read_directory(self._managed, Origin.MANAGED)
        if self._home:
            yield from self._of_level(self._home, _PERSONAL_PLACES, Origin.PERSONAL)
        for level in self._levels if self._trusted else ():
            if level != self._home:
                yield from self._of_level(level, _PROJECT_PLACES, Origin.PROJECT)
        for plugin, root in sorted(self._plugins.items()):
            for skill in self._of_plugin(root, plugin in self._strict):
                if os.path.realpath(skill.file).startswith(os.path.realpath(root) + os.sep):  # no link leads out of a plugin
                    yield _renamed(skill, f"{plugin}:{skill.name}", root)

    def _of_plugin(self, root: Path, strict: bool) -> Iterator[Skill]:
        skills = self._read_directory(root / "skills", Origin.PLUGIN)
        if not strict:
            yield from (*skills, *self._commands(root / "commands", Origin.PLUGIN))
            return
        for skill in skills:
            if (why := breach(read(skill.file, HEAD_BYTES), skill.directory.name)) is None:
                yield skill
            else:
                self.problems.append(Problem(skill.file, why))

    def _of_level(self, level: Path, places: Iterable[str], origin: Origin) -> Iterator[Skill]:
        for place in places:
            yield from self._read_directory(level / place, origin)
        yield from self._commands(level / _COMMANDS_PLACE, origin)

    def _commands(self, directory: Path, origin: Origin) -> Iterator[Skill]:
        for file in _listed(directory):
            if file.suffix == ".md" and (skill := self._parsed(file, file.stem, origin)):
                yield skill

    def _read_directory(self, directory: Path, origin: Origin) -> Iterator[Skill]:
        for entry in _listed(directory):
            if (entry / "SKILL.md").is_file() and (skill := self._parsed(entry / "SKILL.md", entry.name, origin)):
                yield skill

    def _parsed(self, file: Path, called: str, origin: Origin) -> Skill | None:
        try:
            return parse(read(file, HEAD_BYTES), file, called, origin)
        except ConfigError as error:
            self.problems.append(Problem(file, str(error)))
            return None

    # ── use ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, name: str, arguments: str = "") -> str:
        """The body of a skill with its placeholders replaced. Its commands stay as they are written, and a note says
        so. Raises `ConfigError`."""
        skill, body = self._body(name)
        text = _Substitution(skill, arguments, self._variables).text(body)
        return f"{text}\n\n{_NOTE}" if _COMMAND.search(body) else text

    async def load_running(self, name: str, arguments: str, run: Runner) -> str:
        """As `load`, with what `run` gives in place of each command, one after the other. Raises `ConfigError`."""
        skill, body = self._body(name)
        substitution, parts, end = _Substitution(skill, arguments, self._variables), [], 0
        for match in _COMMAND.finditer(body):
            parts.append(substitution.replaced(body[end : match.start()]))
            command = substitution.command(match[1])
            parts.append(await run(command, skill) if command is not None else _NOT_RUN)
            end = match.end()
        parts.append(substitution.replaced(body[end:]))
        return substitution.finished("".join(parts))

    def _body(self, name: str) -> tuple[Skill, str]:
        skill = self.get(name)
        text = read(skill.file, BODY_BYTES)
        match = _FRONT.match(text)
        return skill, (text[match.end() :] if match else text).strip()


_NOTE = "(Commands that this text writes as !`…` were not run. Run one yourself where you need its output.)"
_NOT_RUN = "[command not run: the arguments hold characters that mean something to a shell]"


def _listing(skills: list[Skill]) -> str:
    entries = [skill.entry() for skill in skills]
    room = LISTING_CAP - sum(len(skill.name) + 3 for skill in skills)
    lines = []
    for skill, entry in zip(skills, entries, strict=True):
        room -= len(entry) - len(skill.name)
        lines.append(entry if room >= 0 else f"- {skill.name}")
    return "\n".join(lines)


def _near(name: str, known: Mapping[str, Skill]) -> str:
    names = sorted(n for n, skill in known.items() if skill.model_invocable)
    if not names:
        return "There are no skills here."
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.5) or [n for n in names if name and name in n][:5]
    if near:
        return f"Spelled like it: {', '.join(near)}."
    return f"There are: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}."


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _levels(cwd: Path) -> Iterator[Path]:
    """`cwd` and its parents up to the repository root; only `cwd` outside a repository."""
    levels = (cwd, *cwd.parents)
    top = next((i for i, level in enumerate(levels) if (level / ".git").exists()), 0)
    yield from levels[: top + 1]


def files_of(cwd: Path, home: Path) -> Iterator[Path]:
    """The skills' and commands' files of the project around `cwd` and of the person, whether they can be used or not."""
    for level, places in (*((level, _PROJECT_PLACES) for level in _levels(cwd)), (home, _PERSONAL_PLACES)):
        for place in places:
            yield from (entry / "SKILL.md" for entry in _listed(level / place) if (entry / "SKILL.md").is_file())
        yield from (file for file in _listed(level / _COMMANDS_PLACE) if file.suffix == ".md")


def _listed(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [directory / name for name in sorted(entry.name for entry in entries)[:MAX_SKILLS]]
    except OSError:
        return []


def read(file: Path, size: int) -> str:
    """The beginning of a regular file. Raises `ConfigError`."""
    try:
        return disk.read_beginning(file, limit=size).decode("utf-8", "replace")
    except disk.NotRegular as other:
        raise ConfigError(f"{file.name} {other.strerror}") from None
    except OSError as error:
        raise ConfigError(f"{file.name} cannot be read: {error.strerror}") from None


def _fits(skill: Skill, path: Path, root: Path) -> bool:
    from pathspec import GitIgnoreSpec

    return path.is_relative_to(root) and GitIgnoreSpec.from_lines(skill.paths).match_file(path.relative_to(root))


# ── front matter ─────────────────────────────────────────────────────────────────────────────────────────────────────


def parse(text: str, file: Path, called: str, origin: Origin) -> Skill:
    """A skill out of the beginning of its file; `called` is the name of its directory, or of a command's file. Raises
    `ConfigError` for one that has no usable name."""
    match = _FRONT.match(text)
    front = front_matter(match[1]) if match else {}
    body = text[match.end() :] if match else text
    paths = _strings(front.pop("paths", None), r",")
    return Skill(
        name=_name(_text(front.pop("name", None)), called),
        description=_text(front.pop("description", None))[: ENTRY_CAP + 1] or _first_paragraph(body),
        when_to_use=_text(front.pop("when_to_use", None))[: ENTRY_CAP + 1],
        file=file,
        origin=origin,
        arguments=_strings(front.pop("arguments", None), r"[\s,]+"),
        allowed_tools=_strings(front.pop("allowed-tools", None), r"[\s,]+(?![^(]*\))"),
        paths=tuple(p for p in paths if _is_pattern(p)),
        model_invocable=front.pop("disable-model-invocation", False) not in (True, "true"),
        fields=front,
    )


def breach(text: str, directory: str) -> str | None:
    """What of the standard for skills (agentskills.io) a file breaks, None if nothing: for those who promise to hold it.
    `directory` is the name of the one that it lies in."""
    match = _FRONT.match(text)
    front = front_matter(match[1]) if match else {}
    name, description = front.get("name"), front.get("description")
    if not isinstance(name, str) or len(name) > 64 or not _NAME.fullmatch(name):
        return "`name` is not 1 to 64 of a-z 0-9 -, without a hyphen at its ends or two in a row"
    if name != directory:
        return f"`name` is {name!r} and its directory {directory!r}"
    if not isinstance(description, str) or not 1 <= len(description.strip()) <= 1024:
        return "`description` has not 1 to 1,024 characters"
    if not isinstance(front.get("compatibility", ""), str) or len(front.get("compatibility", "")) > 500:
        return "`compatibility` has more than 500 characters, or is no text"
    if not isinstance(front.get("metadata", {}), Mapping):
        return "`metadata` is no map"
    return None


def front_matter(block: str) -> dict[str, Any]:
    """The fields of a front matter. A value with a colon in it is common and is no YAML: such a block is read line by
    line."""
    import yaml

    try:
        fields = yaml.safe_load(block)
    except (yaml.YAMLError, ValueError, RecursionError):
        lines = (re.fullmatch(r"([A-Za-z_-]+):[ \t]*(.*?)[ \t]*", line) for line in block.splitlines())
        return {line[1]: line[2].strip("\"'") for line in lines if line}
    return {str(key): value for key, value in fields.items()} if isinstance(fields, dict) else {}


def _name(declared: str, called: str) -> str:
    if _DIRECTORY_NAME.fullmatch(called):
        return called
    if len(declared) <= 64 and _NAME.fullmatch(declared):
        return declared
    raise ConfigError("has no usable name: letters, digits and hyphens, 64 at most")


def _text(value: Any) -> str:
    """A scalar as text. Nothing else: a few bytes of YAML can stand for gigabytes."""
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def _strings(value: Any, separator: str) -> tuple[str, ...]:
    parts = re.split(separator, value) if isinstance(value, str) else value
    return tuple(filter(None, map(_text, parts[:100]))) if isinstance(parts, list) else ()


def _is_pattern(text: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([text])
    except ValueError:
        return False
    return True


def _first_paragraph(body: str) -> str:
    for paragraph in re.split(r"\n\s*\n", body.strip()):
        text = " ".join(line for line in paragraph.split("\n") if not line.startswith("#")).strip()
        if text:
            return text[: ENTRY_CAP + 1]
    return ""


def _renamed(skill: Skill, name: str, plugin_root: Path | None = None) -> Skill:
    return replace(skill, name=name, plugin_root=plugin_root)


# ── placeholders ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Substitution:
    """Replaces the placeholders of one use of a skill, and remembers whether there was one for the arguments."""

    def __init__(self, skill: Skill, arguments: str, variables: Mapping[str, str]) -> None:
        self.arguments = arguments.strip()
        self.positional = _split(self.arguments)
        self.named = dict(zip(skill.arguments, self.positional, strict=False))
        self.variables = {**variables, "CLAUDE_SKILL_DIR": str(skill.directory)}
        if skill.plugin_root is not None:
            self.variables["CLAUDE_PLUGIN_ROOT"] = str(skill.plugin_root)
        names = "|".join(map(re.escape, sorted(filter(str.isidentifier, skill.arguments), key=len, reverse=True)))
        self.pattern = re.compile(
            r"(?P<escape>\\)?\$(?:ARGUMENTS\[(?P<index>\d{1,4})\]|(?P<all>ARGUMENTS)\b|(?P<number>\d{1,4})\b"
            r"|\{(?P<variable>CLAUDE_[A-Z_]+)\}" + (rf"|(?P<name>{names})\b" if names else "|(?P<name>(?!))") + ")"
        )
        self.used = False

    def text(self, body: str) -> str:
        return self.finished(self.replaced(body))

    def finished(self, text: str) -> str:
        return text if self.used or not self.arguments else f"{text}\n\nARGUMENTS: {self.arguments}"

    def replaced(self, text: str) -> str:
        return self.pattern.sub(lambda match: self._value(match), text)

    def command(self, text: str) -> str | None:
        """A command with its placeholders replaced; None if an argument would be more than words to a shell."""
        values = [self._value(match) for match in self.pattern.finditer(text) if not match["escape"]]
        return self.replaced(text) if all(map(_SHELL_SAFE.fullmatch, values)) else None

    def _value(self, match: re.Match[str]) -> str:
        if match["escape"]:
            return match[0][1:]
        if match["variable"]:
            return self.variables.get(match["variable"], match[0])
        self.used = True
        if match["all"]:
            return self.arguments
        if match["name"]:
            return self.named.get(match["name"], match[0])
        index = int(match["index"] or match["number"])
        return self.positional[index] if index < len(self.positional) else match[0]  # as Claude: left as it is written


def _split(arguments: str) -> list[str]:
    """Words as a shell would see them, quotes taken off; plain words where the quotes do not fit."""
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()
