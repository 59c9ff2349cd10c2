"""The real command in a process of its own, with a home of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from coordinator.cli.console import Console
from coordinator.cli.context import Context
from coordinator.cli.main import invoke

KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Every line of stdout as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Program:
    """`coordinator` with `home` as its home and the user's; no credentials in its environment."""

    home: Path
    cwd: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        # Scripts of tests begin with `python3`: the interpreter itself, not one that looks for it at every start.
        kept["PATH"] = f"{sys.base_prefix}/bin:{kept['PATH']}"
        return {**kept, "HOME": str(self.home), "COORDINATOR_HOME": str(self.home / "data"), **more}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "coordinator", *arguments]

    def __call__(self, *arguments: str, stdin: str = "", timeout: float = 50, **environment: str) -> Ran:
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, cwd=self.cwd, timeout=timeout,
            env=self.environment(**environment),
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def here(self, *arguments: str, stdin: str = "", **environment: str) -> Ran:
        """The command in this very process, at a twentieth of the price: for tests of what a command does, not of the process
        that does it. Nothing may outlive it; who owns a session or is signalled is this process."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        variables = mock.patch.dict(os.environ, self.environment(**environment), clear=True)
        with (
            variables,
            chdir(self.cwd),
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch("sys.stdin", io.StringIO(stdin)),
        ):
            context = Context(Console(out, err))
            try:
                code = invoke(arguments, context)
            finally:
                context.close()
        return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.cwd, env=self.environment(**environment), start_new_session=True,
        )  # fmt: skip
