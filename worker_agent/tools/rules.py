"""Permission rules: `Tool` or `Tool(specifier)`, as people already have them in `.claude/settings.json`.

Rules of this file:

1. A rule is parsed once and then only asked. What cannot be parsed raises `RuleError`, never anything else.
2. Deny and ask are generous: they match a path or its target, a command seen through quotes and wrappers. Allow is
   strict: link and target must match, and the text as it was written.
3. A pattern is a tuple of alternatives; each is a string in which `WILD` stands for any text. So "may this match once
   the shell has expanded it?" is a question about two patterns, answered by `overlap`.
4. Every rule knows where it came from (`Source`), so that a verdict can name its file and key.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, assert_never

from msgspec import Struct

from worker_agent import disk, tool_facts
from worker_agent.errors import ConfigError
from worker_agent.tool_facts import Access, Facts, Specifier

WILD = "\0"  # cannot occur in a command, a path or a rule
MAX_RULE = 10_000  # characters

_TOOL = re.compile(r"[A-Za-z_*][A-Za-z0-9_.*-]*")
_RULE = re.compile(rf"{_TOOL.pattern}(?:\(.*\))?", re.DOTALL)
_FIELD = re.compile(r"([A-Za-z_-][A-Za-z0-9_-]*):(.*)", re.DOTALL)


class RuleError(ConfigError):
    """A permission rule cannot be used. The message quotes it and says what is wrong."""


class Behavior(StrEnum):
    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class Kind(StrEnum):
    """What a rule's specifier is about."""

    WHOLE = "whole"  # the tool by name, no specifier
    SHELL = "shell"
    PATH = "path"
    DOMAIN = "domain"
    NAME = "name"  # agent type, skill
    FIELD = "field"
    NEVER = "never"  # accepted, never consulted


class Source(Struct, frozen=True):
    """Where a rule came from: a file or a flag, the key inside it, and the directory that its `/x` paths hang on."""

    name: str
    key: str = ""
    base: Path | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.key})" if self.key else self.name


class Places(Struct, frozen=True):
    """The directories that path patterns hang on. `roots` is where reading is free. `twins` are copies of the project
    (a worktree) in which its patterns hold just the same."""

    cwd: Path
    home: Path
    roots: tuple[Path, ...] = ()
    twins: tuple[Path, ...] = ()


