"""Which shell commands only read: the fixed table of commands that run without asking, and which words of them are paths.

An option that could write or run something takes a command out of the table, and so does, for `find` and `git`, any word
that the shell may turn into such an option (an unquoted pattern, an expansion).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from worker_agent.tools.shell_carriers import Words, git_parts, stripped
from worker_agent.tools.shell_parser import Unparsable, parse_cached
from worker_agent.tools.shell_words import Assignment, SimpleCommand, Word

# Assignments before a command that an allow rule and this table see past.
SAFE_VARIABLES = frozenset(
    """LANG LANGUAGE TZ NO_COLOR CLICOLOR FORCE_COLOR TERM COLUMNS LINES CI NODE_ENV RUST_BACKTRACE RUST_LOG GOOS GOARCH
    PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED CARGO_TERM_COLOR GIT_TERMINAL_PROMPT GIT_OPTIONAL_LOCKS""".split()
)
_LOCALE = re.compile(r"LC_[A-Z]+")
_SHELL_VARIABLE = re.compile(r"(?=.*[a-z])(?!.*_proxy$)[A-Za-z_][A-Za-z0-9_]*")

FREE_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/zero"})

_FIND_WRITES = re.compile(r"-(exec|execdir|ok|okdir|delete|fprint|fprint0|fprintf|fls|files0-from)")
_ANY: Callable[[Words], bool] = lambda words: True  # noqa: E731


def _find(words: Words) -> bool:
    return _certain(words) and not any(_FIND_WRITES.match(word.text) for word in words)


def _certain(words: Words) -> bool:
    """No word may become an option that is not written here."""
    return all(word.static and not word.glob and not word.splits for word in words)


_COMMANDS: Mapping[str, Callable[[Words], bool]] = {
    **dict.fromkeys("ls cat echo pwd head tail grep wc which diff stat du cd true false :".split(), _ANY),
    **dict.fromkeys(("test", "["), lambda words: not {"-v", "-R"} & {word.text for word in words}),
    "find": _find,
    "git": lambda words: _git(words),
}

_GIT_FREE_OPTIONS = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"})
_GIT_VERBS = frozenset(
    """status log diff show blame annotate rev-parse rev-list ls-files ls-tree cat-file describe shortlog name-rev merge-base
    grep for-each-ref show-ref show-branch whatchanged count-objects check-ignore check-attr diff-tree diff-index diff-files
    var cherry range-diff version""".split()
)
_GIT_WRITES = re.compile(
    r"--o(u(t(p(ut?)?)?)?)?(=|$)|--ext|--open|-O|--exec|--upload-pack|--textconv|--filters|--no-index|--contents|"
    r"--help|-h$|--edit|--batch-command|--sq-quote"
)


def _git(words: Words) -> bool:
    options, rest = git_parts(words)
    if not _certain(words) or any(option.text not in _GIT_FREE_OPTIONS for option in options) or not rest:
        return [w.text for w in words[1:]] == ["--version"]
    verb, arguments = rest[0].text, [word.text for word in rest[1:]]
    if any(_GIT_WRITES.match(argument) for argument in arguments):
        return False
    return verb in _GIT_VERBS or (verb in _GIT_SOMETIMES and _GIT_SOMETIMES[verb](arguments))


def _lists_only(flags: str) -> Callable[[Sequence[str]], bool]:
    allowed = frozenset(flags.split())

    def check(arguments: Sequence[str]) -> bool:
        return all(argument.partition("=")[0] in allowed for argument in arguments)

    return check


def _config(arguments: Sequence[str]) -> bool:
    reads = {"--get", "--get-all", "--get-regexp", "--list", "-l", "--show-origin", "--show-scope", "--local", "--global", "-z"}
    options = [a for a in arguments if a.startswith("-")]
    return bool(set(options) & {"--get", "--get-all", "--get-regexp", "--list", "-l"}) and set(options) <= reads


_GIT_SOMETIMES: Mapping[str, Callable[[Sequence[str]], bool]] = {
    "branch": _lists_only("-a -r -v -vv -l --list --all --remotes --show-current --verbose --sort --format --no-color --color"),
    "tag": _lists_only("-l --list --sort --format -n"),
    "remote": lambda a: list(a) in ([], ["-v"], ["--verbose"]) or (len(a) == 2 and a[0] == "get-url"),
    "stash": lambda a: list(a[:1]) in (["list"], ["show"]),
    "reflog": lambda a: not a or a[0] == "show" or (a[0].startswith("-") and "expire" not in a and "delete" not in a),
    "worktree": lambda a: list(a[:1]) == ["list"],
    "config": _config,
    "symbolic-ref": lambda a: len([x for x in a if not x.startswith("-")]) == 1 and not {"-d", "--delete"} & set(a),
}


def read_only(command: str) -> bool:
    """Whether this command has no side effects, whatever it reads. False for what cannot be parsed."""
    parsed = parse_cached(command)
    return not isinstance(parsed, Unparsable) and bool(parsed) and all_read_only(parsed)


def all_read_only(commands: Sequence[SimpleCommand]) -> bool:
    """Every part is in the table; `cd` beside `git` never is: the repository's own settings run programs."""
    parts = [command for command in commands if not command.carried]
    return not cd_beside_git(parts) and all(part_read_only(command) for command in parts)


