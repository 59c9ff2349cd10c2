"""Which calls of git run unasked: reading ones, in the one repository of the session, whose settings run nothing.

Rules:

1. The repository that git would find from where the command stands must be the one that it finds from the session's own
   directory. A bare repository inside the files (`vendor/x/HEAD`, `objects`, `refs`) is another one.
2. `git status` runs what a repository's settings name (`core.fsmonitor`, filters, text conversions, uploads of a partial
   clone), so these must be known to run nothing: `shell_git_repository.py`.
3. Verbs and their options are a positive table as in `shell_harmless.py`. What shows file content is asked about the
   deny rules for files: it runs where no rule speaks about reading, or where every path is named after `--`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from worker_agent.structs import replace
from worker_agent.tools.shell_git_repository import repository_problem
from worker_agent.tools.shell_sight import Sight


class _Verb(Struct, frozen=True):
    """`shows` says that the verb prints content of files unless one of `brief` is given; `content` are options that make it."""

    options: frozenset[str]
    valued: frozenset[str] = frozenset()
    pattern: str = r"(?!)"
    operands: bool = True
    shows: bool = False
    brief: frozenset[str] = frozenset()
    content: frozenset[str] = frozenset()


def _verb(
    options: str = "", valued: str = "", pattern: str = r"(?!)", *, operands: bool = True, shows: bool = False,
    brief: str = "", content: str = "",
) -> _Verb:  # fmt: skip
    return _Verb(
        frozenset(options.split()), frozenset(valued.split()), pattern, operands, shows, frozenset(brief.split()),
        frozenset(content.split()),
    )  # fmt: skip


_BRIEF = "--stat --name-only --name-status --numstat --shortstat --summary --no-patch -s --quiet --dirstat"
# What makes lines of files appear, even beside one of `_BRIEF`.
_CONTENT = "-p -u --patch -c --cc -m -W --function-context --word-diff --color-words --binary --check --patch-with-stat --patch-with-raw"
_DIFF = f"""{_BRIEF} -p -u --patch --raw --cached --staged --color --no-color --word-diff --minimal --patience --histogram -w -b
    --ignore-all-space --ignore-space-change --ignore-blank-lines --no-renames --find-renames -M -C -R --exit-code --check -z
    --no-ext-diff --no-textconv --full-index --binary --abbrev --merge-base --text -a --no-prefix --compact-summary -W
    --function-context --indent-heuristic --no-indent-heuristic --ignore-space-at-eol --ignore-cr-at-eol --find-copies
    --find-copies-harder --pickaxe-all --pickaxe-regex --color-words --patch-with-stat --patch-with-raw --cumulative --no-color-moved
    --color-moved --irreversible-delete -D --ita-invisible-in-index --default-prefix -B --break-rewrites"""
_DIFF_PATTERN = (
    r"-U\d+|--unified=\d+|--stat=[\d,]+|--diff-filter=[A-Za-z*]+|--abbrev=\d+|--color=\w+|-M\d+%?|--word-diff=\w+|--relative|--inter-hunk-context=\d+|--diff-algorithm=\w+"
    r"|--find-renames=\d+%?|--(?:src|dst)-prefix=\S*|--color-moved=\w+|--ignore-matching-lines=.+|--dirstat=[\w,.]+"
    r"|--stat-width=\d+|--ws-error-highlight=\w+|--line-prefix=.*"
)
_LOG = f"""{_DIFF} --oneline --graph --decorate --all --branches --tags --remotes --no-merges --merges --first-parent --reverse
    --follow --date-order --topo-order --no-decorate --left-right --cherry-pick --cherry --abbrev-commit -i -E -F --no-color
    --full-history --simplify-by-decoration --boundary --no-show-signature -g --walk-reflogs --no-notes --notes -c --cc
    --ancestry-path --sparse --dense --simplify-merges --cherry-mark --left-only --right-only --author-date-order --parents --children
    --invert-grep --all-match --basic-regexp --extended-regexp --fixed-strings --perl-regexp -P --regexp-ignore-case --log-size
    --no-expand-tabs --mailmap --use-mailmap --source --clear-decorations --relative-date --timestamp --no-walk --root -m
    --no-diff-merges --no-max-parents --no-min-parents --not --oneline --remove-empty --reflog --show-pulls"""
_LOG_PATTERN = (
    rf"{_DIFF_PATTERN}|-\d+|-n\d+|--(?:max-count|skip)=\d+|--(?:since|until|after|before|author|committer|grep|date|decorate)=.+"
    r"|--(?:format|pretty)=[^\x00]+|-[SG].+|-L\d+,[+\d]+:[^/].*"
)
_VALUED_LOG = "-n --since --until --after --before --author --committer --grep --date -S -G --max-count --skip --format"

VERBS: Mapping[str, _Verb] = {
    "status": _verb("-s -sb -bs -su -sbu -sz --short -b --branch --porcelain -u -uno -unormal -uall --ignored -v --long -z --show-stash --no-renames --ahead-behind",
                    pattern=r"--porcelain=v?[12]|--untracked-files=(?:no|normal|all)|--ignore-submodules(?:=\w+)?"),
    "log": _verb(_LOG, _VALUED_LOG, _LOG_PATTERN, content=f"{_CONTENT} -S -G"),
    "shortlog": _verb("-s -n -e -sn -ne -sne -nse --all --no-merges --summary --numbered --email", pattern=r"--(?:since|until)=.+"),
    "diff": _verb(_DIFF, pattern=_DIFF_PATTERN, shows=True, brief=_BRIEF, content=_CONTENT),
    "show": _verb(_LOG, "--format --date", _LOG_PATTERN, shows=True, brief=_BRIEF, content=_CONTENT),
    "blame": _verb("-w -l -s -e -f -n --porcelain --line-porcelain -M -C --show-email --date", pattern=r"-L\d+,[+\d]+|-L:?\w+|--date=\w+",
                   valued="-L", shows=True),
    "branch": _verb("-a -r -v -vv -l --list --all --remotes --show-current --verbose --no-color --color -avv -av -rv",
                    pattern=r"--(?:sort|format|contains|merged|no-merged)=.+|--(?:merged|no-merged)", operands=False),
    "tag": _verb("-l --list -n --no-color", pattern=r"--(?:sort|format)=.+|-n\d+", operands=False),
    "ls-files": _verb("-c -d -m -o -i -s -u -z -t -v --cached --deleted --modified --others --ignored --stage --unmerged --exclude-standard "
                      "--error-unmatch --full-name --directory --eol"),
    "ls-tree": _verb("-r -t -d -l -z --name-only --name-status --full-tree --full-name --long -rl"),
    "rev-parse": _verb("--verify --short --abbrev-ref --show-toplevel --git-dir --is-inside-work-tree --symbolic-full-name --quiet -q "
                       "--show-prefix --absolute-git-dir --git-common-dir --is-bare-repository --show-cdup", pattern=r"--short=\d+"),
    "rev-list": _verb("--count --all --max-parents=0 --no-merges --left-right --reverse --first-parent", "-n",
                      r"-\d+|-n\d+|--max-count=\d+|--(?:since|until)=.+"),
    "grep": _verb("-n -i -l -L -c -w -v -h -H -E -F -P -G -q -I --line-number --name-only --files-with-matches --count --ignore-case "
                  "--word-regexp --cached --untracked --heading --break --show-function -W -p --all-match -ni -in -il -nE -li -nw -rn -niE",
                  "-e -A -B -C", r"-[ABC]\d+|--max-depth=\d+|-m\d+", shows=True),
    "cat-file": _verb("-t -s -e -p", shows=True, brief="-t -s -e"),
    "merge-base": _verb("--is-ancestor --all --fork-point --octopus"),
    "describe": _verb("--tags --always --long --all --dirty --abbrev=0 --exact-match", pattern=r"--abbrev=\d+|--match=.+"),
    "for-each-ref": _verb(pattern=r"--(?:sort|format|count|contains|merged)=.+"),
    "show-ref": _verb("--heads --tags -s --head --hash --verify -q --quiet"),
    "name-rev": _verb("--name-only --tags --always"),
    "count-objects": _verb("-v -H -vH", operands=False),
    "check-ignore": _verb("-v -q -n --no-index"),
    "cherry": _verb("-v"),
    "diff-tree": _verb(f"{_DIFF} -r -t --root --no-commit-id", pattern=_DIFF_PATTERN, shows=True, brief=_BRIEF, content=_CONTENT),
    "version": _verb(operands=False),
}  # fmt: skip
_WHOLE = frozenset(
    {"remote", "remote -v", "remote --verbose", "remote get-url origin", "stash list", "reflog", "worktree list", "--version",
     "config --get user.name", "config --get user.email", "config user.name", "config user.email", "config --get remote.origin.url",
     "branch", "tag", "symbolic-ref HEAD", "symbolic-ref --short HEAD", "symbolic-ref refs/remotes/origin/HEAD"}
)  # fmt: skip


def git_is_harmless(words: Sequence[str], place: Path, sight: Sight) -> str | None:
    """Why `git WORDS`, run in `place`, is not proved harmless; None if it is."""
    words = list(words)
    while words and words[0] in ("--no-pager", "-P", "--no-optional-locks", "-C"):
        if words.pop(0) == "-C":
            if not words or (problem := sight.file(place / words[0])):
                return "`git -C` leads outside"
            place = place / words.pop(0)
    if not sight.everywhere and (problem := repository_problem(place, sight)):
        return problem
    return verb_problem(words, place, sight)


def verb_problem(words: Sequence[str], place: Path, sight: Sight, *, names: bool = False) -> str | None:
    """The same of a verb and what follows, whatever the repository's settings are. `names`: verbs that list may be given a
    name, too."""
    if " ".join(words) in _WHOLE:
        return None
    verb = VERBS.get(words[0]) if words else None
    if verb is None:
        return f"`git {words[0] if words else ''}` is not known to be harmless"
    return _against(words[0], replace(verb, operands=verb.operands or names), words[1:], place, sight)


def _against(name: str, verb: _Verb, words: Sequence[str], place: Path, sight: Sight) -> str | None:
    given: set[str] = set()
    operands: list[str] = []
    paths: list[str] | None = None
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if paths is not None:
            paths.append(word)
        elif word == "--":
            paths = []
        elif not word.startswith("-"):
            operands.append(word)
        elif word in verb.valued and index < len(words):
            given.add(word)
            index += 1
        elif word in verb.options or re.fullmatch(verb.pattern, word):
            given.add(_as_given(word))
        else:
            return f"the option `{word}` of `git {name}` is not known to be harmless"
    if (operands or paths) and not verb.operands and not {"-l", "--list"} & given:
        return f"`git {name}` with a name changes something"
    pattern = operands[:1] if name == "grep" and "-e" not in given else []
    for word in (*operands[len(pattern) :], *(paths or ())):
        if problem := _operand(word, place, sight):
            return problem
    shows = (verb.shows and not (verb.brief & given)) or bool((verb.content | {"-L"}) & given)
    return _content(paths, operands, place, sight) if shows else None


def _as_given(word: str) -> str:
    """`-Sx` is `-S`; context of any width asks for a patch."""
    if re.match(r"-U|--unified|--inter-hunk|--word-diff|--ws-error", word):
        return "-p"
    return word[:2] if re.match("-[LSG]", word) else word


def _operand(word: str, place: Path, sight: Sight) -> str | None:
    """A revision, or a path inside the repository: with one outside, git compares files without any repository."""
    if not sight.everywhere and (not word or word.startswith(("/", "~", ":")) or ".." in word.split("/")):
        return f"`{word}` may lie outside the repository"
    return None


def _content(paths: list[str] | None, operands: Sequence[str], place: Path, sight: Sight) -> str | None:
    if not sight.fences:
        return None
    if not paths or any(":" in word for word in operands):
        return "it may show what a rule denies to read"
    for path in paths:
        if re.search(r"[*?\[\\]|^:", path):
            return "it may show what a rule denies to read"
        if problem := sight.file(place / path) or sight.tree(place / path, follow=False):
            return problem
        if not (place / path).is_file():
            return "it may show what a rule denies to read"
    return None
