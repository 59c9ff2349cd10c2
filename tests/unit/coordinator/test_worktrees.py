"""Worktrees, with real git: made side by side, removed only when proven clean."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from coordinator.runs.worktrees import Closed, Worktree, Worktrees
from worker_agent.errors import ConfigError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    git(path, "config", "user.email", "a@example.com")
    git(path, "config", "user.name", "A")
    (path / ".gitignore").write_text("*.secret\n__pycache__/\n")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    return path


def git(path: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", path, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def closed_after(repository: Path, tmp_path: Path, work) -> tuple[Closed, Worktree]:
    async def scenario() -> tuple[Closed, Worktree]:
        trees = Worktrees(tmp_path / "trees")
        tree = await trees.create(repository, "a1")
        work(tree.path)
        return await trees.close(tree), tree

    return asyncio.run(scenario())


def test_a_clean_one_goes_with_its_branch(repository: Path, tmp_path: Path) -> None:
    def run_python(tree: Path) -> None:
        (tree / "__pycache__").mkdir()
        (tree / "__pycache__" / "x.pyc").write_bytes(b"")

    closed, tree = closed_after(repository, tmp_path, run_python)
    assert closed == Closed(True) and not tree.path.exists()
    assert git(repository, "branch", "--list") == "* main"


@pytest.mark.parametrize("name", ["new.txt", "ignored.secret"])
def test_uncommitted_and_ignored_files_keep_it(repository: Path, tmp_path: Path, name: str) -> None:
    closed, tree = closed_after(repository, tmp_path, lambda path: (path / name).write_text("work"))
    assert not closed.removed and "not committed" in closed.why and (tree.path / name).exists()


def test_a_commit_keeps_it(repository: Path, tmp_path: Path) -> None:
    def commit(path: Path) -> None:
        git(path, "commit", "-q", "--allow-empty", "-m", "work")

    closed, tree = closed_after(repository, tmp_path, commit)
    assert closed == Closed(False, "it has commits of its own") and tree.path.exists()


def test_what_cannot_be_inspected_is_kept(repository: Path, tmp_path: Path) -> None:
    closed, tree = closed_after(repository, tmp_path, lambda path: (path / ".git").unlink())
    assert closed == Closed(False, "its state could not be read") and tree.path.exists()


def test_many_at_once_all_succeed(repository: Path, tmp_path: Path) -> None:
    async def scenario() -> list[Worktree]:
        trees = Worktrees(tmp_path / "trees")
        return await asyncio.gather(*(trees.create(repository, f"a{i}") for i in range(6)))

    assert all(tree.path.is_dir() for tree in asyncio.run(scenario()))


def test_outside_a_repository_and_without_a_commit_it_says_why(tmp_path: Path) -> None:
    trees = Worktrees(tmp_path / "trees")
    with pytest.raises(ConfigError, match="needs a git repository"):
        asyncio.run(trees.create(tmp_path, "a1"))
    git(tmp_path, "init", "-q")
    with pytest.raises(ConfigError, match="first commit"):
        asyncio.run(Worktrees(tmp_path / "trees").create(tmp_path, "a1"))