def cd_beside_git(commands: Sequence[SimpleCommand]) -> bool:
    names = {unwrapped(command.words)[0].text for command in commands if command.words}
    return {"cd", "git"} <= names


def part_read_only(command: SimpleCommand) -> bool:
    writes = any(redirect.writes and not free_target(redirect.target) for redirect in command.redirects)
    return not writes and words_read_only(command)


def words_read_only(command: SimpleCommand) -> bool:
    """The same without a look at its redirections."""
    if command.opaque or not all(safe_assignment(a, bool(command.words)) for a in command.assignments):
        return False
    if not command.words or command.defined:
        return True
    words = unwrapped(command.words)
    check = _COMMANDS.get(words[0].text)
    return check is not None and words[0].static and check(words)


def unwrapped(words: Words) -> Words:
    """The innermost command under exact wrappers."""
    while (inner := stripped(words)) is not None:
        words = inner
    return words


def safe_assignment(assignment: Assignment, before_command: bool) -> bool:
    """Whether an assignment changes nothing for the programs that run. A variable of the shell's own, in small letters,
    is never exported by itself."""
    name = assignment.name
    if name in SAFE_VARIABLES or _LOCALE.fullmatch(name):
        return True
    return not before_command and _SHELL_VARIABLE.fullmatch(name) is not None


def free_target(target: Word | None) -> bool:
    return target is None or (target.text in FREE_FILES)


_VALUED = {
    "grep": frozenset("-A -B -C -m -e -d -D --include --exclude --exclude-dir --max-count --context".split()),
    "head": frozenset("-n -c --lines --bytes".split()),
    "tail": frozenset("-n -c -s --lines --bytes --pid".split()),
    "du": frozenset("-d -t -B --max-depth --threshold --exclude".split()),
    "ls": frozenset("-I -w -T --ignore --hide".split()),
    "find": frozenset(
        """-name -iname -path -ipath -wholename -regex -iregex -type -size -mtime -mmin -atime -ctime -maxdepth -mindepth -perm
        -user -group -printf -lname -regextype -newermt""".split()
    ),
    "stat": frozenset("-c --format --printf".split()),
    "diff": frozenset("-U -C -W -I -x --label -L".split()),
}
_SEARCHERS = frozenset("grep egrep fgrep zgrep rg ag ack jq".split())  # their first operand is no file
_NO_PATHS = frozenset({"echo", "pwd", "which", "git", "true", "false", ":", "test", "["})


def read_paths(words: Words) -> Iterator[Word]:
    """The words of a read-only command that name files. Called with the unwrapped words."""
    name = words[0].text
    if name in _NO_PATHS:
        return
    valued, skip_pattern, index = _VALUED.get(name, frozenset()), name in _SEARCHERS, 1
    if any(re.match(r"-[A-Za-z]*[ef]|--regexp|--file", word.text) for word in words[1:]):
        skip_pattern = False
    options = True
    while index < len(words):
        word = words[index]
        index += 1
        if options and word.text == "--":
            options = False
        elif options and word.text.startswith("-") and len(word.text) > 1:
            index += word.text in valued
            yield from _inside_option(word)
        elif skip_pattern:
            skip_pattern = False
        elif name != "find" or not re.fullmatch(r"[!(),;]|", word.text):
            yield word


def _inside_option(word: Word) -> Iterator[Word]:
    """`--file=/etc/x`, `-f/etc/x`: a path that hangs on its option."""
    if match := re.search(r"(~|\.\.|/).*", word.text.partition("=")[2] or word.text, re.DOTALL):
        yield Word(match[0], match[0], tilde=match[0].startswith("~"))
