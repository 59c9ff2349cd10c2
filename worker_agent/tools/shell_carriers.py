"""Commands that run other commands: wrappers that are seen through, and carriers whose inner command a fence must see.

`stripped` is exact and small: an allow rule and the read-only table look through these wrappers. `carried` is generous: it
only ever feeds deny and ask rules, so where an option is not known, every reading of it is offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from worker_agent.tools.rules import WILD
from worker_agent.tools.shell_words import SimpleCommand, Word

Words = tuple[Word, ...]

MAX_CARRIERS = 200  # looked at for one command

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash", "mksh", "fish", "rbash"})


class Script(Struct, frozen=True):
    """A text that a shell will read. `text` is None when nobody knows it; `hidden` says so in words."""

    text: str | None
    hidden: str = "what it runs is only known to the shell"


class _Wrapper(Struct, frozen=True):
    """Options without a value, options with one, operands before the inner command."""

    flags: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    operands: int = 0
    pattern: str = r"(?!)"  # further options in one word


_WRAPPERS: Mapping[str, _Wrapper] = {
    "timeout": _Wrapper(
        frozenset({"--foreground", "--preserve-status", "-v", "--verbose", "-f", "-p"}),
        frozenset({"-k", "-s", "--kill-after", "--signal"}), 1, r"--(kill-after|signal)=\S+|-[ks]\S+",
    ),
    "time": _Wrapper(frozenset({"-p"})),
    "nice": _Wrapper(valued=frozenset({"-n", "--adjustment"}), pattern=r"-n?-?\d+|--adjustment=-?\d+"),
    "nohup": _Wrapper(),
    "stdbuf": _Wrapper(
        valued=frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}),
        pattern=r"-[ioe]\w+|--(input|output|error)=\w+",
    ),
    "command": _Wrapper(frozenset({"-p"})),
    "builtin": _Wrapper(),
    "noglob": _Wrapper(),
    "coproc": _Wrapper(),
    "xargs": _Wrapper(),
}  # fmt: skip


def stripped(words: Words) -> Words | None:
    """The command under one exact wrapper, None where there is none."""
    name = words[0].text if words else ""
    wrapper = _WRAPPERS.get(name)
    if wrapper is None or len(words) < 2:
        return None
    rest = _after_options(words[1:], wrapper)
    if rest is None or len(rest) <= wrapper.operands:
        return None
    if any(not word.static for word in rest[: wrapper.operands]):
        return None
    inner = rest[wrapper.operands :]
    return (*inner, Word("", WILD)) if name == "xargs" else inner


def unwrapped(words: Words) -> Words:
    """The innermost command under exact wrappers."""
    while (inner := stripped(words)) is not None:
        words = inner
    return words


def _after_options(words: Words, wrapper: _Wrapper) -> Words | None:
    while words and words[0].text.startswith("-"):
        option = words[0].text
        if option == "--":
            return words[1:]
        if option in wrapper.valued and len(words) > 1:
            words = words[2:]
        elif option in wrapper.flags or re.fullmatch(wrapper.pattern, option):
            words = words[1:]
        else:
            return None
    return words


# Carriers: options that take a value, and operands before the inner command.
_CARRIERS: Mapping[str, tuple[frozenset[str], int]] = {
    name: (frozenset(options.split()), operands)
    for name, options, operands in (
        ("sudo", "-u -g -h -p -C -T -D -R -U", 0), ("doas", "-u -C", 0), ("env", "-u -C --unset --chdir", 0),
        ("xargs", "-I -L -n -P -s -d -E -a", 0), ("setsid", "", 0), ("ionice", "-c -n -p", 0), ("flock", "-w -E", 1),
        ("watch", "-n -q", 0), ("exec", "-a", 0), ("chroot", "", 1), ("unshare", "-S -G", 0), ("nsenter", "-t", 0),
        ("strace", "-e -o -p -s -u", 0), ("ltrace", "-e -o -p", 0), ("busybox", "", 0), ("toybox", "", 0),
        ("systemd-run", "-p -u", 0), ("taskset", "", 1), ("chrt", "", 1), ("prlimit", "", 0), ("unbuffer", "", 0),
        ("caffeinate", "-t -w", 0), ("parallel", "-j -S", 0), ("npx", "-p -c", 0), ("bunx", "", 0), ("pnpm", "", 1),
        ("direnv", "", 2), ("runuser", "-u -g", 0), ("setpriv", "", 0), ("fakeroot", "", 0), ("proot", "-r -b -w", 0),
        ("bwrap", "", 0), ("firejail", "", 0), ("cgexec", "-g", 0), ("numactl", "", 0), ("linux32", "", 0),
        ("linux64", "", 0), ("setarch", "", 1), ("catchsegv", "", 0), ("valgrind", "", 0), ("perf", "", 1),
        ("uv", "", 1), ("poetry", "", 1), ("pipenv", "", 1), ("rtk", "", 0), ("entr", "", 0), ("torsocks", "", 0),
        ("proxychains", "-f", 0), ("proxychains4", "-f", 0), ("rlwrap", "", 0), ("softlimit", "", 0), ("chpst", "-u", 0),
        ("setuidgid", "", 1), ("ssh-agent", "", 0), ("dbus-run-session", "", 0), ("xvfb-run", "-n -s", 0),
        ("timeout", "-k -s", 1), ("time", "-f -o", 0), ("nice", "-n", 0), ("nohup", "", 0), ("stdbuf", "-i -o -e", 0),
        ("command", "", 0), ("builtin", "", 0), ("noglob", "", 0), ("coproc", "", 0), ("-", "", 0), ("nocorrect", "", 0),
    )
}  # fmt: skip
# Commands of which one or all arguments are read by a shell.
_EVALUATORS = frozenset({"eval", "trap", "alias", "watch", "ssh", "parallel", "entr"})
# Words that only speak about commands: `echo bash -c …` runs nothing.
_SPEAKERS = frozenset({"echo", "printf", "git", "grep", "rg", "man", "which", "type", "test", "cat", "ls", "find"})
_GIT_SHELL_OPTIONS = frozenset({"-x", "--exec", "--extcmd", "--tree-filter", "--index-filter", "--msg-filter", "--upload-pack"})


def carried(command: SimpleCommand) -> Iterator[Words | Script]:
    """What this command may run besides itself, to any depth; texts for a shell are given as they are."""
    waiting: list[Words] = [command.words]
    seen: set[tuple[str, ...]] = set()
    while waiting:
        if len(seen) >= MAX_CARRIERS:
            yield Script(None, "commands inside commands inside commands")
            return
        words = waiting.pop()
        key = tuple(word.text for word in words)
        if not words or key in seen:
            continue
        seen.add(key)
        found: list[Words | Script] = [*_inner(words), *_scripts(words, command)]
        for item in found:
            yield item
            if not isinstance(item, Script):
                waiting.append(item)


def _base(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _inner(words: Words) -> Iterator[Words]:
    name = _base(words[0])
    if name == "command" and any(re.fullmatch(r"-p?[vV]p?", word.text) for word in words[1:2]):
        return
    if (inner := stripped(words)) is not None:
        yield inner
    elif name in _CARRIERS:
        yield from _suffixes(words[1:], *_CARRIERS[name])
    if name == "find" or name == "fd":
        yield from _find_commands(words)
    if name not in _SPEAKERS:
        for index, word in enumerate(words[1:], 1):
            if _base(word) in SHELLS and any(re.fullmatch(r"-[a-z]*c[a-z]*", w.text) for w in words[index + 1 :]):
                yield words[index:]


def _suffixes(words: Words, valued: frozenset[str], operands: int) -> Iterator[Words]:
    """Where the inner command may begin. An option that is not known may or may not take the next word."""
    starts, index = set(), 0
    while index < len(words):
        text = words[index].text
        if text == "--":
            index += 1
            starts.add(index + operands)
            break
        if text.startswith("-") and len(text) > 1:
            if text in valued:
                index += 1
            elif "=" not in text:
                starts.add(index + 2 + operands)
            index += 1
        elif re.match(r"[A-Za-z_]\w*=", text):
            index += 1
        else:
            starts.add(index + operands)
            break
    for start in sorted(starts):
        if start < len(words):
            yield words[start:]


def _find_commands(words: Words) -> Iterator[Words]:
    for index, word in enumerate(words):
        if word.text in ("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"):
            end = next((i for i in range(index + 1, len(words)) if words[i].text in (";", "+")), len(words))
            if end > index + 1:
                yield words[index + 1 : end]


def _scripts(words: Words, command: SimpleCommand) -> Iterator[Script]:
    name = _base(words[0])
    if not words[0].static:
        return
    if name in SHELLS:
        yield from _shell_scripts(words, command)
    elif name in _EVALUATORS and len(words) > 1:
        yield from _evaluated(name, words)
    elif name in ("source", "."):
        yield from _sourced(words, command)
    elif name == "env":
        yield from (Script(text) for text in _option_values(words, ("-S", "--split-string")))
    elif name in ("su", "script", "flock", "runuser", "npx", "nix-shell", "npm"):
        yield from (Script(text) for text in _option_values(words, ("-c", "--command", "--run", "--call")))
    elif name == "git":
        yield from _git_scripts(words)
    elif name in ("xargs", "parallel") and len(words) == 1:
        return


def _shell_scripts(words: Words, command: SimpleCommand) -> Iterator[Script]:
    rest, takes_text, index = words[1:], False, 0
    while index < len(rest) and rest[index].text[:1] in ("-", "+") and len(rest[index].text) > 1:
        option = rest[index].text
        if option == "--":
            index += 1
            break
        if not option.startswith("--") and "c" in option:
            takes_text = True
        valued = option in ("--rcfile", "--init-file") or (not option.startswith("--") and option[-1] in "oO")
        index += 2 if valued else 1
    operands = rest[index:]
    if any(not word.static and word.splits for word in rest[:index]):
        yield Script(None)
    elif takes_text:
        yield Script(operands[0].text if operands else None)
    elif not operands or any("s" in w.text for w in rest[:index] if not w.text.startswith("--")):
        yield from _standard_input(command)
    elif not operands[0].static:
        yield Script(None)


def _standard_input(command: SimpleCommand) -> Iterator[Script]:
    for document in command.documents:
        yield Script(document)
    if command.piped and not command.documents:
        yield Script(None, "a shell reads its commands from a pipe or file")


def _evaluated(name: str, words: Words) -> Iterator[Script]:
    arguments = [word.text for word in words[1:]]
    if name == "eval":
        yield Script(" ".join(arguments[1:] if arguments[0] == "--" else arguments))
    elif name == "trap":
        yield Script(next((text for text in arguments if text not in ("--", "-")), ""))
    elif name == "alias":
        for text in arguments:
            yield Script(text.partition("=")[2])
    else:
        operands = [text for text in arguments if not text.startswith("-")]
        yield Script(" ".join(operands))
        yield Script(" ".join(operands[1:]))


def _sourced(words: Words, command: SimpleCommand) -> Iterator[Script]:
    target = words[1] if len(words) > 1 else None
    if target is None or not target.static or target.text.startswith("/dev/"):
        yield from (Script(document) for document in command.documents)
        yield Script(None, "what is sourced is only known to the shell")


def _option_values(words: Words, options: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words[1:], 1):
        for option in options:
            bundled = len(option) == 2 and re.fullmatch(rf"-[A-Za-z]+{option[1]}", word.text)  # `script -qc …`
            if (word.text == option or bundled) and index + 1 < len(words):
                yield words[index + 1].text
            elif word.text.startswith(option + "=") or (
                len(option) == 2 and word.text.startswith(option) and word.text != option
            ):
                yield word.text[len(option) :].lstrip("=")


def _git_scripts(words: Words) -> Iterator[Script]:
    for text in _option_values(words, ("-c",)):
        key, _, value = text.partition("=")
        if value.startswith("!"):
            yield Script(value[1:])
        elif re.search(
            r"(pager|editor|command|cmd|helper|fsmonitor|external|textconv|driver|clean|smudge|process|program)$", key.lower()
        ):
            yield Script(value)
    arguments = [word.text for word in words[1:]]
    for index, text in enumerate(arguments[:-1]):
        if text in _GIT_SHELL_OPTIONS:
            yield Script(arguments[index + 1])
        if text.startswith("--") and text.partition("=")[0] in _GIT_SHELL_OPTIONS and "=" in text:
            yield Script(text.partition("=")[2])
    for verb in (("bisect", "run"), ("submodule", "foreach")):
        if verb[0] in arguments and verb[1] in arguments:
            tail = [a for a in arguments[arguments.index(verb[1]) + 1 :] if not a.startswith("-")]
            yield Script(" ".join(tail))


_GIT_VALUED = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env", "--super-prefix"}
)


def git_parts(words: Words) -> tuple[Words, Words]:
    """`git`'s own options before the verb, and the words from the verb on."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        index += 2 if words[index].text in _GIT_VALUED else 1
    return words[1:index], words[index:]


def readings(words: Words) -> Iterator[str]:
    """The texts under which a fence looks at one command: as written, unquoted, by its base name, `git` by its verb."""
    yield " ".join(word.raw for word in words if word.raw)
    texts = [word.text for word in words]
    yield " ".join(texts)
    if "/" in texts[0]:
        yield " ".join([_base(words[0]), *texts[1:]])
    if _base(words[0]) == "git":
        options, verb = git_parts(words)
        if options:
            yield " ".join(["git", *(word.text for word in verb)])
