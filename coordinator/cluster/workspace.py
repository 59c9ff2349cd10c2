"""The git workspace of a session, as its own process, its nodes and its viewers see it.

The session's options name the remote, and the commit that its nodes stand on (`base`). Events of a task tell of its work:
`work_began` at which commit and on which branch, `work_pushed` what is at the remote and up to which message, `work_lost` what was
not when its machine was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from coordinator.cluster.clones import Clone, Clones, Start, base_branch, branch_of
from coordinator.cluster.remote import Remote, Unreachable, address_of
from coordinator.options import RunOptions
from coordinator.paths import Paths
from coordinator.runs.worktrees import top_of
from coordinator.store import Store
from tasks import events, outbox, registry, transcripts
from tasks.connection import Connection
from tasks.records import SessionRecord, TaskRecord
from worker_agent.errors import ConfigError
from worker_agent.git import NOT_INTO, place_of, run_git
from worker_agent.structs import replace

GIT, SHARED = "git", "shared"
BEGAN, PUSHED, LOST = "work_began", "work_pushed", "work_lost"
MOST_CALLS = 20  # named of what was lost
CALL_WIDTH = 100  # characters of each
FROM_SYSTEM = "system"


async def prepared(options: RunOptions, cwd: Path, paths: Paths, session_id: str) -> tuple[RunOptions, tuple[str, ...]]:
    """The options of a new session with its workspace decided and, for git, made: the remote is there and holds the commit that
    is checked out. And what a person should know of it. Raises `ConfigError`."""
    kind = options.workspace or (GIT if await _has_commit(cwd) else SHARED)
    if kind == SHARED:
        return replace(options, workspace=SHARED), ()
    top = await top_of(cwd)
    head = await run_git(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head.code:
        raise ConfigError(f"--workspace git needs a first commit, and the repository {top} has none")
    made = paths.remotes / f"{session_id}.git"
    address = address_of(options.remote, cwd) if options.remote else str(made)
    remote = Remote(paths.transfers(session_id), address, head.text)
    if not options.remote:
        await remote.make_bare(made)
    await _publish(remote, top, head.text)
    changed = await run_git(top, "status", "--porcelain", "-z", "--untracked-files=all", NOT_INTO)
    news = []
    if count := len(changed.names):
        news.append(f"workers do not see what is not committed here: {count} file{'s' if count > 1 else ''}")
    return replace(options, workspace=GIT, remote=address, base=head.text), tuple(news)


async def _has_commit(cwd: Path) -> bool:
    place = place_of(cwd)
    if place is None or place.bare:
        return False
    return (await run_git(place.directory, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")).code == 0


async def check_clone(record: SessionRecord, cwd: Path) -> None:
    """Raise `ConfigError` unless a session whose directory is not on this machine can stand in `cwd`: in a clone of its
    project."""
    base, place = str(record.options["base"]), place_of(cwd)
    if place is not None and not place.bare:
        if (await run_git(place.directory, "cat-file", "-e", f"{base}^{{commit}}")).code == 0:
            return
    raise ConfigError(
        f"the directory {record.cwd} of the session is not on this machine, and {cwd} is no clone of its project: it does not "
        f"have the commit {base[:12]}; go on in one that has, or name it by --cwd"
    )


async def _publish(remote: Remote, top: Path, commit: str) -> None:
    """Have `commit` at the remote, under a branch of its own."""
    place = place_of(top)
    assert place is not None
    branch = base_branch(commit)
    if await remote.tip(branch) is None:
        await remote.push(place.common / "objects", commit, branch, None)


class Starts:
    """Where workers begin: what the session's own process tells the nodes."""

    def __init__(self, store: Store, cwd: Path, remote: Remote) -> None:
        self._store = store
        self._cwd = cwd
        self._remote = remote
        self._published: set[str] = set()
        self._lock = asyncio.Lock()

    async def begin(self, task: TaskRecord) -> None:
        """Say at which commit the task's work begins, and have that at the remote; once. Raises `ConfigError`."""
        if began(self._store, task.id) is not None:
            return
        branch, base = task.branch or branch_of(task.agent_id), None
        if task.continues is not None and await self._remote.tip(branch) is not None:
            earlier = began(self._store, task.continues)
            base = earlier[0] if earlier else None
        base = base or await self._head()
        data = {"base": base, "branch": branch}

        def say(conn: Connection) -> None:
            events.add(conn, task.session_id, task.id, BEGAN, data)
            registry.annotate(conn, task.id, branch=branch)

        await self._store.write(say)

    async def _head(self) -> str:
        """The commit that is checked out now, at the remote."""
        top = await top_of(self._cwd)
        head = await run_git(top, "rev-parse", "--verify", "HEAD^{commit}")
        if head.code:
            raise ConfigError(f"the commit that is checked out in {top} cannot be read: {head.words}")
        async with self._lock:
            if head.text not in self._published:
                await _publish(self._remote, top, head.text)
                self._published.add(head.text)
        return head.text


