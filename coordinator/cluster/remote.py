"""The repository that a session's machines share: commits go there from where they are made, and come from there to where
they are needed.

1. What a working copy's own settings name has no part in it: every transfer is done from a repository of ours, empty but for
   what it fetched, which borrows the objects of the working copy.
2. How the remote is reached is the person's: their own git settings name the credential helper and the ssh command. A password
   never stands in an address of ours, since addresses are stored.
3. A branch moves only from where its mover saw it last. So a run that was taken over moves nothing any more.
4. On a remote that is a directory no hook runs either: it is this program's, or a person's who named a directory.

It raises `Unreachable`, in words for a person.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from worker_agent.errors import ConfigError
from worker_agent.git import Done, quoted, run_git, settings_of

TIMEOUT = 300.0  # seconds of one transfer
PROTOCOLS = "file:https:http:ssh"
_ON_DISK = "git -c core.hooksPath=/dev/null -c core.fsmonitor= -c receive.autogc=false -c gc.auto=0 "
_BATCH_SSH = "ssh -o BatchMode=yes"


class Unreachable(ConfigError):
    """The remote cannot be used now; the message says why, on one line."""


class Moved(Unreachable):
    """A branch is not where its mover saw it last."""


def address_of(text: str, cwd: Path) -> str:
    """The remote that `text` names: an address, or a directory as seen from `cwd`. Raises `ConfigError`."""
    if "::" in text or text.startswith("-"):  # a transport that is a program, an option
        raise ConfigError(f"a remote is reached by {PROTOCOLS.replace(':', ', ')}, or is a directory, not {text!r}")
    if "://" in text:
        parts = urlsplit(text)
        if parts.password is not None:
            raise ConfigError("a remote with a password in its address is not taken, since addresses are stored: use ssh or a "
                              "credential helper of git")  # fmt: skip
        if parts.scheme not in PROTOCOLS.split(":"):
            raise ConfigError(f"a remote is reached by {PROTOCOLS.replace(':', ', ')}, not by {parts.scheme}")
        return text
    if ":" in text.partition("/")[0]:  # host:path, as ssh has it
        return text
    return str((cwd / Path(text).expanduser()).absolute())


def is_on_disk(address: str) -> bool:
    return address.startswith(("/", "file://"))


class Remote:
    """The remote at `address`. `directory` is where the repository of ours lies that transfers are done from; `commit` any
    commit of the remote: by its length all is known of its kind of names. Belongs to one event loop."""

    def __init__(self, directory: Path, address: str, commit: str = "") -> None:
        self.directory = directory
        self.address = address
        self._format = "sha256" if len(commit) == 64 else "sha1"
        self._lock = asyncio.Lock()
        self._ready = False

    async def make_bare(self, path: Path) -> None:
        """Make the remote itself, where this program is to provide it; nothing where it is there."""
        if (path / "objects").is_dir():
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._checked(
            path.parent, "init", "--quiet", "--bare", "--template=", f"--object-format={self._format}", str(path)
        )

    async def push(self, objects: Path, commit: str, branch: str, expected: str | None) -> None:
        """Have `branch` be `commit`, whose objects lie in `objects`; `expected` is where it was seen last, None for nowhere.
        Raises `Moved` if it is elsewhere."""
        await self._prepare()
        ref = f"refs/heads/{branch}"
        arguments = ["--porcelain", "--quiet", f"--force-with-lease={ref}:{expected or ''}", *self._on_disk("receive-pack")]
        done = await self._git("push", *arguments, self.address, f"{commit}:{ref}", variables=_borrowed(objects))
        self._check_push(done, branch)

    async def delete(self, branch: str, expected: str) -> None:
        """Take `branch` away, which is `expected`. Raises `Moved` if it is elsewhere."""
        await self._prepare()
        ref = f"refs/heads/{branch}"
        arguments = ["--porcelain", "--quiet", f"--force-with-lease={ref}:{expected}", *self._on_disk("receive-pack")]
        self._check_push(await self._git("push", *arguments, self.address, f":{ref}"), branch)

    def _check_push(self, done: Done, branch: str) -> None:
        if done.code == 0:
            return
        said = f"{done.text} {done.err}"
        if "stale info" in said or "fetch first" in said or "already exists" in said:
            raise Moved(f"branch {branch} of {self.address} was moved by somebody else")
        raise Unreachable(f"branch {branch} cannot be pushed to {self.address}: {done.words}")

    async def tip(self, branch: str) -> str | None:
        """The commit that `branch` is, None if there is no such branch."""
        await self._prepare()
        ref = f"refs/heads/{branch}"
        listed = await self._checked(self.directory, "ls-remote", *self._on_disk("upload-pack"), self.address, ref)
        return next((line.split("\t")[0] for line in listed.splitlines() if line.endswith(f"\t{ref}")), None)

    async def fetch(self, commit: str, branch: str) -> None:
        """Have `commit`, which `branch` holds, in the repository of ours."""
        await self._prepare()
        async with self._lock:
            if (await self._git("cat-file", "-e", f"{commit}^{{commit}}")).code == 0:
                return
            ref = f"refs/heads/{branch}"
            arguments = ["--quiet", "--no-tags", "--no-write-fetch-head", *self._on_disk("upload-pack")]
            await self._checked(self.directory, "fetch", *arguments, self.address, ref)

    async def copy_to(self, directory: Path, commit: str, branch: str) -> None:
        """Make `directory`, which is not there, a repository of its own with `branch` checked out at `commit`, which was
        fetched. Complete under another name first: what is half made is never taken for it."""
        making = directory.with_name(f".{directory.name}.new-{os.getpid()}")
        await asyncio.to_thread(_remove, making)
        making.mkdir(parents=True, mode=0o700)
        initial = f"--initial-branch={branch}"
        await self._checked(making, "init", "--quiet", "--template=", initial, f"--object-format={self._format}")
        arguments = ["--quiet", "--no-tags", "--no-write-fetch-head", f"--upload-pack={_ON_DISK}upload-pack"]
        await self._checked(making, "fetch", *arguments, str(self.directory), commit)
        await self._checked(making, "update-ref", f"refs/heads/{branch}", commit)
        filled = await run_git(making, "reset", "--hard", "--quiet", timeout=TIMEOUT)
        if filled.code:
            raise ConfigError(f"the files of {commit[:12]} could not be written to {directory}: {filled.words}")
        try:
            await asyncio.to_thread(os.rename, making, directory)
        except OSError:  # another process of this home made it meanwhile
            if not (directory / ".git").is_dir():
                raise
            await asyncio.to_thread(_remove, making)

    async def _prepare(self) -> None:
        async with self._lock:
            if self._ready:
                return
            if not (self.directory / ".git" / "objects").is_dir():
                self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                await self._checked(self.directory, "init", "--quiet", "--template=", f"--object-format={self._format}")
                await self._checked(self.directory, "config", "uploadpack.allowAnySHA1InWant", "true")
            self._ready = True

    # ── one call ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_disk(self, service: str) -> list[str]:
        """What is to run at the other end where that is a directory of this machine."""
        return [f"--{service}={_ON_DISK}{service}"] if is_on_disk(self.address) else []

    async def _git(self, *arguments: str, variables: Mapping[str, str] = {}) -> Done:
        return await self._in(self.directory, *arguments, variables=variables)

    async def _in(self, directory: Path, *arguments: str, variables: Mapping[str, str] = {}) -> Done:
        """Only ever in a repository of ours, in which no agent works yet: what its settings name is the person's."""
        own = await asyncio.to_thread(settings_of, directory)
        return await run_git(
            directory, *arguments, timeout=TIMEOUT, settings=_reached(own),
            variables={"GIT_ALLOW_PROTOCOL": PROTOCOLS, **variables},
        )  # fmt: skip

    async def _checked(self, directory: Path, *arguments: str) -> str:
        done = await self._in(directory, *arguments)
        if done.code:
            raise Unreachable(f"git {arguments[0]} with {self.address}: {done.words}")
        return done.text


def _reached(own: Mapping[str, str]) -> dict[str, str]:
    """The settings of a person by which a remote is reached, of all that are switched off otherwise."""
    helpers = {key: value for key, value in own.items() if key.startswith("credential.") and key.endswith(".helper")}
    return helpers | {"core.sshCommand": own.get("core.sshcommand", _BATCH_SSH)}


def _borrowed(objects: Path) -> dict[str, str]:
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(objects)}


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
