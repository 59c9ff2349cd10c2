"""macOS: `sandbox-exec` with a profile. Written from its documentation and tested as text: no such machine was at hand.

In a profile the last matching line wins, so that a place can be taken away below one that was given, also one that is not
there yet. What a command leaves running stays confined.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence

from msgspec import Struct

from worker_agent.process import Wrapped
from worker_agent.tools.confinement.plan import Plan, lies_in
from worker_agent.tools.places import RIGHTS_DIRECTORIES, RIGHTS_EXCEPTIONS, RIGHTS_FILES


class Seatbelt(Struct, frozen=True):
    program: str = "/usr/bin/sandbox-exec"
    name: str = "sandbox-exec"
    masks: bool = True
    lacks: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"{self.program}: files, denied paths, network and signals"

    def wrap(self, plan: Plan, argv: Sequence[str]) -> Wrapped:
        own = os.path.realpath(tempfile.mkdtemp(prefix="coordinator-")) if plan.closed else None
        return Wrapped(
            (self.program, "-p", profile(plan, own), *argv),
            environment={"TMPDIR": own} if own else {},
            close=lambda: shutil.rmtree(own, ignore_errors=True) if own else None,
        )


def profile(plan: Plan, own: str | None) -> str:
    """The profile's text. `own` is the command's temporary directory."""
    return "\n".join(_lines(plan, own)) + "\n"


def _lines(plan: Plan, own: str | None) -> Iterator[str]:
    yield "(version 1)"
    yield "(allow default)"
    if plan.closed:
        yield "(deny file-write*)"
        yield f"(allow file-write* {_literals('/dev/null', '/dev/zero', '/dev/tty', '/dev/dtracehelper')})"
        yield "(deny signal)"
        yield "(allow signal (target same-sandbox))"
        yield "(deny process-info* (target others))"
        yield "(deny appleevent-send)"
        yield '(deny mach-lookup (global-name "com.apple.pasteboard.1"))'
        if not plan.network:
            yield "(deny network*)"
    for how, path in plan.steps:
        yield from _step(how, path)
    if plan.writable:
        yield from _rights(plan.writable)
    if own:
        yield f"(allow file-read* file-write* (subpath {_quoted(own)}))"
    for path in plan.paths("hide"):
        if not lies_in(path, plan.writable) or own is None:
            continue
        yield from _step("hide", path)


def _step(how: str, path: str) -> Iterator[str]:
    place = f"(subpath {_quoted(path)})"
    if how == "hide":
        yield f"(deny file-read* file-write* {place})"
    elif how == "show":
        yield f"(allow file-read* {place})"
    elif how == "write":
        yield f"(allow file-read* file-write* {place})"
    elif how == "freeze":
        yield f"(deny file-write* {place})"
    else:  # pin: its own entry can be neither moved nor removed
        yield f"(deny file-write-unlink (literal {_quoted(path)}))"


def _rights(directories: Sequence[str]) -> Iterator[str]:
    """By name and at any depth, also what is not there yet; of git's own directory its hooks and settings only."""
    names = [name for name in (*RIGHTS_DIRECTORIES, *RIGHTS_FILES) if name not in (".git", ".coordinator")]
    alternatives = "|".join(_escaped(name) for name in names)
    git = r"\.git/(hooks|config|config\.worktree|commondir|gitdir|modules|info/attributes)"
    for directory in directories:
        start = "^" + _escaped(directory) + "/(.*/)?"
        yield f'(deny file-write* (regex #"{start}({alternatives})(/|$)"))'
        yield f'(deny file-write* (regex #"{start}{git}(/|$)"))'
        yield f'(deny file-write* (regex #"{start}{_escaped(".coordinator")}/"))'
        for name in RIGHTS_EXCEPTIONS:
            yield f'(allow file-write* (regex #"{start}{_escaped(name)}(/|$)"))'


def _literals(*paths: str) -> str:
    return " ".join(f"(literal {_quoted(path)})" for path in paths)


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    return "".join("\\" + char if char in '.^$*+?()[]{}|\\"' else char for char in text)


def find() -> tuple[Seatbelt | None, str]:
    """`sandbox-exec`, where there is one, and why not."""
    if sys.platform != "darwin":
        return None, "sandbox-exec is of macOS"
    means = Seatbelt()
    return (means, "") if os.access(means.program, os.X_OK) else (None, f"{means.program} is not there")


__all__ = ["Seatbelt", "find", "profile"]
