"""The files that the page about nodes gives, as far as a machine without their engines can say: what they call is there, takes
these arguments, and has the time to drain."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

from coordinator.cli.commands.node import node

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docs" / "deploy" / "coordinator-node.service"
DOCKERFILE = ROOT / "docs" / "deploy" / "Dockerfile"


def drain_of(arguments: list[str]) -> float:
    """Seconds that a node with these arguments lets turns end; they are parsed as the command does."""
    context = node.make_context("node", list(arguments), resilient_parsing=False)
    return float(context.params["drain_timeout"])


def test_the_unit_starts_a_node_and_leaves_it_the_time_to_drain() -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("coordinator", "node")
    minutes = re.fullmatch(r"(\d+)m", service["TimeoutStopSec"])
    assert minutes is not None and int(minutes[1]) * 60 > drain_of(arguments)
    assert service["KillMode"] == "mixed", "its workers' commands end with their turns, not at once"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """With a program, an account and a file that every machine has."""
    text = UNIT.read_text().replace("/opt/coordinator/bin/coordinator", sys.executable).replace("User=coordinator", "User=root")
    (tmp_path / UNIT.name).write_text(text.replace("/etc/coordinator.env", "/etc/passwd"))
    done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_container_file_installs_what_there_is_and_starts_a_node_that_has_the_time_to_drain() -> None:
    text = DOCKERFILE.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = re.search(r"^FROM python:(\d\.\d+)-", text, re.M)
    assert image is not None and image[1] in project["requires-python"]
    assert "'.[cluster]'" in text and "cluster" in project["optional-dependencies"]
    assert "--constraint constraints.txt" in text and (ROOT / "constraints.txt").is_file()
    entry = re.search(r"^ENTRYPOINT (.*)$", text, re.M)
    assert entry is not None and json.loads(entry[1]) == ["coordinator", "node"]
    run = re.search(r"docker run .*--stop-timeout (\d+) .* coordinator-node (.*)$", text, re.M)
    assert run is not None and int(run[1]) > drain_of(shlex.split(run[2])), "the engine kills after that"
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.M)
    set_here = re.findall(r"^ENV (\w+)=", text, re.M)
    assert set_here == ["COORDINATOR_HOME"]
