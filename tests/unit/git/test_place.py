"""Finding a repository by reading files gives what git finds, and starts nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.hostile import run
from worker_agent.git import place_of, read_branch


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    run(tmp_path, "init", "-q", "-b", "feature/x", str(top))
    run(top, "commit", "-q", "--allow-empty", "-m", "first")
    run(top, "worktree", "add", "-q", "-b", "second", str(tmp_path / "second"))
    run(top, "init", "-q", "--bare", "vendor/bare")
    run(top, "init", "-q", "nested")
    run(top, "init", "-q", "--separate-git-dir", str(tmp_path / "separate"), "apart")
    for made in ("deep/er", "half/objects", "half/refs", "torn/objects", "torn/refs", "broken"):
        (top / made).mkdir(parents=True)
    (top / "half/HEAD").write_text("no reference\n")
    (top / "torn/HEAD").symlink_to("refs/heads/none")
    (top / "broken/.git").write_text("gitdir: nowhere\n")
    (top / "link").symlink_to(top / "nested")
    return top


@pytest.mark.parametrize(
    "where",
    [".", "deep/er", ".git", ".git/refs", "vendor/bare", "vendor/bare/refs", "nested", "link", "apart", "half", "torn", "broken",
     "../second", ".."],
)  # fmt: skip
def test_it_is_the_one_that_git_finds(repository: Path, where: str) -> None:
    asked = run(repository / where, "rev-parse", "--absolute-git-dir", check=False)
    expected = os.fsdecode(asked.stdout).strip() if asked.returncode == 0 else None
    found = place_of(repository / where)
    assert (str(found.git) if found else None) == expected


def test_a_branch_is_read_without_git(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    commit = os.fsdecode(run(repository, "rev-parse", "HEAD").stdout).strip()
    run(tmp_path, "clone", "-q", str(repository), "clone")
    run(tmp_path / "clone", "checkout", "-q", "--detach")
    monkeypatch.setattr(subprocess, "Popen", never)
    branches = [read_branch(place) for place in map(place_of, (repository, tmp_path / "second", tmp_path / "clone")) if place]
    assert branches == ["feature/x", "second", commit[:12]]


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    assert place_of(tmp_path) is None
    (tmp_path / "bare").mkdir()
    os.mkfifo(tmp_path / "bare" / "HEAD")
    assert place_of(tmp_path / "bare") is None


def test_a_worktree_shares_its_common_directory(repository: Path, tmp_path: Path) -> None:
    first, second = place_of(repository), place_of(tmp_path / "second")
    assert first and second and first.common == second.common == first.git != second.git and not second.bare
