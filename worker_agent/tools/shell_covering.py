"""What a wildcard allow rule covers: of a command that we know as a reader its reading, and what the rule spells out.

Rules:

1. `Bash(git log *)` was written by somebody who thought of reading: `git log --output=F` writes, and is not covered. Of a
   command in the tables of what is harmless (`shell_harmless`, `shell_git_harmless`) every option must be in its table
   or be spelled in the rule (`Bash(git log --output*)`, `Bash(sort -o *)`). Which files it reads is not asked here.
2. `ONLY_READ` are those of which no option writes or runs anything: any words will do.
3. A command that is no reader (`make`, `npm`, `git push`) is covered as the text of the rule says. `git *` means git's
   writing, too: its verbs that both list and change (`git branch`) are covered then.
4. Commands that run something else than their beginning shows need an exact rule.
5. An option whose value is a program (`tar --checkpoint-action=exec=`, `git push --receive-pack=`) is covered where the rule
   spells it out; a long one may be abbreviated, as the program takes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from worker_agent.tools.rules import WILD, Rule
from worker_agent.tools.shell_carriers import Words, git_parts
from worker_agent.tools.shell_git_harmless import VERBS, verb_problem
from worker_agent.tools.shell_harmless import ONLY_READ, knows, use_problem
from worker_agent.tools.shell_line import Piece, Plain, plain_word
from worker_agent.tools.shell_sight import Sight
from worker_agent.tools.shell_words import Assignment, Word

# What they run is not what the prefix shows.
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
_UNSPLIT = re.compile(r"[\w./:=@%+,-]+", re.ASCII)  # a value that stays one word without quotes
# Assignments before a command that an allow rule sees past.
_SAFE_VARIABLES = frozenset(
    """LANG LANGUAGE TZ NO_COLOR CLICOLOR FORCE_COLOR TERM COLUMNS LINES CI NODE_ENV RUST_BACKTRACE RUST_LOG GOOS GOARCH
    PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED CARGO_TERM_COLOR GIT_TERMINAL_PROMPT GIT_OPTIONAL_LOCKS""".split()
)
_LOCALE = re.compile(r"LC_[A-Z]+")
_SHELL_VARIABLE = re.compile(r"(?=.*[a-z])(?!.*_proxy$)[A-Za-z_][A-Za-z0-9_]*")
_EVERYWHERE = Sight.anywhere()
# Of these the first words are a program or a test: nothing of them may be computed.
_PROGRAMS = frozenset({"sed", "awk", "find", "test", "[", "printf"})

# Options whose value is run, of commands that are no readers: long ones, letters.
_RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "tar": (
        ("--checkpoint-action", "--to-command", "--use-compress-program", "--info-script", "--new-volume-script", "--rmt-command",
         "--rsh-command"),
        "IF",
    ),
    "rsync": (("--rsh", "--rsync-path"), "e"),
    "scp": ((), "SoF"),
    "sftp": ((), "SoFDs"),
    "ssh": ((), "oF"),
    "zip": (("--unzip-command",), ""),
    "git push": (("--receive-pack", "--exec"), ""),
    "git send-pack": (("--receive-pack", "--exec"), ""),
    "git fetch": (("--upload-pack",), ""),
    "git fetch-pack": (("--upload-pack", "--exec"), ""),
    "git pull": (("--upload-pack",), ""),
    "git ls-remote": (("--upload-pack", "--exec"), ""),
    "git clone": (("--upload-pack", "--config", "--template"), "uc"),
    "git init": (("--template",), ""),
    "git archive": (("--exec",), ""),
    "git difftool": (("--extcmd", "--tool"), "xt"),
    "git mergetool": (("--tool",), "t"),
    "git rebase": (("--exec",), "x"),
}  # fmt: skip


def covers_use(rule: Rule, words: Words, places: Sequence[Path]) -> bool:
    """Whether a wildcard rule whose text matches these words covers this use of the command. `places` are the directories
    in which it may run, none where nobody knows."""
    name = words[0].base
    if not words[0].static or name in _NOT_BY_PREFIX:
        return False
    if not all(_spelled(rule, word) for word in _programs_in(words)):
        return False
    if name == "git":
        return _git_can_be_covered(rule, words) and _git_use(rule, words, places)
    if name in ONLY_READ or not knows(name):
        return True
    decisive = words[:2] if name == "printf" else words  # what follows its format is text
    plain = _plain(decisive, places, computed=name not in _PROGRAMS)
    if plain is None:
        return False
    rest = _unspelled(rule, plain[1:])
    head = Plain((Piece(name),))
    return all(use_problem((head, *rest), place, _EVERYWHERE) is None for place in places or (Path("/"),))


def _programs_in(words: Words) -> Iterator[Word]:
    """The options that name a program to run, and those that may become one."""
    name, rest = words[0].base, words[1:]
    if name == "git" and (verb := git_parts(words)[1]):
        name, rest = f"git {verb[0].text}", verb[1:]
    long, letters = _RUNS.get(name, ((), ""))
    bundled = name == "tar" and rest[:1] and not rest[0].text.startswith("-")  # `tar xf` needs no dash
    for index, word in enumerate(rest if long or letters else ()):
        option = word.text.partition("=")[0]
        if not word.static and (word.splits or word.glob or word.text.startswith(("-", WILD))):
            yield word
        elif option.startswith("--") and len(option) > 2:
            if any(one.startswith(option) for one in long):
                yield word
        elif (option.startswith("-") or (bundled and index == 0)) and set(option) & set(letters):
            yield word


def _spelled(rule: Rule, word: Word) -> bool:
    plain = plain_word(word.raw) if word.static and word.raw else None
    return plain is not None and len(plain) == 1 and not _unspelled(rule, plain)


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
    return rest[0].text in _GIT_VERBS or rest[0].raw in _tokens(rule)


def _git_use(rule: Rule, words: Words, places: Sequence[Path]) -> bool:
    _, rest = git_parts(words)
    verb = VERBS.get(rest[0].text) if rest else None
    if verb is None:
        return True
    if not verb.operands and rest[0].text not in _tokens(rule):
        return True
    plain = _plain(rest, places, computed=True)
    if plain is None or any(word.is_glob and _may_be_option(word, places) for word in plain):
        return False
    unspelled = _unspelled(rule, plain[1:])
    texts = [word.text for word in unspelled]
    return verb_problem([rest[0].text, *texts], Path("/"), _EVERYWHERE, names=len(unspelled) < len(plain) - 1) is None


def _plain(words: Words, places: Sequence[Path], *, computed: bool) -> tuple[Plain, ...] | None:
    """The words for the tables; None where one of them may become an option that nobody sees. `computed`: a word that only
    the shell knows may stand where it can be nothing but one operand or the value of a long option."""
    found: list[Plain] = []
    for word in words:
        for one in word.values or (word,):
            if word.splits and one is not word and not _UNSPLIT.fullmatch(one.raw):
                return None
            plain = plain_word(one.raw) if one.raw else None
            if plain is None and computed and _is_one_operand(one):
                plain = (Plain((Piece(one.text.replace(WILD, "x")),), quoted=True),)
            if plain is None or (not places and any(part.is_glob for part in plain)):
                return None
            found += plain
    return tuple(found)


def _is_one_operand(word: Word) -> bool:
    return not word.glob and not word.splits and bool(re.match(r"[^\0-]|--[a-z-]+=", word.text))


def _may_be_option(word: Plain, places: Sequence[Path]) -> bool:
    found = [word.names(place) for place in places]
    return any(names is None or any(name.startswith("-") for name in names) for names in found)


def _unspelled(rule: Rule, words: Sequence[Plain]) -> list[Plain]:
    """The words without the options that the rule spells out, each as often as it does."""
    spelled = [token for token in _tokens(rule) if token.startswith("-")]
    return [word for word in words if not _taken(spelled, word)]


def _taken(spelled: list[str], word: Plain) -> bool:
    for token in spelled:
        literal, star, tail = token.partition("*")
        name = literal.rstrip("=")
        whole = word.text == token
        begun = star and not tail and re.fullmatch(r"--?[A-Za-z][\w-]*", name) and word.text.partition("=")[0] == name
        short = star and not tail and re.fullmatch(r"-[A-Za-z]", literal) and word.text.startswith(literal)
        if not word.is_glob and (whole or begun or short):
            spelled.remove(token)
            return True
    return False


def _tokens(rule: Rule) -> list[str]:
    return list(_split(rule.specifier or ""))


def _split(specifier: str) -> Iterator[str]:
    text = specifier[:-2] + " *" if specifier.endswith(":*") else specifier
    yield from (token.replace("\\*", "*") if "\\*" in token else token for token in text.split())


def safe_assignment(assignment: Assignment, before_command: bool) -> bool:
    """Whether an assignment changes nothing for the programs that run. A variable of the shell's own, in small letters,
    is never exported by itself."""
    name = assignment.name
    if name in _SAFE_VARIABLES or _LOCALE.fullmatch(name):
        return True
    return not before_command and _SHELL_VARIABLE.fullmatch(name) is not None