def began(store: Store, task_id: str) -> tuple[str, str] | None:
    """The commit and the branch that the task's work began with."""
    found = _last(store.read(lambda conn: events.since(conn, 0, task_id=task_id)), BEGAN)
    return (str(found["base"]), str(found["branch"])) if found else None


def _last(happened: list[Any], kind: str) -> Mapping[str, Any] | None:
    return next((event.data for event in reversed(happened) if event.kind == kind), None)


# ── on a node ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def ground(options: RunOptions, session_id: str, paths: Paths) -> Path:
    """A copy of the project on this machine for what a session reads of it: its rules, agents, instructions. Nobody works in
    it. Raises `ConfigError`."""
    remote, base = remote_of(options, session_id, paths), options.base or ""
    place = paths.workspace(session_id) / "ground"
    if not (place / ".git").is_dir():
        await remote.fetch(base, base_branch(base))
        await remote.copy_to(place, base, "ground")
    return place


def remote_of(options: RunOptions, session_id: str, paths: Paths) -> Remote:
    return Remote(paths.transfers(session_id), options.remote or "", options.base or "")


class Copies:
    """Workers' own copies on this machine; satisfies the port of `runs/workers.py`. `changes` says of a call whether it can have
    had an effect."""

    def __init__(self, store: Store, paths: Paths, remote: Remote, changes: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self._store = store
        self._home = paths.home
        self._clones = Clones(paths.worktrees(store.session_id), remote)
        self._changes = changes

    async def open(self, task: TaskRecord) -> Copy:
        """Raises `ConfigError`."""
        store = self._store
        found = began(store, task.id)
        if found is None:
            raise ConfigError(f"nobody said at which commit the work of {task.id} begins")
        base, branch = found
        start = Start(
            agent_id=task.agent_id,
            branch=branch,
            base=base,
            attempt=task.attempt,
            is_new=task.attempt == 1 and task.continues is None,
        )

        def pushed(commit: str, of: str | None) -> None:
            data = {"commit": commit, "message": of, "attempt": task.attempt}
            store.submit(lambda conn: events.add(conn, task.session_id, task.id, PUSHED, data))

        lost = store.read(lambda conn: self._unpushed(conn, task)) if task.attempt > 1 else ()
        clone = await self._clones.open(start, pushed)
        if clone.begins_anew and task.worktree is not None:
            await self._tell_moved(task, clone, lost)
        await store.write(lambda conn: registry.annotate(conn, task.id, worktree=str(clone.path), branch=branch))
        return Copy(store, task, clone)

    def _unpushed(self, conn: Connection, task: TaskRecord) -> tuple[str, ...]:
        """The calls with effects that came after what was pushed last."""
        pushed = [event for event in events.since(conn, 0, task_id=task.id) if event.kind == PUSHED and event.data["message"]]
        last = pushed[-1].data["message"] if pushed else None
        rows = transcripts.load(conn, task.agent_id)
        begin = next((n + 1 for n, row in enumerate(rows) if row.id == last), 0)
        blocks = (block for row in rows[begin:] if row.task_id == task.id for block in orjson.loads(row.content or "[]"))
        calls = [block for block in blocks if isinstance(block, Mapping) and block.get("type") == "tool_use"]
        return tuple(_call(block) for block in calls if self._changes(block["name"], block["input"]))

    async def _tell_moved(self, task: TaskRecord, clone: Clone, lost: tuple[str, ...]) -> None:
        said = [f"You go on on another machine. Your working directory is {clone.path} now; it was {task.worktree}."]
        named = "; ".join(lost[:MOST_CALLS]) + (f"; and {len(lost) - MOST_CALLS} more" if len(lost) > MOST_CALLS else "")
        if len(was := Path(task.worktree or "").parents) > 2 and was[2] != self._home:  # home/worktrees/session/agent
            said.append(f"What is said to lie below {was[2]} (the scratchpad, long results) lies below {self._home} here.")
        if lost:
            said.append(
                f"What these calls changed in files was not pushed when the machine before was lost, and is not here: {named}. "
                "Look at what is missing, and do it again where it is needed."
            )
        if clone.aside is not None:
            said.append(f"An older copy of this machine lies in {clone.aside}.")

        def tell(conn: Connection) -> None:
            outbox.send(conn, session_id=task.session_id, agent_id=task.agent_id, body=" ".join(said), sender=FROM_SYSTEM)
            if lost:
                text = f"not pushed when attempt {task.attempt - 1} was lost with its machine: {named}"
                events.add(conn, task.session_id, task.id, LOST, {"text": text})

        await self._store.write(tell)


def _call(block: Mapping[str, Any]) -> str:
    said = next((value for value in block["input"].values() if isinstance(value, str)), "")
    return " ".join(f"{block['name']} {said}".split())[:CALL_WIDTH]


class Copy:
    """One worker's copy during one run. What cannot be done with it is said, and ends no run."""

    def __init__(self, store: Store, task: TaskRecord, clone: Clone) -> None:
        self._store, self._task, self._clone = store, task, clone
        self._stays = True
        self.path, self.branch, self.left_out = clone.path, clone.branch, clone.missing
        self._problem: str | None = None

    async def keep(self, message_id: str | None = None) -> None:
        """At a turn's end, of which `message_id` is stored."""
        try:
            await self._clone.keep(message_id)
            self._problem = None
        except ConfigError as error:
            self._problem = str(error)

    async def leave(self) -> None:
        """The run is given back: what is there now goes to the remote."""
        await self.keep()
        await self._clone.settle()

    async def deliver(self, message: str) -> tuple[str, ...]:
        """At the end; what is to be said of it."""
        happened = self._store.read(lambda conn: events.since(conn, 0, task_id=self._task.id))
        notes = [str(event.data["text"]) for event in happened if event.kind == LOST]
        try:
            done = await self._clone.deliver(message)
            notes += done.notes
            if done.commit is None:
                notes.append("nothing was changed in its copy of the project")
            elif not done.notes:
                notes.append(
                    f"its work is commit {done.commit[:12]} of the branch {self.branch}; `tasks apply {self._task.id}` merges it"
                )
            why = await self._clone.why_kept()
            if why is not None and not done.notes:
                notes.append(f"its copy {self.path} was kept: {why}")
            self._stays = why is not None
        except ConfigError as error:
            notes.append(f"its work could not be committed and lies in {self.path}: {error}")
        return tuple(notes)

    async def remove(self) -> None:
        """After the end is stored: unless it was said to stay."""
        if not self._stays:
            await self._clone.remove()


async def fetched(record: SessionRecord, branch: str, paths: Paths) -> tuple[Path, str]:
    """Where the objects of a session's `branch` lie on this machine, and the commit that it is. Raises `Unreachable`."""
    known = record.options
    remote = Remote(paths.transfers(record.id), str(known["remote"]), str(known["base"]))
    tip = await remote.tip(branch)
    if tip is None:
        raise Unreachable(f"the branch {branch} is not at {remote.address}: nothing was changed on it, or it was taken away")
    await remote.fetch(tip, branch)
    return remote.directory / ".git" / "objects", tip
