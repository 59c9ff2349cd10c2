"""A repository whose settings, attributes and hooks name programs: each leaves a mark when it runs.

Every trap is first seen to close under plain git (`sprung`), so that a mark that is missing later means something.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

IDENTITY = {
    "GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@example.invalid",
    "GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@example.invalid",
}  # fmt: skip
HOOKS = ("applypatch-msg commit-msg fsmonitor-watchman post-applypatch post-checkout post-commit post-index-change post-merge"
         " post-rewrite pre-applypatch pre-auto-gc pre-commit pre-merge-commit prepare-commit-msg reference-transaction").split()  # fmt: skip
# Filters with names that a careless reader of the configuration misses.
FILTERS = ("plain", "dotted.name", "UPPER", 'quo"ted')

SIGNS = "cat > /dev/null; printf '\\n[GNUPG:] SIG_CREATED \\n' >&2; echo '-----BEGIN PGP SIGNATURE-----'"


@dataclass(frozen=True, slots=True)
class Hostile:
    """`top` is the repository, `marks` a directory beside it in which the traps leave their names."""

    top: Path
    marks: Path

    def git(
        self, *arguments: str, cwd: Path | None = None, check: bool = True, **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Plain git, as a person would run it."""
        return run(cwd or self.top, *arguments, check=check, **more)

    def sprung(self) -> set[str]:
        """The names of the traps that closed since the last time."""
        found = {mark.name for mark in self.marks.iterdir()}
        for mark in self.marks.iterdir():
            mark.unlink()
        return found

    def trap(self, name: str, then: str = "exit 0") -> str:
        """A program that leaves the mark `name`; what to call it by."""
        path = self.marks.parent / f"trap-{name.replace(' ', '-')}"
        path.write_text(f"#!/bin/sh\n: > '{self.marks}/{name}'\n{then}\n")
        path.chmod(0o755)
        return str(path)

    def touch(self, name: str = "a.plain") -> None:
        """Make git read a file's content anew, if it is there."""
        path = self.top / name
        if path.exists():
            path.write_bytes(path.read_bytes())
            os.utime(path, (1, 1))


def run(cwd: Path, *arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[bytes]:
    environment: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **IDENTITY, **more}
    return subprocess.run(["git", "-C", cwd, *arguments], check=check, capture_output=True, env=environment, timeout=30)


def hostile(directory: Path) -> Hostile:
    """Make one in `directory`, with two commits, a branch `side` that merges, and nothing to commit."""
    top, marks = directory / "hostile", directory / "marks"
    top.mkdir()
    marks.mkdir()
    repository = Hostile(top, marks)
    git = repository.git
    git("init", "-q", "-b", "main")
    (top / ".gitattributes").write_text(
        '*.plain filter=plain\n*.dotted filter=dotted.name\n*.upper filter=UPPER\n*.quoted filter=quo"ted\n'
        "*.process filter=process\n*.ext diff=ext\n*.text diff=text\n*.merge merge=own\n"
    )
    for kind in ("plain", "dotted", "upper", "quoted", "process", "ext", "text", "merge"):
        (top / f"a.{kind}").write_text(f"one {kind}\ntwo\nthree\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("checkout", "-q", "-b", "side")
    for kind in ("plain", "ext", "text", "merge"):
        (top / f"a.{kind}").write_text(f"one {kind}\ntwo\nthree on the side\n")
    git("commit", "-q", "-am", "on the side")
    git("checkout", "-q", "main")
    (top / "a.merge").write_text("one on main\ntwo\nthree\n")
    git("commit", "-q", "-am", "second")
    _arm(repository)
    repository.sprung()
    return repository


def _arm(repository: Hostile) -> None:
    top, trap = repository.top, repository.trap
    hooks = top / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in HOOKS:
        (hooks / name).write_text(Path(trap(f"hook {name}")).read_text())
        (hooks / name).chmod(0o755)
    included = top / ".git" / "more"  # a filter that only a conditional include names
    lines = {
        "core.fsmonitor": trap("fsmonitor", "exit 1"), "core.pager": trap("pager"), "core.editor": trap("editor"),
        "sequence.editor": trap("sequence editor"), "core.askPass": trap("askpass"), "core.sshCommand": trap("ssh", "exit 1"),
        "core.alternateRefsCommand": trap("alternate refs"), "credential.helper": trap("helper"),
        "diff.external": trap("external diff"), "diff.ext.command": trap("diff command"),
        "diff.text.textconv": trap("textconv", 'cat "$1"'), "diff.text.cachetextconv": "true",
        "merge.own.driver": trap("merge driver"), "interactive.diffFilter": trap("diff filter", "cat"),
        "pager.log": trap("pager of log"), "alias.stat": "!" + trap("alias"), "gpg.program": trap("gpg", SIGNS),
        "gpg.ssh.program": trap("gpg of ssh", "exit 1"), "gpg.ssh.defaultKeyCommand": trap("key command", "exit 1"),
        "commit.gpgSign": "true", "log.showSignature": "true", "branch.main.mergeOptions": "--no-ff",
        "remote.origin.url": f"ext::{trap('ext transport', 'exit 1')}", "remote.origin.promisor": "true",
        "protocol.ext.allow": "always", "remote.origin.uploadpack": trap("upload pack", "exit 1"),
        "filter.process.process": trap("filter process", "exit 1"), "includeIf.onbranch:main.path": str(included),
    }  # fmt: skip
    for key, value in lines.items():
        repository.git("config", key, value)
    for name in FILTERS[:-1]:
        for kind in ("clean", "smudge"):
            repository.git("config", f"filter.{name}.{kind}", trap(f"{kind} of {name}", "cat"))
        repository.git("config", f"filter.{name}.required", "true")
    for kind in ("clean", "smudge"):
        repository.git("config", "--file", str(included), f"filter.{FILTERS[-1]}.{kind}", trap(f"{kind} of quoted", "cat"))
