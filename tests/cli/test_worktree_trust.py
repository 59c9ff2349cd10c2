"""`tasks diff` and `tasks apply` where it is hard: bytes, settings of any kind, a repository made by an attacker, signing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.runs import taking_over
from tests.cli.program import Program
from tests.cli.seed import seeded
from tests.support.hostile import IDENTITY, SIGNS, Hostile, hostile, run

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 5
CRLF = b"one\r\ntwo\r\nthree\r\n"


@pytest.fixture
def program(program: Program, tmp_path: Path) -> Program:
    """The command, in the hostile repository."""
    return Program(program.home, hostile(tmp_path).top)


@pytest.fixture
def repository(program: Program, tmp_path: Path) -> Hostile:
    return Hostile(program.cwd, tmp_path / "marks")


@pytest.fixture
def tree(repository: Hostile, tmp_path: Path) -> Path:
    quietly(repository.top, "worktree", "add", "-q", "-b", "coordinator/t1", str(tmp_path / "tree"))
    return tmp_path / "tree"


@pytest.fixture
def task(program: Program, tree: Path) -> Iterator[str]:
    with seeded(program) as seed:
        task = seed.task("change things", worktree=str(tree), branch="coordinator/t1", cwd=str(program.cwd))
        seed.finish(task)
        yield task.id


def quietly(cwd: Path, *arguments: str) -> bytes:
    """Git as the test needs it: without the traps, which are only in the way here."""
    off = ("core.hooksPath=/dev/null", "core.fsmonitor=", "commit.gpgSign=false", "filter.process.process=")
    arguments = (*(word for setting in off for word in ("-c", setting)), *arguments)
    done = run(cwd, *arguments)
    for mark in (cwd.parent / "marks").glob("*"):
        mark.unlink()
    return done.stdout


def untrap(repository: Hostile) -> None:
    (repository.top / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n")


def output(program: Program, *arguments: str) -> bytes:
    done = subprocess.run(
        program.command(*arguments), cwd=program.cwd, env=program.environment(), capture_output=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(top: Path) -> dict[bytes, tuple[bytes, int]]:
    """Name, bytes and mode of every file outside of `.git`."""
    found = {}
    for directory, names, files in os.walk(os.fsencode(top)):
        names[:] = [name for name in names if name != b".git"]
        for name in files:
            path = os.path.join(directory, name)
            if name != b".git":
                found[os.path.relpath(path, os.fsencode(top))] = (Path(os.fsdecode(path)).read_bytes(), os.stat(path).st_mode)
    return found


def test_the_patch_applies_byte_for_byte_whatever_is_set(program, repository, tree, task, tmp_path):
    (repository.top / "crlf.txt").write_bytes(CRLF)
    (repository.top / "moved.txt").write_text("".join(f"line {n}\n" for n in range(50)))
    (repository.top / "mode.sh").write_text("#!/bin/sh\n")
    quietly(repository.top, "add", ".")
    quietly(repository.top, "commit", "-q", "-m", "more")
    quietly(tree, "merge", "-q", "main")
    (tree / "crlf.txt").write_bytes(CRLF.replace(b"two", b"TWO"))
    (tree / "new.png").write_bytes(PNG)
    (tree / "mode.sh").chmod(0o755)
    (tree / "moved.txt").rename(tree / "moved elsewhere.txt")
    (tree / "a.text").unlink()
    (tree / "no end").write_bytes(b"no line end \xe9")
    Path(os.fsdecode(os.fsencode(tree) + b'/caf\xe9 "x".txt')).write_bytes(b"latin\r")
    (tree / "a.ext").write_text("shown by the external diff?\n")
    for key, value in {
        "diff.noprefix": "true", "color.ui": "always", "color.diff": "always", "core.quotepath": "false", "diff.mnemonicPrefix": "true",
        "diff.context": "0", "diff.renames": "copies", "diff.suppressBlankEmpty": "true", "diff.orderFile": "/nonexistent",
        "diff.wordRegex": ".", "diff.relative": "true", "diff.submodule": "diff", "diff.algorithm": "patience",
    }.items():  # fmt: skip
        repository.git("config", key, value)
    index = (repository.top / ".git/worktrees/tree/index").read_bytes()
    patch = output(program, "tasks", "diff", task)
    assert b"\x1b" not in patch and b"GIT binary patch" in patch and b"rename from moved.txt" in patch
    assert output(program, "tasks", "diff", task, "--stat").count(b" | ") == 8
    assert repository.sprung() == set()
    assert (repository.top / ".git/worktrees/tree/index").read_bytes() == index  # looking changes nothing
    untrap(repository)
    subprocess.run(["git", "apply"], cwd=repository.top, input=patch, check=True)
    assert contents(repository.top) == contents(tree)


def test_apply_in_a_hostile_repository_runs_nothing_and_says_what_is_left_out(program, repository, tree, task):
    (tree / "new.txt").write_text("new\n")
    repository.git("config", "--unset", "commit.gpgSign")
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 0 and (repository.top / "new.txt").read_text() == "new\n", done
    assert "the hook post-merge" in done.err and "the hook pre-commit" in done.err
    assert repository.sprung() == set()


def test_a_file_of_a_filter_is_not_stored_as_it_stands(program, repository, tree, task):
    (tree / "b.plain").write_text("content, where the filter would store a pointer\n")
    repository.git("config", "--unset", "commit.gpgSign")
    shown = program.here("tasks", "diff", task)
    assert shown.code == 0 and "the filter plain (1 file)" in shown.err
    before = contents(repository.top)
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 1 and "b.plain" in done.err and "filter 'plain'" in done.err and "git -C" in done.err
    assert contents(repository.top) == before and repository.sprung() == set()
    quietly(tree, "add", "--all")
    quietly(tree, "commit", "-q", "-m", "by the person")
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 0 and "the filter plain (1 file)" in done.err and repository.sprung() == set()


def test_a_merge_driver_of_the_repository_is_a_conflict_that_names_it(program, repository, tree, task):
    repository.git("config", "--unset", "commit.gpgSign")
    for where, text in ((tree, "in the tree\n"), (repository.top, "in main\n")):
        (where / "a.merge").write_text(text)
        quietly(where, "commit", "-q", "-am", "changed")
    before = contents(repository.top)
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 1 and "conflict in a.merge" in done.err and "not run: own" in done.err
    assert contents(repository.top) == before and repository.sprung() == set()


def test_the_signing_program_of_a_repository_is_not_run(program, repository, tree, task):
    (tree / "new.txt").write_text("new\n")
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 1 and "gpg.program" in done.err and "--no-sign" in done.err and repository.sprung() == set()
    assert program.here("tasks", "apply", task, "--no-sign", **IDENTITY).code == 0 and repository.sprung() == set()


def settings_of_the_person(program: Program, repository: Hostile, gpg: str) -> None:
    untrap(repository)
    text = f"[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = {gpg}\n[user]\n\tsigningKey = x\n"
    program.home.mkdir(exist_ok=True)
    (program.home / ".gitconfig").write_text(text)


def test_signing_that_waits_for_a_person_ends_and_the_tree_is_as_it_was(program, repository, tree, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pinentry")
    settings_of_the_person(program, repository, repository.trap("gpg", f"read x < '{tmp_path}/pinentry'"))
    (tree / "new.txt").write_text("new\n")
    before, head = contents(repository.top), quietly(repository.top, "rev-parse", "HEAD", "coordinator/t1")
    assert taking_over.SIGN_TIMEOUT <= 30
    monkeypatch.setattr(taking_over, "SIGN_TIMEOUT", 1.0)
    for name, value in {"HOME": str(program.home), **IDENTITY}.items():
        monkeypatch.setenv(name, value)
    change = taking_over.change_of(tree, repository.top, "coordinator/t1")
    with pytest.raises(taking_over.Refused, match="nothing was applied. Signing did not end within 1 s"):
        taking_over.take_over(change, "changed")
    assert "gpg" in repository.sprung()
    assert contents(repository.top) == before and quietly(repository.top, "rev-parse", "HEAD", "coordinator/t1") == head
    assert quietly(repository.top, "status", "--porcelain") == b"" and quietly(tree, "status", "--porcelain") == b"?? new.txt\n"


def test_signing_by_the_program_of_the_person_is_done(program, repository, tree, task):
    settings_of_the_person(program, repository, repository.trap("gpg", SIGNS))
    (tree / "new.txt").write_text("new\n")
    (repository.top / "mine.txt").write_text("mine\n")
    quietly(repository.top, "add", ".")
    quietly(repository.top, "commit", "-q", "-m", "meanwhile")
    assert program.here("tasks", "apply", task, **IDENTITY).code == 0
    for commit in ("HEAD", "HEAD^2"):
        assert b"BEGIN PGP SIGNATURE" in quietly(repository.top, "cat-file", "commit", commit)


def test_a_signature_that_fails_in_the_merge_leaves_the_tree_as_it_was(program, repository, tree, task):
    settings_of_the_person(program, repository, repository.trap("gpg", "exit 1"))
    for where, name in ((tree, "new.txt"), (repository.top, "mine.txt")):
        (where / name).write_text("text\n")
        quietly(where, "add", ".")
        quietly(where, "commit", "-q", "-m", "committed")
    before, head = contents(repository.top), quietly(repository.top, "rev-parse", "HEAD")
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 1 and "commit.gpgSign" in done.err and "nothing was applied" in done.err
    assert contents(repository.top) == before and quietly(repository.top, "rev-parse", "HEAD") == head
    assert not (repository.top / ".git/MERGE_HEAD").exists()


def test_files_that_a_setting_puts_elsewhere_are_refused(program, repository, tree, task, tmp_path):
    untrap(repository)
    repository.git("config", "core.worktree", str(tmp_path))
    done = program.here("tasks", "apply", task, **IDENTITY)
    assert done.code == 1 and "core.worktree" in done.err


def test_a_worktree_that_was_led_to_another_repository_is_refused(program, repository, tree, task, tmp_path):
    run(tmp_path, "init", "-q", "other")
    (tree / ".git").write_text(f"gitdir: {tmp_path}/other/.git\n")
    done = program.here("tasks", "diff", task)
    assert done.code == 1 and "no worktree of the repository" in done.err


def test_the_callers_variables_do_not_steer(program, repository, tree, task, tmp_path):
    run(tmp_path, "init", "-q", "other")
    (tree / "new.txt").write_text("new\n")
    steered = {"GIT_DIR": f"{tmp_path}/other/.git", "GIT_WORK_TREE": f"{tmp_path}/other", "GIT_INDEX_FILE": f"{tmp_path}/index"}
    assert "+new" in program.here("tasks", "diff", task, **steered).out
    assert program.here("tasks", "apply", task, "--no-sign", **IDENTITY, **steered).code == 0
    assert (repository.top / "new.txt").exists() and not (tmp_path / "index").exists()
