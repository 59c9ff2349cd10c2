"""A worker's own copy of the project on a node: a clone with a branch, which is pushed at the end of every turn.

1. What is pushed is a *state*: the commit the worker stands at, or, where files are changed, a commit on top of it that holds
   them all and that the worker never sees: neither its index nor its branch is touched, so that its own `git commit` finds what it expects.
   Another node unfolds a state again: the files as they were, uncommitted.
2. The state is taken before the next turn begins; pushing it goes on beside that turn. One push at a time, always of the newest.
3. A run that takes over pushes a state of its own first, so that the branch is no more where an earlier run saw it: what that one
   still pushes is refused (`remote.py`).
4. A clone is gone on with where it lies if nothing was pushed since by others. Else it is set aside, never removed.
5. Removed is only what is proven to be at the remote.

Files of a filter (git-lfs) are not stored as they stand: their changes stay behind, and that is said.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from coordinator.cluster.remote import Moved, Remote, Unreachable
from worker_agent.errors import ConfigError
from worker_agent.git import NONE, NOT_INTO, Done, filtered, left_out, place_of, run_git, settings_of
from worker_agent.words import counted

STATE = "Coordinator-State"  # the trailer of a commit that holds uncommitted files
NOBODY = {"user.name": "coordinator", "user.email": "coordinator@localhost"}
TRIES = 3  # of the last push
PAUSE = 2.0  # seconds between these
CACHES = ("__pycache__/", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/")  # ignored, and nobody's work


def branch_of(agent_id: str) -> str:
    return f"coordinator/{agent_id}"


def base_branch(commit: str) -> str:
    """The branch that keeps a commit at the remote which workers begin at."""
    return f"coordinator/base-{commit[:12]}"


class Start(Struct, frozen=True, kw_only=True):
    """Which branch a worker works on, at which commit it began, and which run of it this is."""

    agent_id: str
    branch: str
    base: str
    attempt: int
    is_new: bool  # nothing can have been pushed yet


class Delivered(Struct, frozen=True):
    """What became of a clone at a run's end. `commit` None: nothing was changed."""

    commit: str | None
    notes: tuple[str, ...] = ()


class Clones:
    """The clones under `directory`, one an agent. Belongs to one event loop."""

    def __init__(self, directory: Path, remote: Remote) -> None:
        self._directory = directory
        self._remote = remote

    async def open(self, start: Start, on_pushed: Callable[[str, str | None], None]) -> Clone:
        """The clone to work in. `on_pushed` is called with a commit that is at the remote, and what `keep` was told of it.
        Raises `ConfigError`."""
        path = self._directory / start.agent_id
        tip = None if start.is_new else await self._remote.tip(start.branch)
        note = _read_note(path)
        if path.is_dir() and place_of(path) is not None and note is not None and note == (tip or start.base):
            begins_anew, aside = False, None
        else:
            begins_anew, aside = True, await asyncio.to_thread(_set_aside, path)
            await self._make(path, start, tip)
        missing = await left_out(path, ("post-checkout",), (await run_git(path, "ls-files", "-z")).names)
        clone = Clone(path, start, self._remote, tip, on_pushed, begins_anew=begins_anew, missing=missing, aside=aside)
        if start.attempt > 1:
            await clone.fence()
        return clone

    async def _make(self, path: Path, start: Start, tip: str | None) -> None:
        commit = tip or start.base
        await self._remote.fetch(commit, start.branch if tip else base_branch(start.base))
        await self._remote.copy_to(path, commit, start.branch)
        if tip is not None:
            await _unfold(path)
        _write_note(path, commit)


