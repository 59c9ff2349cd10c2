"""Our git in a repository made by an attacker: every trap is seen to close under plain git, and under ours none does."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.support.hostile import FILTERS, IDENTITY, Hostile, hostile, run
from worker_agent.config import tool_environment
from worker_agent.errors import ConfigError
from worker_agent.git import filtered, git_now, settings_of

READS = (
    "status", "status --porcelain -uall --ignored", "diff", "diff HEAD", "diff --stat main side", "diff --cached", "log -p",
    "log --format=%G? -3", "log --show-signature -1", "show", "show HEAD:a.text", "show --textconv HEAD:a.text", "blame a.text",
    "branch --list", "ls-files -m", "ls-files --eol", "rev-parse --show-toplevel", "grep -n two", "grep --textconv two",
    "diff --ext-diff main side", "diff --textconv main side", "shortlog -s HEAD", "cat-file --textconv HEAD:a.text",
    "cat-file --filters HEAD:a.plain", "describe --always --dirty", "stash list", "for-each-ref", "diff-index -p HEAD",
    "diff-files -p --textconv", "ls-remote", "fetch", "rev-list --objects --all", "stat",
)  # fmt: skip
WRITES = (
    "add --all", "commit -q --allow-empty -m x", "checkout -q side", "checkout -q main", "merge -q --no-edit side", "merge --abort",
    "reset -q --hard", "stash", "stash pop", "worktree add -q ../second", "worktree remove --force ../second", "branch new",
    "tag -m x t", "rebase side", "rebase --abort", "gc --auto", "commit -q --amend --no-edit",
)  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Hostile:
    return hostile(tmp_path)


# What shows that the traps work: under plain git these close them all, whatever the lines before them did.
SHOWS = (
    "status", "diff", "diff --no-ext-diff", "log -1 --show-signature", "stat", "fetch", "checkout-index --prefix=out/ a.plain a.dotted a.upper",
    "commit -q --allow-empty -m x", "add --all", "reset -q --hard", "checkout -q -f side", "checkout -q -f main", "merge -m x side",
)  # fmt: skip


def closed_by(repository: Hostile, lines: Iterable[str], git: Callable[[list[str]], object]) -> dict[str, set[str]]:
    """The traps that closed, by the command that closed them."""
    closed = {}
    for line in lines:
        for name in ("a.plain", "a.dotted", "a.upper", "a.quoted", "a.process", "a.text", "a.ext"):
            repository.touch(name)
        git(line.split())
        closed[line] = repository.sprung()
    return {line: found for line, found in closed.items() if found}


def test_what_plain_git_runs_ours_does_not(repository: Hostile, tmp_path: Path) -> None:
    ours = closed_by(repository, READS + WRITES + SHOWS, lambda words: git_now(repository.top, *words, variables=IDENTITY))
    assert ours == {}
    other = tmp_path / "other"
    other.mkdir()
    again = hostile(other)
    for name in ("a.ext", "a.text"):
        (again.top / name).write_text("changed\n")
    again.touch("a.process")
    again.git("add", "a.process", check=False)
    assert "filter process" in again.sprung()
    again.git("config", "--unset", "filter.process.process")  # what it does not answer, git dies of
    plain = closed_by(again, SHOWS, lambda words: again.git(*words, check=False))
    assert set().union(*plain.values()) >= {
        "fsmonitor", "external diff", "diff command", "textconv", "merge driver", "gpg", "alias", "ext transport",
        "clean of quoted", "hook post-checkout", "hook pre-commit", "hook reference-transaction", "hook post-index-change",
        *(f"{kind} of {name}" for kind in ("clean", "smudge") for name in FILTERS[:-1]),
    }  # fmt: skip


def test_the_caller_steers_nothing(repository: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    run(tmp_path, "init", "-q", "-b", "elsewhere", str(other))
    for name, value in {
        "GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other), "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path), "GIT_NAMESPACE": "x", "GIT_CEILING_DIRECTORIES": str(tmp_path),
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.worktree", "GIT_CONFIG_VALUE_0": str(other),
        "GIT_CONFIG_PARAMETERS": f"'core.worktree'='{other}'", "GIT_EXTERNAL_DIFF": repository.trap("caller's diff"),
        "GIT_PREFIX": "x/", "GIT_TRACE": str(tmp_path / "trace"), "GIT_EXEC_PATH": str(tmp_path),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    (repository.top / "a.ext").write_text("new\n")
    assert git_now(repository.top, "rev-parse", "--show-toplevel", "--abbrev-ref", "HEAD").text == f"{repository.top}\nmain"
    assert b"+new" in git_now(repository.top, "diff", "--no-ext-diff").out
    assert repository.sprung() == set() and not (tmp_path / "trace").exists()
    in_a_shell = subprocess.run(
        ["git", "rev-parse", "--absolute-git-dir"],
        cwd=repository.top,
        env=tool_environment(GIT_EXEC_PATH=""),
        capture_output=True,
    )
    assert os.fsdecode(in_a_shell.stdout).strip() == str(repository.top / ".git"), in_a_shell


def test_a_program_called_git_in_the_repository_is_not_ours(repository: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    os.symlink(repository.trap("git of the repository"), repository.top / "git")
    monkeypatch.chdir(repository.top)
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    assert git_now(repository.top, "rev-parse", "HEAD").code == 0 and repository.sprung() == set()


def test_a_submodule_is_not_entered(repository: Hostile, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    run(inner, "init", "-q")
    run(inner, "commit", "-q", "--allow-empty", "-m", "inner")
    plain = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always"}
    run(tmp_path, "init", "-q", "outer")
    outer = tmp_path / "outer"
    run(outer, "submodule", "--quiet", "add", str(inner), "sub", **plain)
    run(outer, "config", "--file", ".gitmodules", "submodule.sub.ignore", "none")
    run(outer / "sub", "config", "core.fsmonitor", repository.trap("fsmonitor of a submodule"))
    run(outer, "config", "submodule.sub.ignore", "none")
    run(outer, "status")
    assert repository.sprung() == {"fsmonitor of a submodule"}
    assert git_now(outer, "status", "--porcelain").code == 0 and git_now(outer, "diff").code == 0
    assert repository.sprung() == set()


def test_a_configuration_that_never_ends_closes(repository: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_agent.git.quiet.LIST_TIMEOUT", 0.3)
    os.mkfifo(tmp_path / "fifo")
    repository.git("config", "include.path", str(tmp_path / "fifo"))
    done = git_now(repository.top, "status")
    assert done.code == -1 and "cannot be listed" in done.err
    with pytest.raises(ConfigError, match="cannot be listed"):
        settings_of(repository.top)


def test_a_call_is_ended_at_its_bounds(repository: Hostile) -> None:
    done = git_now(repository.top, "cat-file", "--batch", timeout=0.2, input=b"")
    assert done.code == 0  # its input is closed
    waits = ["-c", "alias.wait=!sleep 600 & sleep 600", "wait"]
    done = git_now(repository.top, *waits, timeout=0.3)
    assert done.timed_out and done.code == -1 and "did not end" in done.err
    assert "gave more than 10 bytes" in git_now(repository.top, "log", max_output=10).err


def test_the_files_of_a_filter_are_told(repository: Hostile) -> None:
    names = ["a.plain", "a.dotted", "a.quoted", "a.text", "a.process", "new.plain"]
    found = asyncio.run(filtered(repository.top, names))
    assert found == {
        "plain": ["a.plain", "new.plain"], "dotted.name": ["a.dotted"], 'quo"ted': ["a.quoted"], "process": ["a.process"],
    }  # fmt: skip
    assert repository.sprung() == set()
