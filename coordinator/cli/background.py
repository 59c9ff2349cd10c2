"""What goes on in a process of its own, away from the terminal: a session (`run --bg`), looking back on one that has ended.

A session's child keeps the terminal's stderr until the session is there, so that what goes wrong before is said where the person is;
from then on it writes to a log. It hears no SIGHUP.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from coordinator.cli.context import Context
from coordinator.options import RunOptions
from coordinator.paths import Paths

Ready = Callable[[str], None]


def start_in_background(cli: Context, run: Callable[[Ready], int]) -> int:
    """Run `run` in a child and return 0 with the session's id printed, or the child's code if it ended before that.
    `run` is given a function to call with the id once the session is there. Returns in both processes."""
    cli.close_database()  # connections do not survive a fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        logs = cli.paths.logs
        return run(lambda session_id: _detach(logs, session_id, write))
    os.close(write)
    with os.fdopen(read) as pipe:
        session_id = pipe.read()
    if not session_id:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    cli.console.line(session_id)
    cli.console.note(f"goes on in the background; `coordinator attach {session_id}` watches it")
    return 0


def look_back(options: RunOptions, session_id: str) -> None:
    """Begin to write notes of a session that has ended (`coordinator sessions remember`); nobody waits for them. What goes
    wrong stands in the session's log."""
    database = ("--db", str(options.db)) if options.db else ()
    command = (sys.executable, "-P", "-m", "coordinator", *database, "sessions", "remember", session_id)
    paths = Paths.of(options.config)
    with suppress(OSError), _log(paths.logs, session_id) as log:
        process = subprocess.Popen(
            command, cwd=paths.home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
        process.returncode = 0  # it outlives us: nobody is to wait for it, or to complain that nobody did


def _log(logs: Path, session_id: str) -> FileIO:
    """Where a process in the background says what a person would see."""
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(logs / f"{session_id}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return FileIO(file, "ab")


def _detach(logs: Path, session_id: str, write: int) -> None:
    """Leave the terminal: stdio goes to the log, and whoever waits is told."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    with _log(logs, session_id) as log:
        for source, target in ((nothing, 0), (log.fileno(), 1), (log.fileno(), 2)):
            os.dup2(source, target)
    os.write(write, session_id.encode())
    os.close(write)
