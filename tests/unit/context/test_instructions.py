"""Instructions: rules and their paths, directories below, imports as people write them, and no file twice."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from worker_agent.context.instructions import Instructions


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "home/repo/.git").mkdir(parents=True)
    return tmp_path / "home/repo"


def instructions(repository: Path, cwd: Path | None = None, *, trusted: bool = False) -> Instructions:
    return Instructions(cwd or repository, repository.parent, repository / "none.md", trusted=trusted)


def names(files: Iterable[object], repository: Path) -> list[str]:
    return [os.path.relpath(file.path, repository) for file in files]  # type: ignore[attr-defined]  # files of ours


def test_the_users_own_file_is_told_once_below_the_home_directory(repository: Path) -> None:
    write(repository.parent / ".claude/CLAUDE.md", "Mine, and @~/.claude/more.md and @.claude-extra/x.md")
    write(repository / ".claude/CLAUDE.md", "The project's")
    files = instructions(repository).at_start()
    assert names(files, repository) == ["../.claude/CLAUDE.md", ".claude/CLAUDE.md"]


def test_imports_as_people_write_them_are_followed_four_hops(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(repository.parent))
    write(repository.parent / ".claude/own.md", "own")
    write(repository.parent / ".claude/CLAUDE.md", "user @~/.claude/own.md")
    write(repository / ".claude/a.md", "a @b.md")
    for here, there in zip("bcd", "cde", strict=True):
        write(repository / f".claude/{here}.md", f"{here} @./{there}.md")
    write(repository / ".claude/e.md", "too far")
    write(repository / "docs/x.md", "x")
    write(repository / "sub/CLAUDE.md", "see @../docs/x.md, @types/node and me@home.md")
    write(repository / "CLAUDE.md", "see @.claude/a.md")
    user, top, sub = instructions(repository, repository / "sub").at_start()
    assert user.text == "user own"
    assert top.text == "see a b c d @./e.md" and "more than 4 imports away" in top.left_out[0]
    assert sub.text == "see x, @types/node and me@home.md" and sub.left_out == ()


def test_an_import_that_is_not_there_is_named_and_prose_is_not(repository: Path) -> None:
    write(repository / "CLAUDE.md", "Ask @someone, read @docs/missing.md and @./also, use @anthropic-ai/sdk.")
    lines = instructions(repository).left_out()
    assert [line.split("import ")[1] for line in lines] == [
        "@docs/missing.md is left out: there is no such file",
        "@./also is left out: there is no such file",
    ]


def test_what_an_import_brought_is_not_told_again(repository: Path) -> None:
    write(repository / "AGENTS.md", "agents")
    write(repository / ".claude/rules/style.md", "style")
    write(repository / "CLAUDE.md", "claude @AGENTS.md @.claude/rules/style.md")
    write(repository / "sub/CLAUDE.md", "again @../AGENTS.md")
    here = instructions(repository)
    assert [file.text for file in here.at_start()] == ["claude agents style"]
    assert [file.text for file in here.near([repository / "sub/x"])] == ["again @../AGENTS.md"]


def test_an_untrusted_repository_brings_nothing_of_others_and_a_trusted_one_documents(repository: Path) -> None:
    write(repository.parent / "notes.md", "NOTES")
    write(repository.parent / "key", "PRIVATE")
    write(repository / "CLAUDE.md", "@../notes.md @../key")
    (repository / ".claude/rules").mkdir(parents=True)
    (repository / ".claude/rules/link.md").symlink_to(repository.parent / "key")
    (repository / "sub").mkdir()
    (repository / "sub/CLAUDE.md").symlink_to(repository.parent / "key")
    untrusted = instructions(repository)
    every = [*untrusted.at_start(), *untrusted.near([repository / "sub/x"])]
    assert not any("NOTES" in file.text or "PRIVATE" in file.text for file in every)
    assert len(untrusted.left_out()) == 3
    trusted = instructions(repository, trusted=True)
    assert trusted.at_start()[0].text == "NOTES @../key"
    assert "is no document" in trusted.left_out()[0]


def test_a_directory_below_is_told_of_when_a_file_there_is_read(repository: Path) -> None:
    for place in ("CLAUDE.md", "a/CLAUDE.md", "a/b/AGENTS.md", "a/b/.claude/rules/r.md", "beside/CLAUDE.md"):
        write(repository / place, place)
    here = instructions(repository, repository / "a")
    assert names(here.at_start(), repository) == ["CLAUDE.md", "a/CLAUDE.md"]
    assert names(here.near([repository / "a/x.py", repository / "top.py"]), repository) == []
    assert names(here.near([repository / "a/b/c/x.py"]), repository) == ["a/b/AGENTS.md", "a/b/.claude/rules/r.md"]
    assert names(here.near([repository / "beside/x.py"]), repository) == ["beside/CLAUDE.md"]
    assert here.near([repository.parent / "elsewhere.py"]) == []


def test_a_repository_inside_is_never_trusted_along(repository: Path) -> None:
    write(repository.parent / "key.md", "PRIVATE")
    (repository / "vendor/.git").mkdir(parents=True)
    (repository / "vendor/CLAUDE.md").symlink_to(repository.parent / "key.md")
    (found,) = instructions(repository, trusted=True).near([repository / "vendor/x"])
    assert "PRIVATE" not in found.text


@pytest.mark.parametrize(
    ("front", "fits", "not_fits"),
    [
        ("paths: src/**/*.ts", "src/a/b.ts", "lib/a.ts"),
        ("paths: **/*.ts, docs/*.md", "docs/a.md", "docs/a/b.md"),
        ('paths:\n  - "src/**/*.{ts,tsx}"\n  - **/*.sql', "deep/x.sql", "src/a.js"),
        ("paths: ['{src,lib}/**/*.py']", "lib/x.py", "test/x.py"),
        ("description: x\nglobs: *.py", "x.py", "sub/x.py"),
    ],
)
def test_a_rule_with_paths_counts_beside_files_that_fit(front: str, fits: str, not_fits: str, repository: Path) -> None:
    write(repository / ".claude/rules/deep/r.md", f"---\n{front}\n---\nBe careful.")
    here = instructions(repository)
    assert here.at_start() == []
    assert [file.text for file in here.near([repository / fits])] == ["Be careful."]
    assert here.near([repository / not_fits]) == []


def test_rules_of_the_user_hold_in_every_project(repository: Path) -> None:
    write(repository.parent / ".claude/rules/always.md", "---\nname: x\n---\nalways")
    write(repository.parent / ".claude/rules/some.md", "---\npaths: src/*\n---\nsome")
    here = instructions(repository)
    assert [file.text for file in here.at_start()] == ["always"]
    assert [file.text for file in here.near([repository / "src/x"])] == ["some"]
