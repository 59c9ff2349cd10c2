"""Whether git's reading runs unasked in repositories that git itself made, and in such as an attacker prepared: there plain git
is seen to run a program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet

LINES = ("git status", "git status -sb", "git diff", "git log --oneline -3", "git rev-parse --show-toplevel", "git ls-files -m")


class Top:
    """A repository of the session with one commit; what a program of it did is seen at `PWNED`."""

    def __init__(self, base: Path) -> None:
        self.base, self.path = base, base / "top"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(base), "GIT_CONFIG_NOSYSTEM": "1"}
        self.make(self.path)
        (self.path / "a").write_text("a\n")
        self.git("add", "a")
        self.git("commit", "-qm", "m")

    @property
    def trap(self) -> str:
        return f"touch {self.path}/PWNED; false"

    def git(self, *words: str, at: str = ".") -> None:
        identity = (
            "-c",
            "user.name=n",
            "-c",
            "user.email=e",
            "-c",
            "protocol.file.allow=always",
            "-c",
            "advice.addEmbeddedRepo=false",
        )
        subprocess.run(["git", *identity, *words], cwd=self.path / at, env=self.environment, check=True, capture_output=True)

    def make(self, where: Path, *options: str) -> Path:
        subprocess.run(["git", "init", "-q", *options, str(where)], env=self.environment, check=True)
        return where

    def embed(self, name: str) -> None:
        """A repository inside, in the index as a submodule is, without `.gitmodules`."""
        self.make(self.path / name)
        self.git("commit", "-q", "--allow-empty", "-m", "m", at=name)
        self.git("add", name)

    def submodule(self, name: str) -> None:
        source = self.make(self.base / "source")
        self.git("commit", "-q", "--allow-empty", "-m", "m", at=str(source))
        self.git("submodule", "add", "-q", str(source), name)
        self.git("commit", "-qm", "with a submodule")

    def why_not(self, line: str) -> str | None:
        policy = Policy(rules=RuleSet.from_flags((), ()), cwd=self.path, roots=(self.path,), home=self.base)
        verdict = policy.explain("Bash", {"command": line})
        return None if verdict.behavior == "allow" else verdict.why

    def is_run_by(self, line: str) -> bool:
        """Whether the trap closes when plain git does this."""
        subprocess.run(line, shell=True, cwd=self.path, env=self.environment, capture_output=True, check=False)
        return (self.path / "PWNED").exists()


@pytest.fixture
def top(tmp_path: Path) -> Top:
    return Top(tmp_path)


def with_husky(top: Top) -> None:
    (top.path / ".husky").mkdir()
    (top.path / ".husky/pre-commit").write_text("true\n")
    top.git("config", "core.hooksPath", ".husky")


def with_usual_settings(top: Top) -> None:
    top.git("config", "commit.gpgsign", "false")
    top.git("config", "maintenance.strategy", "incremental")
    top.git("sparse-checkout", "init", "--cone")
    top.git("update-index", "--index-version", "4")


def with_submodules(top: Top) -> None:
    top.submodule("vendor/one")
    top.embed("vendor/two")
    top.git("update-index", "--index-version", "4")


@pytest.mark.parametrize("prepare", [Top.submodule, Top.embed, with_submodules, with_husky, with_usual_settings])
def test_what_git_and_its_tools_write_lets_git_read_unasked(top: Top, prepare: Callable[..., None]) -> None:
    prepare(top) if prepare.__code__.co_argcount == 1 else prepare(top, "lib")
    assert {line: why for line in LINES if (why := top.why_not(line))} == {}


def embedded(top: Top) -> None:
    top.embed("lib")
    top.git("config", "core.fsmonitor", top.trap, at="lib")


def embedded_deeper(top: Top) -> None:
    top.embed("lib")
    top.make(top.path / "lib/deep")
    top.git("commit", "-q", "--allow-empty", "-m", "m", at="lib/deep")
    top.git("add", "deep", at="lib")
    top.git("config", "core.fsmonitor", top.trap, at="lib/deep")


def embedded_in_a_newer_index(top: Top) -> None:
    for name in ("b", "c", "lib2"):
        (top.path / name).write_text("x")
    top.git("add", "b", "c", "lib2")
    embedded(top)
    top.git("update-index", "--index-version", "4")


def submodule(top: Top) -> None:
    top.submodule("lib")
    top.git("config", "core.fsmonitor", top.trap, at="lib")


def submodule_with_a_hook(top: Top) -> None:
    top.submodule("lib")
    hook = top.path / ".git/modules/lib/hooks/post-index-change"
    hook.write_text(f"#!/bin/sh\n{top.trap}\n")
    hook.chmod(0o755)
    (top.path / "lib/f").write_text("f")
    top.git("add", "f", at="lib")
    os.utime(top.path / "lib/f", (1, 1))  # so that git refreshes the index and writes it


def hooks_elsewhere(top: Top) -> None:
    (top.path / "hooks").mkdir()
    (top.path / "hooks/post-index-change").write_text(f"#!/bin/sh\n{top.trap}\n")
    (top.path / "hooks/post-index-change").chmod(0o755)
    top.git("config", "core.hooksPath", "hooks")
    os.utime(top.path / "a", (1, 1))


def a_section_behind_a_line_end_that_is_none(top: Top) -> None:
    with (top.path / ".git/config").open("ab") as file:
        file.write(f'[core]\n\teol = x\r[user]\n\tfsmonitor = "{top.trap}"\n'.encode())


def a_git_file_with_a_blank_at_its_end(top: Top) -> None:
    (top.path / ".git").rename(top.path / "g ")
    top.git("init", "-q", "--separate-git-dir", str(top.path / "g"))
    (top.path / ".git").write_text(f"gitdir: {top.path}/g \n")
    with (top.path / "g /config").open("a") as file:
        file.write(f'[core]\n\tfsmonitor = "{top.trap}"\n')


PREPARED = (
    embedded, embedded_deeper, embedded_in_a_newer_index, submodule, submodule_with_a_hook, hooks_elsewhere,
    a_section_behind_a_line_end_that_is_none, a_git_file_with_a_blank_at_its_end,
)  # fmt: skip


@pytest.mark.parametrize("prepare", PREPARED)
def test_what_an_attacker_prepared_asks(top: Top, prepare: Callable[[Top], None]) -> None:
    prepare(top)
    assert top.why_not("git status") is not None
    assert top.is_run_by("git status")


def test_a_key_that_may_run_something_is_named_with_whose_it_is(top: Top) -> None:
    submodule(top)
    assert "the submodule lib's setting `core.fsmonitor` may run a program" in (top.why_not("git log -1") or "")


def test_a_split_index_a_cut_one_and_a_command_of_a_submodule_ask(top: Top) -> None:
    top.submodule("lib")
    assert top.why_not("git status") is None
    top.git("config", "submodule.lib.update", "!touch PWNED")
    assert top.why_not("git status") is not None
    top.git("config", "submodule.lib.update", "checkout")
    assert top.why_not("git status") is None
    whole = (top.path / ".git/index").read_bytes()
    (top.path / ".git/index").write_bytes(whole[: whole.index(b"\0\0\xe0\0") + 20])
    assert top.why_not("git status") is not None
    (top.path / ".git/index").write_bytes(whole)
    top.git("update-index", "--split-index")
    assert top.why_not("git status") is not None