class Clone:
    """One worker's copy while a run of it works there. `begins_anew`: it was made for this run; `aside` is where an older one
    of this machine lies now."""

    def __init__(
        self,
        path: Path,
        start: Start,
        remote: Remote,
        tip: str | None,
        on_pushed: Callable[[str, str | None], None],
        *,
        begins_anew: bool,
        missing: tuple[str, ...],
        aside: Path | None = None,
    ) -> None:
        self.path, self.branch = path, start.branch
        self.begins_anew, self.aside = begins_anew, aside
        self.missing = missing
        self._start, self._remote, self._on_pushed = start, remote, on_pushed
        self._at_remote = tip  # where the branch was seen last
        self._wanted: tuple[str, str | None] | None = None  # the newest state, and what is told when it is pushed
        self._pushing: asyncio.Task[None] | None = None
        self._problem: str | None = None
        self._behind: tuple[str, ...] = ()  # files whose changes are in no state
        self._last: tuple[str, str, str] | None = None  # the last state with uncommitted files: below it, its tree, itself

    async def fence(self) -> None:
        """Have the branch be where no earlier run saw it. Raises `Unreachable`."""
        self._wanted = (await self._state(always=True), None)
        await self._push_newest()
        if self._problem is not None:
            raise Unreachable(self._problem)

    async def keep(self, of: str | None = None) -> None:
        """Take the state as it is now, and have it pushed; `of` is told when that is done. Never raises for a remote that
        is away: a later state takes this one's place."""
        state = await self._state()
        if self._wanted is None and state == (self._at_remote or self._start.base):
            if of is not None:
                self._on_pushed(state, of)
            return
        self._wanted = (state, of)
        if self._pushing is None or self._pushing.done():
            self._pushing = asyncio.create_task(self._push_newest(), name=f"push {self.branch}")

    async def settle(self) -> str | None:
        """Until the newest state is at the remote; why it is not, after some tries."""
        for attempt in range(TRIES):
            if self._pushing is not None:
                await self._pushing
            if self._wanted is None:
                return None
            if attempt:
                await asyncio.sleep(PAUSE)
            self._pushing = asyncio.create_task(self._push_newest(), name=f"push {self.branch}")
            await self._pushing
        return self._problem

    async def deliver(self, message: str) -> Delivered:
        """At the end: what is not committed becomes a commit with `message`, and the branch holds it all; one on which
        nothing was done goes. The clone stays until `remove`."""
        commit = await self._commit(message)
        notes = []
        if self._behind:
            notes.append(
                f"changes of {', '.join(self._behind[:5])} stay in {self.path}: filters of the repository are not run here"
            )
        if commit == self._start.base:
            self._wanted = None
            problem = await self._forget()
            return Delivered(None, (*notes, *([problem] if problem else ())))
        if commit != self._at_remote:
            self._wanted = (commit, None)
        if (problem := await self.settle()) is not None:
            notes.append(f"not pushed: {problem}; the work lies on {os.uname().nodename} in {self.path}")
        return Delivered(commit, tuple(notes))

    async def why_kept(self) -> str | None:
        """Why it must not be removed after `deliver`, in words; None if all of it is at the remote."""
        if self._wanted is not None or self._behind:
            return "not all of it is at the remote"
        status = await run_git(
            self.path, "status", "--porcelain", "-z", "--untracked-files=all", "--ignored=matching", NOT_INTO
        )
        ignored = [line for line in status.names if line.startswith("!! ") and not line.endswith(CACHES)]
        if status.code or ignored:
            return "its state could not be read" if status.code else f"{counted(len(ignored), 'ignored file')} in it"
        return None

    async def remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self.path, True)
        with suppress(OSError):
            _note_file(self.path).unlink()

    # ── states ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _state(self, *, always: bool = False) -> str:
        """The commit that holds what is there now; `always` a new one, also where nothing is uncommitted."""
        head, is_changed = await self._look()
        if not (is_changed or always):
            return head
        tree = await self._tree(head)
        if not always and tree == (await _text(self.path, "rev-parse", f"{head}^{{tree}}")):
            return head
        if always or self._last is None or self._last[:2] != (head, tree):
            message = f"Uncommitted work of {self._start.agent_id}\n\n{STATE}: {self._start.attempt}\n"
            self._last = (head, tree, await self._commit_tree(tree, message, head))
        return self._last[2]

    async def _look(self) -> tuple[str, bool]:
        """The commit it stands at, and whether files differ from it."""
        done = await run_git(self.path, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", NOT_INTO)
        lines = done.names
        head = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
        if done.code or not head or head == "(initial)":
            raise ConfigError(f"the clone {self.path} cannot be read: {done.words}")
        return head, any(not line.startswith("# ") for line in lines)

    async def _tree(self, head: str) -> str:
        """The tree of all files that are not ignored, made with an index of its own."""
        place = place_of(self.path)
        assert place is not None
        with tempfile.TemporaryDirectory(prefix="coordinator-state-") as made:
            index = Path(made) / "index"
            with suppress(OSError):
                shutil.copy2(place.git / "index", index)
            variables = {"GIT_INDEX_FILE": str(index)}
            quiet = {"core.safecrlf": "false", "advice.addEmbeddedRepo": "false"}
            await _done(self.path, "add", "--all", settings=quiet, variables=variables)
            changed = (await _done(self.path, "diff-index", "--cached", "--name-only", "-z", head, variables=variables)).names
            of_filters = [name for names in (await filtered(self.path, changed)).values() for name in names]
            if of_filters:
                await _done(self.path, "reset", "--quiet", head, "--", *of_filters, variables=variables)
            self._behind = tuple(of_filters)
            return (await _done(self.path, "write-tree", variables=variables)).text

    async def _commit(self, message: str) -> str:
        """What is uncommitted as a commit of the branch; where the clone stands then."""
        head, is_changed = await self._look()
        if not is_changed:
            return head
        tree = await self._tree(head)
        if tree == (await _text(self.path, "rev-parse", f"{head}^{{tree}}")):
            return head
        commit = await self._commit_tree(tree, message, head)
        await _done(self.path, "reset", "--quiet", commit)
        return commit

    async def _commit_tree(self, tree: str, message: str, *parents: str) -> str:
        known = await asyncio.to_thread(settings_of, self.path)
        who = {key: value for key, value in NOBODY.items() if key not in known}
        words = [word for parent in parents for word in ("-p", parent)]
        return (await _done(self.path, "commit-tree", *words, "-m", message, tree, settings=who)).text

    # ── the remote ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _push_newest(self) -> None:
        """Until the newest state is there, or the remote is away."""
        place = place_of(self.path)
        while self._wanted is not None and place is not None:
            wanted = commit, of = self._wanted
            try:
                await self._remote.push(place.common / "objects", commit, self.branch, self._at_remote)
            except Unreachable as error:
                self._problem = str(error)
                if isinstance(error, Moved) and await self._is_there(commit):
                    self._problem = None  # the answer of an earlier push was lost
                else:
                    return
            self._problem, self._at_remote = None, commit
            if self._wanted is wanted:
                self._wanted = None
            await asyncio.to_thread(_write_note, self.path, commit)
            self._on_pushed(commit, of)

    async def _is_there(self, commit: str) -> bool:
        with suppress(Unreachable):
            return await self._remote.tip(self.branch) == commit
        return False

    async def _forget(self) -> str | None:
        if self._pushing is not None:
            await self._pushing
        if self._at_remote is not None:
            try:
                await self._remote.delete(self.branch, self._at_remote)
            except Unreachable as error:
                return f"its branch, on which nothing was done, stays: {error}"
            self._at_remote = None
        return None


async def _unfold(path: Path) -> None:
    """A state that holds uncommitted files becomes what it was made of: the commit below it, and the files over it."""
    if STATE in await _text(path, "log", "-1", f"--format=%(trailers:key={STATE})"):
        await _done(path, "reset", "--mixed", "--quiet", "HEAD^")


def _set_aside(path: Path) -> Path | None:
    if not path.is_dir():
        return None
    aside = path.with_name(f"{path.name}.left-{time.time_ns() // 1_000_000}")
    path.rename(aside)
    return aside


def _note_file(path: Path) -> Path:
    """Beside the clone, where no agent writes: which commit of the remote it holds."""
    return path.with_name(f".{path.name}.json")


def _read_note(path: Path) -> str | None:
    try:
        return str(json.loads(_note_file(path).read_text())["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_note(path: Path, commit: str) -> None:
    file = _note_file(path)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"commit": commit}))
    new.replace(file)


async def _done(
    path: Path, verb: str, *arguments: str, settings: Mapping[str, str] = NONE, variables: Mapping[str, str] = NONE
) -> Done:
    done = await run_git(path, verb, *arguments, settings=settings, variables=variables)
    if done.code:
        raise ConfigError(f"git {verb} in {path}: {done.words}")
    return done


async def _text(path: Path, verb: str, *arguments: str) -> str:
    return (await _done(path, verb, *arguments)).text