class Rule(Struct, frozen=True):
    text: str
    tool: str
    specifier: str | None
    behavior: Behavior
    kind: Kind
    source: Source
    alternatives: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, source: Source, behavior: Behavior = Behavior.ALLOW) -> Rule:
        """A rule out of its text. Raises `RuleError`."""
        tool, specifier = _split(text)
        if behavior is not Behavior.ALLOW and (named := tool_facts.meant_by(tool)):
            raise RuleError(f"{text!r}: there is no tool {tool!r}; write {named}")
        _check_tool_glob(text, tool, behavior)
        if specifier in ("*", "**") and tool_facts.of(tool).main_field:
            if behavior is Behavior.ALLOW and tool_facts.of(tool).access is not Access.NONE:
                return cls(text, tool, specifier, behavior, Kind.PATH, source)  # a pattern: what lies in the directory
            specifier = None
        if specifier is None:
            return cls(text, tool, None, behavior, Kind.WHOLE, source)
        kind = _kind(text, tool, specifier, behavior)
        alternatives = _shell_alternatives(text, specifier) if kind in (Kind.SHELL, Kind.NAME) else ()
        if kind is Kind.PATH and specifier.startswith("!"):
            raise RuleError(f"{text!r}: a negated pattern matches nothing")
        return cls(text, tool, specifier, behavior, kind, source, alternatives)

    @property
    def warning(self) -> str | None:
        """What its writer should know about this rule."""
        if self.kind is Kind.NEVER:
            group = tool_facts.of(self.tool).group
            return f"{self.text!r} in {self.source} is never consulted: write {group}({self.specifier})"
        return None

    @property
    def exact(self) -> bool:
        """A shell rule without any wildcard."""
        return self.kind is Kind.SHELL and len(self.alternatives) == 1 and WILD not in self.alternatives[0]

    def names(self, tool: str | Facts) -> bool:
        """Whether the rule's tool name speaks about `tool`, whatever the specifier."""
        facts = tool_facts.of(tool) if isinstance(tool, str) else tool
        if self.tool in facts.names:
            return True
        if self.tool == tool_facts.READ.name and self.kind is not Kind.FIELD:
            blocks_edits = self.behavior is Behavior.DENY and self.kind is Kind.PATH
            return facts.access is Access.READ or (blocks_edits and facts.access is Access.EDIT)
        if self.tool == tool_facts.EDIT.name and self.kind is not Kind.FIELD:
            return facts.access is Access.EDIT
        is_server = self.tool.count("__") == 1 or self.behavior is not Behavior.ALLOW  # a server's name may hold `__`
        if self.tool.startswith("mcp__") and "*" not in self.tool and is_server:
            return facts.name.startswith(self.tool + "__")
        return "*" in self.tool and fnmatch.fnmatchcase(facts.name, self.tool)

    @property
    def covers_everything(self) -> bool:
        """Bare name, or a specifier that says the same."""
        return self.kind is Kind.WHOLE

    # one question per kind

    def matches_text(self, text: str) -> bool:
        """A shell or name rule against a literal text."""
        if self.kind is Kind.WHOLE:
            return True
        return any(_compiled(alternative).fullmatch(text) for alternative in self.alternatives)

    def may_match(self, text: str) -> bool:
        """The same against a text in which `WILD` stands for what only the shell will know."""
        if WILD not in text:
            return self.matches_text(text)
        return self.kind is Kind.WHOLE or any(overlap(alternative, text) for alternative in self.alternatives)

    def matches_field(self, input: Mapping[str, Any]) -> bool:
        match = _FIELD.fullmatch(self.specifier or "")
        value = input.get(match[1]) if match else None
        if match is None or value is None or isinstance(value, (Mapping, list, tuple)):
            return False
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return _compiled(match[2].replace("*", WILD)).fullmatch(shown) is not None

    def matches_host(self, host: str) -> bool:
        """`domain:h`: case is nothing; a leading `*.` is any depth but not the name itself; other `*` stay in a label."""
        if self.kind is Kind.WHOLE:
            return True
        pattern = (self.specifier or "").partition(":")[2].strip().lower().rstrip(".")
        head = r"(?:[^.]+\.)+" if pattern.startswith("*.") else ""
        rest = pattern[2:] if head else pattern
        regex = head + "".join(r"[^.]*" if char == "*" else re.escape(char) for char in rest)
        return re.fullmatch(regex, host.lower().rstrip(".")) is not None

    def matches_path(self, path: Path, places: Places) -> bool:
        """`path` is absolute. Allow needs link and target to match, deny and ask either. For deny and ask a directory
        whose whole content is named counts as named."""
        if self.kind is Kind.WHOLE:
            return True
        lexical, resolved = Path(os.path.normpath(path)), resolve(path)
        tests = [self._one_path(candidate, places) for candidate in {lexical, resolved}]
        return all(tests) if self.behavior is Behavior.ALLOW else any(tests)

    def says(self, names: Iterable[str]) -> bool:
        """Whether each of these names (in small letters) stands in a pattern about paths, as a part of its own."""
        parts = re.sub(r"\\(.)", r"\1", self.specifier or "").casefold().split("/") if self.kind is Kind.PATH else []
        return set(names) <= set(parts)

    def matches_as_written(self, path: Path, places: Places) -> bool:
        """The same without following links: for many files at once."""
        return self.kind is Kind.WHOLE or self._one_path(path, places)

    def _one_path(self, path: Path, places: Places) -> bool:
        base, pattern = self._anchor(places)
        for directory in self._directories(base, places):
            try:
                relative = str(path.relative_to(directory))
            except ValueError:
                continue
            candidates = [relative] if self.behavior is Behavior.ALLOW else [relative, relative + "/_"]
            patterns = {pattern} if self.behavior is Behavior.ALLOW else {pattern, _as_a_name(pattern)}
            fence = self.behavior is not Behavior.ALLOW
            if any(_gitignore(one, fence).match_file(c) for one in patterns for c in candidates):
                return True
        return False

    def _directories(self, base: Path, places: Places) -> set[Path]:
        """Where the pattern hangs: `base` and its copies, as written and resolved."""
        twins = places.twins if base == places.cwd or (base == self.source.base and places.cwd.is_relative_to(base)) else ()
        return {base, resolve(base), *twins, *map(resolve, twins)}

    def reach(self, places: Places) -> tuple[frozenset[Path], str, Callable[[str], bool]]:
        """For a look at many files: the resolved directories that a deny or ask rule about paths hangs on, its pattern,
        and whether it names a path relative to one of them (for a directory ask about `path/_`, too)."""
        base, pattern = self._anchor(places)
        specs = [_gitignore(text, True) for text in {pattern, _as_a_name(pattern)}]
        directories = frozenset(map(resolve, self._directories(base, places)))
        return directories, pattern, lambda relative: any(spec.match_file(relative) for spec in specs)

    def _anchor(self, places: Places) -> tuple[Path, str]:
        text = self.specifier or ""
        if text.startswith("//"):
            return Path("/"), "/" + text.lstrip("/")
        if text == "~" or text.startswith("~/"):
            return places.home, text[1:] or "/**"
        if text.startswith("/"):
            return self.source.base or places.cwd, text
        base = places.cwd
        while text.startswith(("./", "../")):
            base, text = (base, text[2:]) if text.startswith("./") else (base.parent, text[3:])
            text = "/" + text.lstrip("/") if not text.startswith(("./", "../")) else text
        return base, text


