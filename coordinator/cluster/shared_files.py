"""Small files that every machine of a session has: its scratchpad, and what was too long for an agent's messages.

1. Exchanged at the end of turns: what changed here goes to the database, what others changed comes from there. The last writer of
   a file wins.
2. A file of more than `MOST` bytes, and what is no regular file, stays where it is; with a workspace by git a commit carries it.
3. What comes is written only below the directory, whatever links an agent made there meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from coordinator.store import Store
from tasks import fleet
from tasks.fleet import SharedFile
from worker_agent.disk import read_regular

MOST = 256 * 1024  # bytes of a file
MANY = 500  # files of a directory
_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SharedDirectory:
    """`directory` on this machine; in the database its files bear the name `area` in front. Belongs to one event loop."""

    def __init__(self, store: Store, directory: Path, area: str) -> None:
        self._store = store
        self._directory = directory
        self._area = area
        self._version = 0
        self._known: dict[str, str] = {}  # digests by relative path, as they are there and here
        self._looks: dict[str, tuple[int, int]] = {}  # time and size by which a file is known without reading it
        self._lock = asyncio.Lock()

    async def exchange(self) -> None:
        """Give what changed here, take what changed elsewhere. Raises `DatabaseError`, `Fenced`."""
        async with self._lock:
            changed = await asyncio.to_thread(self._changed)
            store, area, version = self._store, self._area, self._version
            if changed:
                rows = [(f"{area}/{path}", digest, content) for path, digest, content in changed]
                await store.write(lambda conn: fleet.put_files(conn, store.session_id, rows))
                self._known.update({path: digest for path, digest, _ in changed})
            came = store.read(lambda conn: fleet.files_since(conn, store.session_id, version, area=area))
            if came:
                await asyncio.to_thread(self._take, came)

    def _changed(self) -> list[tuple[str, str, str | None]]:
        found = dict(self._files())
        changed: list[tuple[str, str, str | None]] = []
        for path, look in found.items():
            if self._looks.get(path) == look:
                continue
            with suppress(OSError):  # gone, or grown, meanwhile
                data = read_regular(self._directory / path, limit=MOST, inside=self._directory)
                self._looks[path] = look
                if (digest := hashlib.sha256(data).hexdigest()) != self._known.get(path):
                    changed.append((path, digest, base64.b64encode(data).decode()))
        for path in [path for path in self._looks if path not in found]:
            del self._looks[path]
            if self._known.get(path):
                changed.append((path, "", None))
        return changed

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Relative paths of what can be shared, with what tells one state from the next."""
        count = 0
        for top, directories, names in os.walk(self._directory):
            directories[:] = sorted(name for name in directories if not name.startswith(".coordinator-"))
            for name in sorted(names):
                path = os.path.join(top, name)
                with suppress(OSError):
                    info = os.lstat(path)
                    if os.path.isfile(path) and not os.path.islink(path) and info.st_size <= MOST and count < MANY:
                        count += 1
                        yield os.path.relpath(path, self._directory), (info.st_mtime_ns, info.st_size)

    def _take(self, files: list[SharedFile]) -> None:
        for file in files:
            self._version = max(self._version, file.version)
            path = file.path.removeprefix(f"{self._area}/")
            if self._known.get(path, "") == file.digest:
                continue
            with suppress(OSError):
                if file.content is None:
                    os.unlink(self._directory / path)
                else:
                    self._write(PurePosixPath(path), base64.b64decode(file.content))
                    info = os.lstat(self._directory / path)
                    self._looks[path] = (info.st_mtime_ns, info.st_size)
                self._known[path] = file.digest
            if file.content is None:
                self._looks.pop(path, None)

    def _write(self, path: PurePosixPath, data: bytes) -> None:
        """Each step without following a link. Raises `OSError`."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = os.open(self._directory, _STEP & ~os.O_NOFOLLOW)
        try:
            for name in path.parent.parts:
                if name == "..":
                    raise OSError("it leads out")
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=place)
                inner = os.open(name, _STEP, dir_fd=place)
                os.close(place)
                place = inner
            temporary = f".coordinator-{secrets.token_hex(6)}.tmp"
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
            with os.fdopen(file, "wb") as written:
                written.write(data)
            os.replace(temporary, path.name, src_dir_fd=place, dst_dir_fd=place)
        finally:
            os.close(place)


class SharedFiles:
    """What a machine has of a session's shared files; satisfies the port of `runs/workers.py`."""

    def __init__(self, store: Store, scratch: Path, spill: Path) -> None:
        self._store = store
        self._scratch = SharedDirectory(store, scratch, "scratch")
        self._spill = spill
        self._of_agents: dict[str, SharedDirectory] = {}

    async def exchange(self, agent_id: str) -> None:
        """At a turn's beginning or end of this agent."""
        if agent_id not in self._of_agents:
            self._of_agents[agent_id] = SharedDirectory(self._store, self._spill / agent_id, f"spill/{agent_id}")
        await self._scratch.exchange()
        await self._of_agents[agent_id].exchange()
