"""Skills: `<dir>/<name>/SKILL.md`, found, listed, and turned into a prompt when they are used.

Rules of this file:

1. Order of precedence, highest first: managed, personal (`~/.claude/skills`, `~/.agents/skills`,
   `~/.config/agents/skills`), those of the project from the working directory up to the repository root, plugins (as
   `plugin:skill`). A `.claude/commands/*.md` of the same level is a skill named like the file, behind the skills.
2. What comes with a repository counts only when a person trusted it. A repository inside it is another one, and is
   never trusted along with it.
3. A description is read at discovery, the body when the skill is used.
4. A command in a skill (``!`…` ``) runs only through the runner that a caller passes, which stands for trust and for
   the permission rules.
5. The listing is made once and keeps its bytes; what is found later is told as news.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from worker_agent import disk, front_matter
from worker_agent.errors import ConfigError
from worker_agent.skills.placeholders import COMMAND, Substitution
from worker_agent.skills.skill import Origin, Problem, Skill, breach, parse
from worker_agent.structs import replace

MAX_SKILLS = 500  # of one directory
HEAD_BYTES = 16 * 1024  # read of a file at discovery
BODY_BYTES = 256 * 1024  # read of a file on use
LISTING_CAP = 16_000  # characters
MAX_LEVELS = 40  # directories looked at above one file

_PROJECT_PLACES = (".claude/skills", ".agents/skills")
_PERSONAL_PLACES = (*_PROJECT_PLACES, ".config/agents/skills")
_COMMANDS_PLACE = ".claude/commands"

Runner = Callable[[str, Skill], Awaitable[str]]
"""Runs one shell command of a skill under the permission rules, and gives what to put in its place."""


class SkillIndex:
    """The skills that hold in `cwd`. `home` is the person's directory (None: no personal ones), `managed` a directory
    of skills, `plugins` the roots of plugins by name, `strict` those whose skills must hold the standard, `variables` the values of further `${CLAUDE_…}`. Reads the disk
    when it is first asked, which blocks: call `discover` in a thread before. May be shared by agents of one working
    directory."""

    def __init__(
        self, cwd: Path, *, home: Path | None = None, trusted: bool = False, managed: Path | None = None,
        plugins: Mapping[str, Path] | None = None, strict: Collection[str] = (), variables: Mapping[str, str] | None = None,
        only: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """`only` names those that a model may use; all of them without it. A person may use any."""
        self._only = only
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
                skill = self._offered(skill)
                if skill.name not in known:
                    known[skill.name] = skill
                    here.append(skill)
            self._nested[directory] = tuple(here)
        return self._nested[directory]

    def _all(self) -> dict[str, Skill]:
        if self._known is None:
            found: dict[str, Skill] = {}
            for skill in self._search():
                found.setdefault(skill.name, self._offered(skill))
            self._known = found
            self._first = tuple(sorted(found.values(), key=lambda skill: skill.name))
        return self._known

    def _offered(self, skill: Skill) -> Skill:
        hidden = self._only is not None and skill.name not in self._only
        return replace(skill, model_invocable=False) if hidden else skill

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
        text = Substitution(skill, arguments, self._variables).text(body)
        return f"{text}\n\n{_NOTE}" if COMMAND.search(body) else text

    async def load_running(self, name: str, arguments: str, run: Runner) -> str:
        """As `load`, with what `run` gives in place of each command, one after the other. Raises `ConfigError`."""
        skill, body = self._body(name)
        substitution, parts, end = Substitution(skill, arguments, self._variables), [], 0
        for match in COMMAND.finditer(body):
            parts.append(substitution.replaced(body[end : match.start()]))
            command = substitution.command(match[1])
            parts.append(await run(command, skill) if command is not None else _NOT_RUN)
            end = match.end()
        parts.append(substitution.replaced(body[end:]))
        return substitution.finished("".join(parts))

    def _body(self, name: str) -> tuple[Skill, str]:
        skill = self.get(name)
        return skill, front_matter.split(read(skill.file, BODY_BYTES))[1].strip()


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
    import difflib

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


def _renamed(skill: Skill, name: str, plugin_root: Path | None = None) -> Skill:
    return replace(skill, name=name, plugin_root=plugin_root)