def _split(text: str) -> tuple[str, str | None]:
    if not isinstance(text, str):
        raise RuleError(f"{text!r}: a rule is a string")
    stripped = text.strip()
    if len(stripped) > MAX_RULE:
        raise RuleError(f"{stripped[:40]!r}…: a rule has at most {MAX_RULE} characters")
    name, bracket, rest = stripped.partition("(")
    if not _TOOL.fullmatch(name):
        raise RuleError(f"{text!r}: a rule is `Tool` or `Tool(specifier)`")
    if WILD in rest:
        raise RuleError(f"{text!r}: NUL in a rule")
    facts = tool_facts.of(name)
    if not bracket:
        return facts.name, None
    if len(rules := split_rules(stripped)) > 1 and all(_RULE.fullmatch(rule) for rule in rules):
        raise RuleError(f"{text!r}: these are {len(rules)} rules; write each as a string of its own")
    if not rest.endswith(")"):
        raise RuleError(f"{text!r}: the closing bracket is missing")
    specifier = rest[:-1].strip()
    if not specifier:
        raise RuleError(f"{text!r}: nothing between the brackets; write `{name}` for all of it")
    return facts.name, specifier


def _check_tool_glob(text: str, tool: str, behavior: Behavior) -> None:
    if "*" not in tool or behavior is not Behavior.ALLOW:
        return
    if not re.fullmatch(r"mcp__[^*]+?__[^*]*\*.*", tool):
        raise RuleError(f"{text!r}: an allow rule takes `*` in a tool name only after `mcp__<server>__`")


def _kind(text: str, tool: str, specifier: str, behavior: Behavior) -> Kind:
    facts = tool_facts.of(tool)
    field_name = match[1] if (match := _FIELD.fullmatch(specifier)) else ""
    if facts.specifier is Specifier.DOMAIN and field_name == "domain":
        return Kind.DOMAIN
    has_text = facts.specifier is not Specifier.NOTHING or facts.access is not Access.NONE
    is_field = field_name in facts.rule_fields or (bool(field_name) and not has_text)
    if is_field and not (facts.specifier is Specifier.SHELL and specifier == f"{field_name}:*"):
        if behavior is Behavior.ALLOW:
            raise RuleError(f"{text!r}: rules about an input field are for deny and ask only")
        return Kind.FIELD
    match facts.specifier:
        case Specifier.SHELL:
            return Kind.SHELL
        case Specifier.PATH:
            return Kind.PATH
        case Specifier.NAME:
            return Kind.NAME
        case Specifier.NOTHING if facts.access is not Access.NONE:
            return Kind.NEVER
        case Specifier.NOTHING | Specifier.DOMAIN:
            raise RuleError(f"{text!r}: no such specifier for {tool}")
        case _:
            assert_never(facts.specifier)


def _shell_alternatives(text: str, specifier: str) -> tuple[str, ...]:
    """`ls *` → `ls` and `ls ⟨any⟩`; `git:*` is the same; `*` anywhere else is any text; `\\*` is a star."""
    if specifier.endswith(":*"):
        specifier = specifier[:-2].rstrip() + " *"
    body = specifier.replace("\\*", "\1")
    if body.endswith(" *"):
        head = body[:-2].rstrip()
        if not head:
            raise RuleError(f"{text!r}: nothing before the `*`; write the bare tool name for all of it")
        head = head.replace("*", WILD).replace("\1", "*")
        return (head, f"{head} {WILD}")
    return (body.replace("*", WILD).replace("\1", "*"),)


@lru_cache(maxsize=2048)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in re.split(f"{WILD}+", pattern)), re.DOTALL)


@lru_cache(maxsize=2048)
def _gitignore(pattern: str, any_depth: bool) -> Any:
    """`src/**` hangs on its base as gitignore has it; as deny or ask a single segment is meant at any depth."""
    from pathspec import GitIgnoreSpec

    lines = ["\\" + pattern if pattern.startswith("#") else pattern]
    if any_depth and re.fullmatch(r"[^/]+/\*\*", pattern):
        lines.append("**/" + pattern)
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines([])


def _as_a_name(pattern: str) -> str:
    """`app/[id]/page.tsx` is also a file of that very name: a fence means it, too."""
    return re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", pattern)


def literal(path: Path) -> str:
    """The specifier of a rule about this very path (absolute), whatever characters it holds."""
    return "/" + re.sub(r"[\\*?\[\]]", r"\\\g<0>", str(path))


