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
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from worker_agent.tools.rules import WILD, Kind, Places, Rule, RuleSet, inside, resolve
from worker_agent.tools.shell_carriers import Words, git_parts, readings, stripped
from worker_agent.tools.shell_parser import Unparsable, parse_cached
from worker_agent.tools.shell_readonly import (
    all_read_only,
    cd_beside_git,
    free_target,
    read_paths,
    safe_assignment,
    unwrapped,
    words_read_only,
)  # fmt: skip
from worker_agent.tools.shell_words import SimpleCommand, Word

# Edits of these run code later, outside of any rule: they ask even where edits are accepted.
PROTECTED = frozenset({".git", ".claude", ".mcp.json", ".gitmodules", ".husky", ".githooks", ".envrc", ".vscode", ".idea"})
MAX_FILES = 10_000  # looked at for one word of a command
# A prefix rule never covers these: what they run is not what the prefix shows.
_NOT_BY_PREFIX = frozenset({"watch", "setsid", "ionice", "flock"})
_SAFE_GIT_KEYS = (
    "user.",
    "color.",
    "advice.",
    "init.defaultbranch",
    "commit.gpgsign",
    "core.quotepath",
    "core.autocrlf",
    "log.",
)
# `git X` with any other X runs an alias of the repository or a program `git-X`: a wildcard does not cover it.
_GIT_VERBS = frozenset(
    """add am annotate apply archive bisect blame branch bugreport bundle cat-file check-attr check-ignore check-mailmap
    check-ref-format checkout checkout-index cherry cherry-pick clean clone column commit commit-graph commit-tree config
    count-objects credential daemon describe diff diff-files diff-index diff-tree difftool fast-export fast-import fetch
    fetch-pack filter-branch fmt-merge-msg for-each-ref for-each-repo format-patch fsck gc get-tar-commit-id grep gui
    hash-object help hook index-pack init instaweb interpret-trailers lfs log ls-files ls-remote ls-tree mailinfo mailsplit
    maintenance merge merge-base merge-file merge-index merge-tree mergetool mktag mktree multi-pack-index mv name-rev notes
    pack-objects pack-refs patch-id prune prune-packed pull push quiltimport range-diff read-tree rebase reflog remote repack
    replace replay request-pull rerere reset restore rev-list rev-parse revert rm send-email send-pack shortlog show
    show-branch show-index show-ref sparse-checkout stash status stripspace submodule switch symbolic-ref tag unpack-file
    unpack-objects update-index update-ref update-server-info var verify-commit verify-pack verify-tag version whatchanged
    worktree write-tree""".split()
)


def edit_path_is_protected(path: Path, roots: tuple[Path, ...]) -> bool:
    """Whether an edit of `path` would place code that runs later. The path below the innermost root counts."""
    for candidate in (Path(os.path.normpath(path)), resolve(path)):
        for root in roots:
            for base in (root, resolve(root)):
                if candidate.is_relative_to(base) and PROTECTED & set(candidate.relative_to(base).parts):
                    return True
    return False


