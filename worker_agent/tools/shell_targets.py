"""The files that a command names, for fences: generous, since what is found here can only deny or ask, never allow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from worker_agent.tools.shell_carriers import Words, git_parts
from worker_agent.tools.shell_words import Word

_FREE_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/zero"})

READERS = frozenset(
    """cat head tail grep egrep fgrep zgrep rg ag ack find wc diff stat du ls sed awk less more nl sort cut xxd od strings base64 tac
    pr fold fmt comm paste join uniq hexdump cmp jq zcat bat""".split()
)
WRITERS = frozenset(
    "rm rmdir unlink mv cp touch mkdir mkfifo tee sponge truncate ln install shred dd split csplit chmod chown chgrp setfacl".split()
)
_GIT_WRITERS = frozenset("checkout restore rm mv clean".split())  # they change the files that they are given
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
_NAME_ONLY = frozenset(
    "echo printf cd pushd type command which export readonly local declare alias unset kill".split()
)  # no contents


def free_target(target: Word | None) -> bool:
    """Whether a redirection there writes and reads no file."""
    return target is None or target.text in _FREE_FILES


def read_paths(words: Words) -> Iterator[Word]:
    """The words of a command that reads that name files. Called with the unwrapped words."""
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


def hidden_targets(words: Words) -> Iterator[tuple[str, Word]]:
    """Files inside other words, generously: `dd of=F`, `--target-directory=F`, `git show REV:F`, `sed -i F`, `find -fprintf F`."""
    name = words[0].base
    git_writes = name == "git" and any(word.text in _GIT_WRITERS for word in words[1:])
    for index, word in enumerate(words[1:], 1):
        if name == "git" and ":" in word.text:
            yield "Read", Word(word.raw, word.text.partition(":")[2])
        elif name == "git" and not word.text.startswith("-"):
            yield "Edit" if git_writes else "Read", word
        elif name == "sort" and words[index - 1].text in ("-o", "--output"):
            yield "Edit", word
        elif name == "sort" and re.match(r"-[a-zA-Z]*o.", word.text):
            yield "Edit", Word(word.raw, word.text.partition("o")[2])
        elif word.text.startswith("file:"):
            yield "Read", Word(word.raw, word.text.removeprefix("file:").removeprefix("//"))
        elif "=" in word.text and name != "echo":
            value = Word(word.raw, word.text.partition("=")[2])
            yield from (("Read", value), ("Edit", value))
        elif name == "find" and words[index - 1].text.startswith(("-fprint", "-fls")):
            yield "Edit", word
        elif name in ("sed", "perl", "tar", "zip", "rsync", "scp", "python", "python3") and not word.text.startswith("-"):
            yield (
                "Edit" if name in ("sed", "perl") and any(w.text.startswith(("-i", "--in-place")) for w in words) else "Read",
                word,
            )
        elif name not in READERS | WRITERS | _NAME_ONLY and word.static and not word.text.startswith("-"):
            yield "Read", word  # whatever the program is: it is given that file


def searched_by_git(words: Words) -> Iterator[Word]:
    """What `git grep` reads with all that lies below: the paths that it is given, else where it stands."""
    if words[0].base != "git" or not (rest := git_parts(words)[1]) or rest[0].text != "grep":
        return
    apart = next((index for index, word in enumerate(rest) if word.text == "--"), None)
    named = rest[apart + 1 :] if apart is not None else ()
    yield from named or [Word(".", ".")]


def reads_below(words: Words) -> bool:
    """Whether a reader reads every file below a directory that it is given."""
    name, options = words[0].base, [word.text for word in words[1:] if word.text.startswith("-")]
    if name in ("rg", "ag", "ack"):
        return True
    flags = {"grep": "rR", "egrep": "rR", "fgrep": "rR", "zgrep": "rR", "diff": "r"}.get(name, "")
    short = any(re.fullmatch(r"-\w+", option) and set(option[1:]) & set(flags) for option in options)
    return bool(flags) and (
        short or any(option.startswith(("--rec", "--dereference-rec", "--directories=rec")) for option in options)
    )