def resolve(path: Path) -> Path:
    """Where a path really leads, links followed as far as they exist. Never raises."""
    return Path(_real(path))


def _real(path: Path) -> str:
    try:
        return disk.real(path)
    except (OSError, ValueError):
        return os.path.normpath(path)


def inside(path: Path, directories: Iterable[Path]) -> bool:
    """Whether `path` is one of these directories or below, links resolved on both sides."""
    target = _real(path).rstrip("/") + "/"
    return any(target.startswith(_real(directory).rstrip("/") + "/") for directory in directories)


def overlap(left: str, right: str) -> bool:
    """Whether two patterns (`WILD` = any text, also none) have a text in common."""
    reachable = {0}
    reachable = _past_wild(right, reachable)
    for token in re.sub(f"{WILD}+", WILD, left):
        reachable = _step(right, reachable, token)
        if not reachable:
            return False
    return len(right) in reachable


def _step(right: str, reachable: set[int], token: str) -> set[int]:
    if token == WILD:
        return set(range(min(reachable), len(right) + 1))
    moved = {i for i in reachable if i < len(right) and right[i] == WILD}
    moved |= {i + 1 for i in reachable if i < len(right) and right[i] == token}
    return _past_wild(right, moved)


def _past_wild(right: str, reachable: set[int]) -> set[int]:
    closed = set(reachable)
    for start in reachable:
        while start < len(right) and right[start] == WILD:
            start += 1
            closed.add(start)
    return closed


def split_rules(text: str) -> list[str]:
    """The rules of a flag: separated by commas or spaces, but not inside brackets: `Bash(git log *), Read Edit(src/**)`."""
    found, depth, current = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")" and depth > 0)
        if depth == 0 and (char == "," or char.isspace()):
            found.append(current)
            current = ""
        else:
            current += char
    return [rule for rule in (*found, current) if rule]


class RuleSet(Struct, frozen=True):
    """Rules of all origins, in the order of their files, by behaviour. `problems` says what could not be used."""

    deny: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def parse(cls, behavior: Behavior, texts: Iterable[str], source: Source) -> RuleSet:
        """An allow rule that cannot be read is left out. A deny or ask rule that cannot be read makes its tool ask
        (every tool, if not even its name can be read): what was meant as a fence must not vanish."""
        rules: dict[Behavior, list[Rule]] = {b: [] for b in Behavior}
        problems = []
        for number, text in enumerate(texts):
            place = Source(source.name, f"{source.key}[{number}]" if source.key else "", source.base)
            try:
                rule = Rule.parse(text, place, behavior)
            except RuleError as error:
                problems.append(f"{place}: {error}")
                if behavior is not Behavior.ALLOW:
                    rules[Behavior.ASK].append(_fence(text, place))
                continue
            rules[behavior].append(rule)
            problems.extend([rule.warning] if rule.warning else [])
        return cls(
            deny=tuple(rules[Behavior.DENY]),
            ask=tuple(rules[Behavior.ASK]),
            allow=tuple(rules[Behavior.ALLOW]),
            problems=tuple(problems),
        )

    @classmethod
    def from_flags(cls, allowed: Iterable[str] = (), disallowed: Iterable[str] = ()) -> RuleSet:
        """Out of `--allowed-tools` and `--disallowed-tools`, each given once or more. Raises `RuleError`."""
        found = cls()
        for behavior, flag, values in (
            (Behavior.ALLOW, "--allowed-tools", allowed),
            (Behavior.DENY, "--disallowed-tools", disallowed),
        ):
            texts = [rule for value in values for rule in split_rules(value)]
            for text in texts:
                as_written(text, Source(flag), behavior)
            found += cls.parse(behavior, texts, Source(flag))
        return found

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.deny + other.deny, self.ask + other.ask, self.allow + other.allow, self.problems + other.problems)

    def __iter__(self) -> Iterator[Rule]:
        yield from (*self.deny, *self.ask, *self.allow)


def as_written(text: str, source: Source, behavior: Behavior) -> Rule:
    """A rule that a person or a program wrote. Raises `RuleError` also for a deny or ask rule where no tool is called so: it would
    fit nothing. `Rule.parse` alone is for whoever has tools of their own."""
    rule = Rule.parse(text, source, behavior)
    if behavior is not Behavior.ALLOW and tool_facts.is_unknown(rule.tool):
        raise RuleError(f"{text!r}: there is no tool {rule.tool!r}; those of a server are called mcp__<server>__<tool>")
    return rule


def _fence(text: Any, source: Source) -> Rule:
    match = _TOOL.match(text.strip()) if isinstance(text, str) else None
    name = match[0] if match else "*"
    return Rule(str(text)[:200], tool_facts.of(name).name, None, Behavior.ASK, Kind.WHOLE, source)