@dataclass(frozen=True)
class ShellJudge:
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
            if command.assignments:
                yield " ".join([*(f"{a.name}={a.value.text}" for a in command.assignments), *(w.text for w in command.words)])

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
        if isinstance(self._parsed, Unparsable) or not self._own:
            return False
        return all_read_only(self._own) and all(self._place_free(c, bases) for c, bases in self._standing())

    def acceptable(self) -> bool:
        """In `acceptEdits`: everything that can be read runs; redirections have to stay inside."""
        return not isinstance(self._parsed, Unparsable) and all(
            self._writes_inside(command, bases) for command, bases in self._standing()
        )

    def allowed(self) -> Rule | None:
        """The first allow rule that covers a part, if every part is covered by a rule or free by itself."""
        whole = next((r for r in self.rules.allow if r.names("Bash") and r.kind is Kind.WHOLE), None)
        if isinstance(self._parsed, Unparsable) or not self._own:
            return None
        deciding: Rule | None = None
        for command, bases in self._standing():
            rule = whole or self._covering(command)
            free = self._part_free(command, bases)
            if not rule and not free:
                return None
            edits = None if whole else self._edit_rule(command, bases)
            if self._writes(command) and not whole and not edits:
                return None
            deciding = deciding or edits or (None if free and not whole else rule)
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
            if words_read_only(command) and not self._place_free(command, bases):
                return f"{_shown(command)} may read outside the working directories"
            if not self._covering(command) and not self._part_free(command, bases):
                return f"no rule allows {_shown(command)}"
        return "`cd` and `git` in one command"

    def suggestion(self) -> str | None:
        if isinstance(self._parsed, Unparsable) or len(self._own) != 1 or not self._own[0].words:
            return None
        return f"Bash({self._own[0].raw.replace('*', chr(92) + '*')})"

    def _covering(self, command: SimpleCommand) -> Rule | None:
        return next((r for r in self.rules.allow if r.names("Bash") and self._covers(r, command)), None)

    def _covers(self, rule: Rule, command: SimpleCommand) -> bool:
        if command.opaque or not command.words:
            return False
        if rule.kind is not Kind.SHELL:
            return False
        assignments = " ".join(f"{a.name}={a.value.raw}" for a in command.assignments)
        if assignments and rule.matches_text(f"{assignments} {command.raw}"):
            return True
        if not all(safe_assignment(a, True) for a in command.assignments):
            return False
        return any(self._covers_words(rule, words) for words in _layers(command.words))

    def _covers_words(self, rule: Rule, words: Words) -> bool:
        written = [word for word in words if word.raw]
        if not rule.matches_text(" ".join(word.raw for word in written)):
            return False
        return rule.exact or (words[0].static and _prefix_can_cover(rule, words))

    def _part_free(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> bool:
        """Free beside parts that need a rule. Its redirections are looked at apart."""
        moves = bool(command.words) and unwrapped(command.words)[0].text in ("cd", "git") and cd_beside_git(self._own)
        return words_read_only(command) and self._place_free(command, bases) and not moves

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
        if bases is None or repeats or words[0].text != "cd" or not target.static or target.text == "-" or len(bases) > 16:
            return None
        return tuple(dict.fromkeys((*bases, *self._candidates(target, bases))))

    def _place_free(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> bool:
        words = unwrapped(command.words) if command.words else ()
        targets = list(read_paths(words)) if words else []
        if words and words[0].text == "cd" and len(words) == 1:
            targets = [Word("~", "~", tilde=True)]
        targets += [r.target for r in command.redirects if r.reads and r.target and not free_target(r.target)]
        return all(self._readable(word, bases) for word in targets)

    def _readable(self, word: Word, bases: tuple[Path, ...] | None) -> bool:
        if not word.raw:
            return self._lists_files_inside()  # names that `xargs` takes from its input
        if word.values:
            return all(self._readable(value, bases) for value in word.values)
        if word.raw.startswith(("<(", ">(")):
            return True
        candidates = list(self._candidates(word, bases))
        return bool(candidates) and all(inside(path, self.places.roots) for path in candidates)

    def _lists_files_inside(self) -> bool:
        """Whether what is piped to `xargs` can only be names that a search inside the roots found."""
        feeders = [unwrapped(command.words) for command in self._own if command.words and command.words[0].text != "xargs"]
        return bool(feeders) and all(map(_gives_found_names, feeders))

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
            if words and words[0].base in _READERS:
                named = list(read_paths(words))
                tree = _reads_below(words)
                yield from (("Read", word, bases or (self.cwd,), tree) for word in named or ([Word(".", ".")] if tree else []))
            elif words and words[0].base in _WRITERS:
                yield from (("Edit", word, bases or (self.cwd,), False) for word in words[1:] if not word.text.startswith("-"))

    def _writes(self, command: SimpleCommand) -> list[Word]:
        targets = [r.target for r in command.redirects if r.writes and r.target and not free_target(r.target)]
        return [target for target in targets if not target.raw.startswith(">(")]

    def _writes_inside(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> bool:
        return all(self._writable(word, bases) for word in self._writes(command))

    def _writable(self, word: Word, bases: tuple[Path, ...] | None) -> bool:
        candidates = list(self._candidates(word, bases))
        return bool(candidates) and all(
            inside(path, self.places.roots) and not edit_path_is_protected(path, self.places.roots) for path in candidates
        )

    def _edit_rule(self, command: SimpleCommand, bases: tuple[Path, ...] | None) -> Rule | None:
        """A rule that allows a redirection of this part, if rules allow every one of them."""
        rules = [rule for rule in self.rules.allow if rule.names("Edit") and rule.kind in (Kind.PATH, Kind.WHOLE)]
        deciding = None
        for word in self._writes(command):
            for path in list(self._candidates(word, bases)) or [None]:
                rule = next((r for r in rules if path and r.matches_path(path, self.places)), None)
                if rule is None:
                    return None
                deciding = deciding or rule
        return deciding


_READERS = frozenset(
    "cat head tail grep egrep fgrep zgrep rg ag ack find wc diff stat du ls sed awk less more nl sort cut rg xxd od strings base64 tac pr fold fmt comm paste join uniq hexdump cmp jq zcat bat".split()
)
_WRITERS = frozenset("rm rmdir mv cp touch mkdir tee truncate ln install shred dd".split())


def _gives_found_names(words: Words) -> bool:
    """`find`, `grep -l`, and filters without a file of their own: never text that somebody wrote."""
    name, options = words[0].text, [word.text for word in words[1:] if word.text.startswith("-")]
    if name == "find":
        return not any(option.startswith("-printf") for option in options)
    if name == "grep":
        short = any(re.fullmatch(r"-[A-Za-z]*[lL][A-Za-z]*", option) for option in options)
        return (
            short or bool({"--files-with-matches", "--files-without-match"} & set(options)) or len(list(read_paths(words))) == 0
        )
    return name in ("head", "tail") and not list(read_paths(words))


def _reads_below(words: Words) -> bool:
    """Whether a reader reads every file below a directory that it is given."""
    name, options = words[0].base, [word.text for word in words[1:] if word.text.startswith("-")]
    if name in ("rg", "ag", "ack"):
        return True
    flags = {"grep": "rR", "egrep": "rR", "fgrep": "rR", "zgrep": "rR", "diff": "r"}.get(name, "")
    short = any(re.fullmatch(r"-\w+", option) and set(option[1:]) & set(flags) for option in options)
    return bool(flags) and (
        short or any(option.startswith(("--rec", "--dereference-rec", "--directories=rec")) for option in options)
    )


def _holds(rule: Rule, directory: Path, places: Places) -> bool:
    """Whether a file that the rule names lies below, among the first `MAX_FILES`."""
    found = (Path(place, name) for place, _, names in os.walk(directory) for name in names)
    return any(rule.matches_as_written(path, places) for path in islice(found, MAX_FILES))


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


def _prefix_can_cover(rule: Rule, words: Words) -> bool:
    """Commands that run something else than their beginning shows need an exact rule."""
    name = words[0].base
    if name in _NOT_BY_PREFIX:
        return False
    texts = [word.text for word in words]
    if name == "find":
        return not any(
            text.startswith(("-exec", "-ok", "-delete")) or (WILD in text and not word.glob) for text, word in zip(texts, words)
        )
    return name != "git" or _git_can_be_covered(rule, words)


def _git_can_be_covered(rule: Rule, words: Words) -> bool:
    options, rest = git_parts(words)
    texts = [option.text for option in options]
    for index, text in enumerate(texts):
        if text == "-c" and not texts[index + 1 : index + 2]:
            return False
        if text == "-c" and not texts[index + 1].lower().startswith(_SAFE_GIT_KEYS):
            return False
        if text.startswith(("--exec-path", "--config-env")) or (text.startswith("-c") and text != "-c"):
            return False
    if not rest:
        return True
    return rest[0].text in _GIT_VERBS or rest[0].raw in (rule.specifier or "").replace(":*", "").split()
