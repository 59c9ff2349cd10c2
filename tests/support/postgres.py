"""A PostgreSQL server for tests: a cluster of its own in a temporary directory, on loopback, at a port of its own, run as an
ordinary user. Started when the first test asks for it, ended with the process, however that ends; nothing of it stays.

A database is a copy of one that was migrated once: about 0.05 s.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
USERS = ("postgres", "nobody")  # whom to be instead of root, as whom a server refuses to run
SETTINGS = (
    "fsync=off synchronous_commit=on full_page_writes=off shared_buffers=32MB max_connections=200 jit=off "
    "autovacuum=off listen_addresses=127.0.0.1"
).split()


# Ends the server and takes its directory away when process $1 is gone, also one that was killed.
GUARD = """
while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 1; done
pid=$(head -n 1 "$2/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
for again in 1 2 3 4 5; do rm -rf "$2" 2>/dev/null; [ -d "$2" ] || exit 0; sleep 1; done
"""


def why_not() -> str | None:
    """What is missing for a server here, in words; None if nothing is."""
    if PROGRAMS is None and shutil.which("initdb") is None:
        return "no PostgreSQL server is installed (Debian: apt-get install postgresql)"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'coordinator[cluster]')"
    if os.geteuid() == 0 and _user() is None:
        return f"root cannot run a server, and there is no user {' or '.join(USERS)}"
    return None


def _user() -> pwd.struct_passwd | None:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next((known[name] for name in USERS if name in known), None)


class Server:
    """Running from construction to `remove`. `stop` and `start` are an outage."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="coordinator-pg-"))
        self.port = _free_port()
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0 and (user := _user()) is not None:
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        guard = ["sh", "-c", GUARD, "guard", str(os.getpid()), str(self.directory)]
        quiet = subprocess.DEVNULL
        self._guard = subprocess.Popen(guard, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, cwd="/")
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def _data(self) -> str:
        return str(self.directory / "data")

    def _run(self, program: str, *arguments: str) -> None:
        path = str(PROGRAMS.with_name(program)) if PROGRAMS else program
        log = self.directory / "programs.log"
        with open(log, "ab") as output:  # a pipe would be held open by the server
            done = subprocess.run([path, *arguments], stdout=output, stderr=output, cwd=self.directory, **self._as_user)
        assert done.returncode == 0, log.read_text(errors="replace")[-2000:]

    def start(self) -> None:
        settings = " ".join(f"-c {setting}" for setting in SETTINGS)
        options = f"-p {self.port} -k {self.directory} {settings}"
        self._run("pg_ctl", "-D", self._data, "-l", str(self.directory / "server.log"), "-w", "-o", options, "start")

    def stop(self) -> None:
        """At once, as if it had crashed: what was committed is there after `start`."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://tester@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(f"host=127.0.0.1 port={self.port} user=tester dbname={database}", autocommit=True) as connection:
            connection.execute(sql.encode())

    def empty_database(self) -> str:
        """The URL of a database with nothing in it."""
        name = f"t{os.urandom(6).hex()}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def new_database(self) -> str:
        """The URL of a database of the newest schema."""
        name = f"t{os.urandom(6).hex()}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {self._migrated()}")
        return self.url(name)

    @cache  # noqa: B019 - one server a process
    def _migrated(self) -> str:
        from tasks.db import Database

        url = self.empty_database()
        Database.open(url).close()
        return url.rpartition("/")[2]

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)  # what its processes still write as they go is the guard's


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def server() -> Server:
    """The server of this process."""
    made = Server()
    atexit.register(made.remove)
    return made
