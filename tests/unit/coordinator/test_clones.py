"""A worker's clone: states that its own git does not see, pushed in order, refused once another run has the branch."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.cluster.clones import Clone, Clones, Start, base_branch
from coordinator.cluster.remote import Remote, Unreachable, address_of
from worker_agent.errors import ConfigError
from worker_agent.structs import replace


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@x", "-C", str(directory), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Fleet:
    """A project, its remote, and machines with homes of their own."""

    directory: Path
    start: Start
    pushed: list[tuple[str, str | None]] = field(default_factory=list)

    def remote(self, home: str) -> Remote:
        return Remote(self.directory / home / "transfers", str(self.bare), self.start.base)

    @property
    def bare(self) -> Path:
        return self.directory / "remote.git"

    def tip(self) -> str:
        return git(self.bare, "rev-parse", f"refs/heads/{self.start.branch}")

    async def clone(self, home: str, attempt: int = 1) -> Clone:
        clones = Clones(self.directory / home / "worktrees", self.remote(home))
        start = replace(self.start, attempt=attempt, is_new=attempt == 1)
        return await clones.open(start, lambda commit, of: self.pushed.append((commit, of)))


def with_fleet(tmp_path: Path, work: Callable[[Fleet], Awaitable[None]]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q", "-b", "main")
    (project / "kept").write_text("kept\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    base = git(project, "rev-parse", "HEAD")
    made = Fleet(tmp_path, Start(agent_id="a1", branch="coordinator/a1", base=base, attempt=1, is_new=True))

    async def run() -> None:
        remote = made.remote("own")
        await remote.make_bare(made.bare)
        await remote.push(project / ".git" / "objects", base, base_branch(base), None)
        await work(made)

    asyncio.run(run())


def test_a_state_holds_what_is_not_committed_and_the_workers_git_sees_nothing_of_it(tmp_path: Path) -> None:
    async def work(fleet: Fleet) -> None:
        clone = await fleet.clone("one")
        (clone.path / "new").write_text("new\n")
        (clone.path / "kept").unlink()
        before = git(clone.path, "status", "--porcelain")
        await clone.keep("m1")
        assert await clone.settle() is None
        assert fleet.pushed == [(fleet.tip(), "m1")]
        assert git(clone.path, "status", "--porcelain") == before
        assert git(clone.path, "rev-parse", "HEAD") == fleet.start.base
        await clone.keep("m2")  # nothing changed: nothing is pushed, and it is told
        assert await clone.settle() is None and fleet.pushed == [(fleet.tip(), "m1"), (fleet.tip(), "m2")]

        moved = await fleet.clone("two", attempt=2)
        assert moved.begins_anew and moved.path != clone.path
        assert git(moved.path, "status", "--porcelain") == before
        assert (moved.path / "new").read_text() == "new\n" and not (moved.path / "kept").exists()

    with_fleet(tmp_path, work)


def test_a_run_that_was_taken_over_moves_the_branch_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.cluster.clones.PAUSE", 0.01)

    async def work(fleet: Fleet) -> None:
        old = await fleet.clone("one")
        (old.path / "new").write_text("old\n")
        await old.keep("m1")
        assert await old.settle() is None
        new = await fleet.clone("two", attempt=2)
        (old.path / "new").write_text("too late\n")
        await old.keep("m2")
        problem = await old.settle()
        assert problem is not None and "moved by somebody else" in problem
        assert (await new.deliver("work")).commit == fleet.tip()
        assert git(fleet.bare, "show", f"{fleet.tip()}:new") == "old"

        back = await fleet.clone("one", attempt=3)  # on the first machine again: its copy is not what is at the remote
        assert back.begins_anew and back.aside is not None
        assert (back.aside / "new").read_text() == "too late\n" and (back.path / "new").read_text() == "old\n"

    with_fleet(tmp_path, work)


def test_a_run_on_the_same_machine_goes_on_with_what_was_never_pushed(tmp_path: Path) -> None:
    async def work(fleet: Fleet) -> None:
        clone = await fleet.clone("one")
        (clone.path / "new").write_text("not pushed\n")
        again = await fleet.clone("one", attempt=2)
        assert not again.begins_anew and (again.path / "new").read_text() == "not pushed\n"
        done = await again.deliver("the work (a1)")
        assert git(fleet.bare, "log", "-1", "--format=%s", fleet.tip()) == "the work (a1)"
        assert done == replace(done, commit=fleet.tip(), notes=())
        assert await again.why_kept() is None
        await again.remove()
        assert os.listdir(fleet.directory / "one" / "worktrees") == []

    with_fleet(tmp_path, work)


def test_a_branch_on_which_nothing_was_done_goes_and_one_that_cannot_be_pushed_keeps_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.cluster.clones.PAUSE", 0.01)

    async def work(fleet: Fleet) -> None:
        clone = await fleet.clone("one")
        (clone.path / "new").write_text("x")
        await clone.keep()
        (clone.path / "new").unlink()
        assert (await clone.deliver("work")).commit is None
        with pytest.raises(AssertionError):
            fleet.tip()

        (clone.path / "new").write_text("x")
        fleet.bare.rename(away := fleet.bare.with_suffix(".away"))
        done = await clone.deliver("work")
        assert done.commit and "not pushed" in done.notes[0] and str(clone.path) in done.notes[0]
        assert await clone.why_kept() is not None
        with pytest.raises(Unreachable):
            await fleet.remote("two").tip("main")
        away.rename(fleet.bare)

    with_fleet(tmp_path, work)


def test_nothing_that_a_copy_or_the_remote_names_is_run_or_followed(tmp_path: Path) -> None:
    async def work(fleet: Fleet) -> None:
        marks = tmp_path / "marks"
        marks.mkdir()
        clone = await fleet.clone("one")
        for hook in ("pre-receive", "update", "post-receive", "post-update"):
            (file := fleet.bare / "hooks" / hook).parent.mkdir(exist_ok=True)
            file.write_text(f"#!/bin/sh\ntouch {marks}/{hook}\n")
            file.chmod(0o755)
        (elsewhere := tmp_path / "elsewhere.git").mkdir()
        git(elsewhere, "init", "-q", "--bare")
        for key, value in (
            ("core.fsmonitor", f"touch {marks}/fsmonitor"),
            ("core.hooksPath", str(fleet.bare / "hooks")),
            (f"url.{elsewhere}.pushInsteadOf", str(fleet.bare)),
            (f"url.{elsewhere}.insteadOf", str(fleet.bare)),
            ("filter.f.clean", f"touch {marks}/filter; cat"),
        ):
            git(clone.path, "config", key, value)
        (clone.path / ".gitattributes").write_text("*.big filter=f\n")
        (clone.path / "a.big").write_text("big")
        (clone.path / "plain").write_text("plain")
        await clone.keep("m1")
        assert await clone.settle() is None
        assert os.listdir(marks) == []
        assert sorted(git(fleet.bare, "ls-tree", "--name-only", fleet.tip()).split()) == [".gitattributes", "kept", "plain"]
        done = await clone.deliver("work")
        assert "a.big" in done.notes[0] and await clone.why_kept() is not None

    with_fleet(tmp_path, work)


def test_what_is_no_remote_for_machines_is_refused(tmp_path: Path) -> None:
    assert address_of("git@host:x/y.git", tmp_path) == "git@host:x/y.git"
    assert address_of("https://host/x.git", tmp_path) == "https://host/x.git"
    assert address_of("../r.git", tmp_path / "a") == str(tmp_path / "a" / ".." / "r.git")
    for bad, why in (
        ("https://me:secret@host/x.git", "password"),
        ("ext::sh -c x", "reached by"),
        ("ftp://h/x", "reached by"),
        ("--exec=x", "reached by"),
    ):
        with pytest.raises(ConfigError, match=why) as told:
            address_of(bad, tmp_path)
        assert "secret" not in str(told.value)
