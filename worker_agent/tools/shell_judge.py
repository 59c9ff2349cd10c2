"""A shell command before the rules: every part judged, the strictest counts.

Deny and ask rules see each part under all its readings (`shell_carriers.readings`), through every wrapper and inside every
carried shell, and redirections and file arguments as the `Edit` and `Read` they are. An allow rule has to match the
text as it was written, for each part; it sees past exact wrappers and harmless assignments only.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

from msgspec import Struct

from worker_agent.tools.places import grants_rights
from worker_agent.tools.rules import WILD, Kind, Places, Rule, RuleSet, inside
from worker_agent.tools.shell_carriers import Words, readings, stripped, unwrapped
from worker_agent.tools.shell_covering import covers_use, safe_assignment
from worker_agent.tools.shell_harmless import edit_problem, harmless, knows, part_problem
from worker_agent.tools.shell_line import Part, Plain, plain_word, read_line
from worker_agent.tools.shell_parser import DECLARERS, Unparsable, parse_cached
from worker_agent.tools.shell_sight import Sight
from worker_agent.tools.shell_targets import (
    READERS,
    WRITERS,
    free_target,
    hidden_targets,
    read_paths,
    reads_below,
    searched_by_git,
)
from worker_agent.tools.shell_words import Assignment, SimpleCommand, Word

MAX_FILES = 10_000  # looked at for one word of a command


def edit_path_is_protected(path: Path, roots: tuple[Path, ...], home: Path) -> bool:
    """Whether an edit of `path` would place code or rights that count later."""
    return grants_rights(path, roots, home)


def _plain_part(command: SimpleCommand) -> Part | None:
    """A part in the small grammar of what may run unasked; None if it holds anything else."""
    if command.opaque or command.defined or command.assignments or any(WILD in text for text in command.documents):
        return None
    words: list[Plain] = []
    for word in command.words:
        found = plain_word(word.raw) if word.raw else None
        if found is None:
            return None
        words += found
    reads: list[Plain] = []
    for redirect in command.redirects:
        if redirect.reads and redirect.target and not free_target(redirect.target):
            found = plain_word(redirect.target.raw)
            if found is None:
                return None
            reads += found
    return Part(tuple(words), tuple(reads))


class ShellJudge(Struct, frozen=True, dict=True):
    """`cwd` is where the command starts; path patterns hang on `places.cwd`."""

    command: str
    cwd: Path
    places: Places
    rules: RuleSet

    @cached_property
    def _parsed(self) -> tuple[SimpleCommand, ...] | Unparsable:
        return parse_cached(self.command)

    @cached_property
    def _commands(self) -> tuple[SimpleCommand, ...]:
        return self._parsed.commands if isinstance(self._parsed, Unparsable) else self._parsed

    @cached_property
    def _own(self) -> tuple[SimpleCommand, ...]:
        """The parts that must be allowed: all but what others carry."""
        return tuple(command for command in self._commands if not command.carried)

    # fences

    def denied(self) -> tuple[Rule, str] | None:
        for rule, what, certain in self._hits(self.rules.deny):
            if certain:
                return rule, f"{rule.text} denies {what}"
        return None

    def asked(self) -> tuple[Rule | None, str] | None:
        """A part that an ask rule names, or may be one that a deny or ask rule names, or cannot be read."""
        for rule, what, certain in self._hits(self.rules.ask):
            if certain:
                return rule, f"{rule.text} asks about {what}"
        for rule, what, _ in self._hits(self.rules.deny + self.rules.ask):
            return rule, f"{what} could be what {rule.text} is about"
        if isinstance(self._parsed, Unparsable) and self._fenced():
            return None, f"{self._parsed.reason}, so rules cannot be checked"
        return None

    def _fenced(self) -> bool:
        """Whether some deny or ask rule could be about a part that nobody can read."""
        return any(r.names(t) for r in self.rules.deny + self.rules.ask for t in ("Bash", "Read", "Edit"))

    def _hits(self, rules: tuple[Rule, ...]) -> Iterator[tuple[Rule, str, bool]]:
        shell = [rule for rule in rules if rule.kind is Kind.SHELL]
        paths = [
            rule for rule in rules if rule.kind is Kind.PATH or (rule.kind is Kind.WHOLE and rule.tool in ("Read", "Edit"))
        ]
        for command in self._commands:
            for rule in shell:
                for text in self._readings(command):
                    if rule.matches_text(text):
                        yield rule, _shown(command), True
                    elif rule.may_match(text):
                        yield rule, _shown(command), False
        if paths:
            yield from self._path_hits(paths)

    def _readings(self, command: SimpleCommand) -> Iterator[str]:
        if command.opaque:
            yield WILD
        elif command.words:
            yield from readings(command.words)
            if (behind := self._behind_link(command.words[0])) is not None:
                yield " ".join([behind, *(word.text for word in command.words[1:])])
            if command.assignments:
                yield " ".join([*(f"{a.name}={a.value.text}" for a in command.assignments), *(w.text for w in command.words)])

    def _behind_link(self, word: Word) -> str | None:
        """The name of the program that a path leads to, if that is another one: `./innocent`, a link to `/bin/rm`."""
        if "/" not in word.text or not word.static:
            return None
        real = os.path.basename(os.path.realpath(self.cwd / word.text))
        return real if real != word.base else None

    def _path_hits(self, rules: list[Rule]) -> Iterator[tuple[Rule, str, bool]]:
        named = ((tool, one, bases, tree) for tool, word, bases, tree in self._targets() for one in word.values or (word,))
        for tool, word, bases, tree in named:
            candidates = list(self._candidates(word, bases))
            for rule in rules:
                if not rule.names(tool) or rule.kind is Kind.WHOLE:
                    continue
                what = f"{tool} of {word.raw}"
                if any(rule.matches_path(path, self.places) for path in (*candidates, *self._files_of(word, bases))):
                    yield rule, what, True
                elif not candidates or (tree and any(_holds(rule, path, self.places) for path in candidates)):
                    yield rule, what, False

    # what is free, acceptable, allowed

    def free(self) -> bool:
        """Only commands of the read-only table, only files inside the roots."""
        return bool(self._line) and not isinstance(self._parsed, Unparsable) and self._not_harmless is None

    @cached_property
    def _line(self) -> tuple[Part, ...] | None:
        return read_line(self.command)

    @cached_property
    def _sight(self) -> Sight:
        return Sight.of(self.places, self.rules.deny + self.rules.ask)

    @cached_property
    def _not_harmless(self) -> str | None:
        """Why the line as a whole is not harmless by proof."""
        if self._line is None:
            return "the command holds more than plain words, pipes and `&&`"
        return harmless(self._line, self.cwd, self._sight)

    def acceptable(self) -> bool:
        """In `acceptEdits`: what reads only, and `mkdir touch rm mv cp sed` and redirections that stay inside."""
        if isinstance(self._parsed, Unparsable) or not self._own:
            return False
        return all(
            self._writes_inside(command, bases) and (self._part_free(command, bases) or self._edits_inside(command, bases))
            for command, bases in self._standing()
        )

    def held(self) -> bool:
        """Whether a command may run unasked because it is confined: it can be read, so that rules saw all of it, and no
        redirection of it names a place that it could not write anyway."""
        if isinstance(self._parsed, Unparsable) or not self._own or self._takes_repository_away():
            return False
        return all(self._writes_inside(command, bases) for command, bases in self._standing())

    def _takes_repository_away(self) -> bool:
        """Whether a part names a repository's own directory, or something in it, as what to change: inside it stays, but all
        that was ever committed goes with it."""
        return any(
            ".git" in path.parts
            for tool, word, bases, _ in self._targets()
            if tool == "Edit"
            for path in (*self._candidates(word, bases), *self._files_of(word, bases))
        )

    def _edits_inside(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> bool:
        part = _plain_part(command)
        if part is None or not bases or command.repeats:
            return False
        return not part.words or all(edit_problem(part, base, self._sight) is None for base in bases)

    def allowed(self) -> Rule | None:
        """The first allow rule that covers a part, if every part is covered by a rule or free by itself."""
        whole = next((r for r in self.rules.allow if r.names("Bash") and r.kind is Kind.WHOLE), None)
        if isinstance(self._parsed, Unparsable) or not self._own:
            return None
        deciding: Rule | None = None
        declared = False
        for command, bases in self._standing():
            rule = whole or self._covering(command, bases)
            free = not declared and self._part_free(command, bases)
            declared = declared or command.base_name in DECLARERS  # what is free by its name may be another program then
            if not rule and not free:
                return None
            if rule and not (whole or rule.exact or free) and bases != (self.cwd,) and _is_git(command):
                return None  # another repository's own settings run programs
            edits = None if whole else self._edit_rule(command, bases)
            if self._writes(command) and not whole and not edits:
                return None
            deciding = deciding or edits or rule
        return deciding

    def why_not(self) -> str:
        if isinstance(self._parsed, Unparsable):
            return self._parsed.reason
        if not self._own:
            return "there is nothing to run"
        for command, bases in self._standing():
            if command.opaque:
                return command.opaque
            if self._writes(command) and not self._edit_rule(command, bases):
                return f"no rule allows writing to {next(r.target.raw for r in command.redirects if r.writes and r.target)}"
            if not self._covering(command, bases) and not self._part_free(command, bases):
                near = next((r for r in self.rules.allow if r.kind is Kind.SHELL and r.matches_text(command.raw)), None)
                what = f"{near.text} does not cover {_shown(command)}" if near else f"no rule allows {_shown(command)}"
                return what + self._because(command, bases)
        return self._not_harmless or "`cd` and `git` in one command"

    def _because(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> str:
        part = _plain_part(command)
        if part is None or not part.words or bases is None or not knows(part.words[0].text):
            return ""
        problem = part_problem(part, bases, self._sight)
        return f", and it is not free: {problem}" if problem else ""

    def suggestions(self) -> Iterator[str]:
        """Rules that may allow the command: for the one part that no rule covers, then for a file that it writes."""
        if isinstance(self._parsed, Unparsable):
            return
        open_parts = [
            c for c, bases in self._standing() if c.words and not self._covering(c, bases) and not self._part_free(c, bases)
        ]
        if len(open_parts) == 1:
            yield f"Bash({open_parts[0].raw.replace('*', chr(92) + '*')})"
        written = [word for command in self._own for word in self._writes(command)]
        if len(written) == 1 and not open_parts and written[0].static and not re.search(r"[*?\[\]!#]", written[0].text):
            yield f"Edit({written[0].text})"

    def _covering(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> Rule | None:
        return next((r for r in self.rules.allow if r.names("Bash") and self._covers(r, command, bases or ())), None)

    def _covers(self, rule: Rule, command: SimpleCommand, places: tuple[Path, ...]) -> bool:
        if command.opaque or not command.words:
            return False
        if rule.kind is not Kind.SHELL:
            return False
        assignments = " ".join(f"{a.name}={a.value.raw}" for a in command.assignments)
        if assignments and rule.matches_text(f"{assignments} {command.raw}"):
            return rule.exact or covers_use(rule, command.words, places)
        if not all(safe_assignment(a, True) for a in command.assignments):
            return False
        return any(self._covers_words(rule, words, places) for words in _layers(command.words))

    def _covers_words(self, rule: Rule, words: Words, places: tuple[Path, ...]) -> bool:
        written = [word for word in words if word.raw]
        if not rule.matches_text(" ".join(word.raw for word in written)):
            return False
        return rule.exact or covers_use(rule, words, places)

    def _part_free(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> bool:
        """Free beside parts that need a rule. Its redirections are looked at apart."""
        if not command.words and not command.opaque:
            return all(_plain_assignment(a) for a in command.assignments)
        if command.defined and not command.assignments and not command.opaque:
            return True  # its body is judged by itself
        part = _plain_part(command)
        if part is None or bases is None or command.repeats:
            return False
        return not part.words or part_problem(part, bases, self._sight) is None

    # places

    def _standing(self) -> Iterator[tuple[SimpleCommand, tuple[Path, ...] | None]]:
        """Each part with the directories in which it may run: a `cd` before it may have worked or not. None where nobody
        knows any more."""
        bases: tuple[Path, ...] | None = (self.cwd,)
        for command in self._own:
            yield command, bases
            words = unwrapped(command.words) if command.words else ()
            if words and words[0].text in ("cd", "pushd", "popd"):
                bases = self._after_cd(words, bases, command.repeats)

    def _after_cd(self, words: Words, bases: tuple[Path, ...] | None, repeats: bool) -> tuple[Path, ...] | None:
        operands = [w for w in words[1:] if w.text not in ("-P", "-L", "-e", "--")]
        target = operands[0] if operands else Word("~", "~", tilde=True)
        if bases is None or repeats or words[0].text == "popd" or not target.static or target.text == "-" or len(bases) > 16:
            return None
        return tuple(dict.fromkeys((*bases, *self._candidates(target, bases))))

    def _candidates(self, word: Word, bases: tuple[Path, ...] | None) -> Iterator[Path]:
        """Where a word may point. A pattern stands for what is before its wildcard; nothing where nobody knows."""
        text = word.text
        if WILD in text:
            head, _, tail = text.partition(WILD)
            if not word.glob or word.splits or ".." in tail:
                return
            text = head.rpartition("/")[0] + ("/" if "/" in head else "") or "."
        if word.tilde:
            if text != "~" and not text.startswith("~/"):
                return
            yield self.places.home / text[2:]
        elif text.startswith("/"):
            yield Path(text)
        elif bases is not None:
            yield from (base / text for base in bases)

    def _files_of(self, word: Word, bases: tuple[Path, ...] | None) -> Iterator[Path]:
        """The files there are now that a pattern stands for."""
        if not word.glob or word.splits or word.tilde:
            return
        pattern = "*".join(glob.escape(part) for part in word.text.split(WILD))
        for base in (bases or ()) if not pattern.startswith("/") else (Path("/"),):
            names = glob.iglob(pattern, root_dir=base, include_hidden="dotglob" in self.command)
            yield from (base / name for name in islice(names, MAX_FILES))

    def _targets(self) -> Iterator[tuple[str, Word, tuple[Path, ...] | None, bool]]:
        """Every file that the command names as one to read or to write, carried commands included, and whether it reads
        all that lies below."""
        for command, bases in (*self._standing(), *((c, None) for c in self._commands if c.carried)):
            for redirect in command.redirects:
                if redirect.target and not free_target(redirect.target) and (redirect.writes or redirect.reads):
                    yield "Edit" if redirect.writes else "Read", redirect.target, bases, False
            words = unwrapped(command.words) if command.words else ()
            there = (self.cwd,) if command.carried else bases
            if words and words[0].base in READERS:
                named = list(read_paths(words))
                tree = reads_below(words)
                yield from (("Read", word, there, tree) for word in named or ([Word(".", ".")] if tree else []))
            elif words and words[0].base in WRITERS:
                yield from (("Edit", word, there, False) for word in words[1:] if not word.text.startswith("-"))
            if words:
                yield from ((tool, word, there, False) for tool, word in hidden_targets(words))
                yield from (("Read", word, there, True) for word in searched_by_git(words))

    def _writes(self, command: SimpleCommand) -> list[Word]:
        targets = [r.target for r in command.redirects if r.writes and r.target and not free_target(r.target)]
        return [target for target in targets if not target.raw.startswith(">(")]

    def _writes_inside(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> bool:
        return all(self._writable(word, bases) for word in self._writes(command))

    def _writable(self, word: Word, bases: tuple[Path, ...] | None) -> bool:
        candidates = list(self._candidates(word, bases))
        return bool(candidates) and all(
            inside(path, self.places.roots) and not edit_path_is_protected(path, self.places.roots, self.places.home)
            for path in candidates
        )

    def _edit_rule(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> Rule | None:
        """A rule that allows a redirection of this part, if rules allow every one of them."""
        rules = [rule for rule in self.rules.allow if rule.names("Edit") and rule.kind in (Kind.PATH, Kind.WHOLE)]
        deciding = None
        for word in self._writes(command):
            for path in (*self._candidates(word, bases),) or (None,):
                rule = next((r for r in rules if path and r.matches_path(path, self.places)), None)
                if rule is None:
                    return None
                deciding = deciding or rule
        return deciding


def _holds(rule: Rule, directory: Path, places: Places) -> bool:
    """Whether a file that the rule names lies below, among the first `MAX_FILES`."""
    found = (Path(place, name) for place, _, names in os.walk(directory) for name in names)
    return any(rule.matches_as_written(path, places) for path in islice(found, MAX_FILES))


def _is_git(command: SimpleCommand) -> bool:
    return bool(command.words) and unwrapped(command.words)[0].base == "git"


def _plain_assignment(assignment: Assignment) -> bool:
    """Beside parts that a rule covers: a text, or what a `for` gives its variable."""
    known = assignment.value.static or assignment.value.raw == assignment.name
    return known and safe_assignment(assignment, False)


def _shown(command: SimpleCommand) -> str:
    """A part in words."""
    if command.opaque:
        return f"a part ({command.opaque})"
    text = command.raw or " ".join(f"{a.name}=…" for a in command.assignments) or "a redirection"
    return f"`{text if len(text) <= 200 else text[:199] + '…'}`"


def _layers(words: Words) -> Iterator[Words]:
    layer: Words | None = words
    while layer is not None:
        yield layer
        layer = stripped(layer)
