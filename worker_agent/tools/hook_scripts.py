"""Which files of a repository its hooks run: what a person trusts is also what these say.

Such a file is a regular file of the repository that is run by its name, or handed to a program that runs others
(`RUNNERS`). What a script reads or calls in turn is not looked for: it would have no end.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from worker_agent import disk
from worker_agent.hooks import Handler, HookConfig

MAX_BYTES = 4_000_000  # looked at of one script
MAX_WORDS = 200  # of one command
_ROOTS = re.compile(r"\$\{?(?:CLAUDE|COORDINATOR)_(?:PROJECT_DIR|PLUGIN_ROOT)(?::-[^}]*)?\}?")
_ENDS = ";|&()<>"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
RUNNERS = re.compile(
    r"(?:.*/)?(?:(?:ba|da|z|k|fi)?sh|python[\d.]*|pypy3?|node|deno|bun|bunx|npx|tsx|ts-node|ruby|perl|php|lua|pwsh|uv|uvx|poetry|source|\."
    r"|env|exec|command|timeout|nice|nohup|time|sudo|xargs)"
)


def script_digests(hooks: HookConfig, root: Path, *places: Path) -> Mapping[str, str]:
    """The digest of each file below `root` that a hook names, by its path there. A relative name starts in `root` or in one
    of `places`, the roots that variables stand for."""
    handlers = (handler for group in hooks.groups for handler in group.handlers if handler.url is None)
    found = {}
    for word in (word for handler in handlers for word in _words(handler)):
        for place in dict.fromkeys((root, *places)):
            if (known := _digest(place, word, root)) is not None:
                found[known[0]] = known[1]
    return found


def _words(handler: Handler) -> Iterator[str]:
    if handler.args is not None:
        yield from (handler.command or "", *handler.args)
        return
    text = handler.command or ""
    try:
        lexer = shlex.shlex(_ROOTS.sub(".", text.replace("\n", " ; ")), posix=True, punctuation_chars=_ENDS)
        lexer.whitespace_split = True
        yield from _run(list(lexer)[:MAX_WORDS])
    except ValueError:
        yield from text.split()[:MAX_WORDS]


def _run(words: list[str]) -> Iterator[str]:
    """Of the words of a command line those that name what is run, and what is handed to a runner."""
    program: str | None = None
    for word in words:
        if not word.strip(_ENDS):
            program = None
        elif program is None and not _ASSIGNMENT.match(word):
            program = word
            yield word
        elif program is not None and RUNNERS.fullmatch(program):
            yield word


def _digest(place: Path, word: str, root: Path) -> tuple[str, str] | None:
    """Path and digest of the file that `word` names; None where it names none of the repository."""
    text = _ROOTS.sub(".", word)
    if not text or "\0" in text or len(text) > 1_000:
        return None
    path = place / text
    try:
        with disk.open_regular(path, inside=root) as file:
            data = disk.read_up_to(file, MAX_BYTES)
    except OSError:
        return None
    return str(path.relative_to(root)), hashlib.sha256(data).hexdigest()
