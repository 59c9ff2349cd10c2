"""The whole program where this is no Linux: told so after its libraries are loaded, which know better."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import psutil

from tests.cli.program import Program
from tests.cli.test_run_api import until
from tests.integration.scripts import coordinator, fleet
from tests.support.fake_api import FakeAPI, Request, message, tool_use

AS = """
import sys, asyncio, subprocess, multiprocessing, psutil, platformdirs, urllib.request
sys.platform = {platform!r}
from coordinator.cli.entry import main
main()
"""


class Elsewhere(Program):
    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", AS.format(platform="darwin"), *arguments]


def test_what_a_killed_worker_began_is_gone_without_any_help_of_linux(program: Program) -> None:
    elsewhere = Elsewhere(program.home, program.cwd)
    seconds = f"3{os.getpid()}"

    def running() -> list[Any]:
        return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]

    def worker(request: Request) -> Any:
        return message(tool_use("Bash", {"command": f"setsid sleep {seconds} & timeout 900 sleep {seconds}"}))

    with FakeAPI(fleet(coordinator("one", final="all done"), worker)) as api:
        around = {"ANTHROPIC_BASE_URL": api.base_url, "ANTHROPIC_API_KEY": "sk-0123456789abcdef"}
        started = elsewhere.start("run", "goal", "--permission-mode", "bypassPermissions", **around)
        try:
            until(lambda: len(running()) == 2)
            ids = re.findall(r"^a\w{8}", elsewhere("ps", "-q").out, re.M) or re.findall(r"\ba\w{8}\b", elsewhere("ps").out)
            killed = elsewhere("kill", ids[0])
            assert killed.code == 0, killed.err
            assert running() == []
            started.communicate(timeout=40)
        finally:
            started.kill()
            for one in running():
                one.kill()
    assert "Traceback" not in killed.err


def test_windows_is_told_where_to_go() -> None:
    code = AS.format(platform="win32")
    done = subprocess.run([sys.executable, "-c", code, "ps"], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1 and "WSL" in done.stderr
