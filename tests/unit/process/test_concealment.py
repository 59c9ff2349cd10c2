"""What others of the same user can learn of a process that conceals its credentials, and what it can still do itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from worker_agent import concealment

PACKAGES = (Path(concealment.__file__).parents[1], Path(msgspec.__file__).parents[1])  # what another interpreter needs of ours
SYSTEM = "/usr/bin/python3"
CHILD = """
import json, os, subprocess, sys
from worker_agent.concealment import conceal
conceal()
told = {
    "own": os.environ["ANTHROPIC_API_KEY"],
    "inherited": subprocess.run(["printenv", "ANTHROPIC_API_KEY"], capture_output=True, text=True).stdout.strip(),
    "fds": len(os.listdir("/proc/self/fd")) > 0,
    "start": open("/proc/self/stat").read() != "",
    "by a child": subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True).stdout.decode(),
    "child's own": subprocess.run(["cat", "/proc/self/environ"], capture_output=True, env={"A": "1"}).stdout.decode(),
}
print(json.dumps(told), flush=True)
sys.stdin.read()
"""


def _is_alike(interpreter: str) -> bool:
    """Whether it is there, and loads what was compiled for ours."""
    says = "import sys; print(sys.version_info[:2])"
    return os.path.exists(interpreter) and subprocess.check_output([interpreter, "-c", says], text=True).strip() == str(
        sys.version_info[:2]
    )


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: Linux only")


@pytest.mark.parametrize("user", [os.geteuid(), *([65534] if os.geteuid() == 0 and _is_alike(SYSTEM) else [])])
def test_a_key_is_in_nobodys_reach_and_still_in_its_owners(user: int) -> None:
    python = sys.executable if user == os.geteuid() else SYSTEM
    environment = {
        **os.environ,
        "ANTHROPIC_API_KEY": "the-key-itself",
        "AFTER": "marker",
        "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
    }
    process = subprocess.Popen(
        [python, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/", user=user
    )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        seen = subprocess.run(["cat", f"/proc/{process.pid}/environ"], capture_output=True, user=user, check=False)
    finally:
        process.communicate("")
    assert told["own"] == told["inherited"] == "the-key-itself"
    assert told["fds"] and told["start"] and told["child's own"] == "A=1\0"
    for environ in (told["by a child"], seen.stdout.decode()):
        assert "the-key-itself" not in environ
        if user == 0:
            assert "AFTER=marker" in environ.split("\0")  # marks of process trees are still to be found
        else:
            assert environ == ""
