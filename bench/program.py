"""One run of one program: the server in a process of its own, a fresh home, the kernel's numbers of its process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable, "-m"]
RUN = ["run", "go", "--output-format", "json", "--max-workers"]
OURS = [*PYTHON, "coordinator", *RUN]
PROBED = [*PYTHON, "bench.probe", *RUN]  # ours, with what only its own process can say


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program; seconds and MB. `seen` are the server's figures, `probed` those of `probe.py`."""

    requests: int
    cpu: float
    memory: float
    start: float
    wall: float
    seen: dict[str, Any]
    probed: dict[str, Any]


@contextlib.contextmanager
def server(workers: int, turns: int, delay: float, path: Path, options: Sequence[str] = ()) -> Iterator[str]:
    argv = [*PYTHON, "bench.server", str(workers), str(turns), str(delay), str(path), *options]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def environment(home: Path, base_url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "COORDINATOR_"))}
    return kept | {
        "HOME": str(home), "COORDINATOR_HOME": str(home / "coordinator"), "PYTHONPATH": str(ROOT), "BENCH_PROBE": str(home / "probe"),
        "ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": "x", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip


def measure(argv: Sequence[str], workers: int, turns: int, delay: float, options: Sequence[str] = ()) -> Run:
    """Run `argv` in a fresh home against a fresh server that was started with `options`. Raises `RuntimeError` if it fails."""
    with tempfile.TemporaryDirectory() as directory:
        home, work = Path(directory) / "home", Path(directory) / "work"
        home.mkdir()
        work.mkdir()
        (work / "file.txt").write_text("x = 1  # a line\n" * 1250)
        with server(workers, turns, delay, work / "file.txt", options) as base_url:
            began = time.monotonic()
            child = subprocess.Popen(
                [*argv, str(workers)], cwd=work, env=environment(home, base_url), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if "--parts" in options:
                urllib.request.urlopen(f"{base_url}/watch/{child.pid}").close()
            assert child.stdout is not None
            said = child.stdout.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            with urllib.request.urlopen(f"{base_url}/figures") as response:
                seen = json.load(response)
        probe = home / "probe"
        probed = json.loads(probe.read_text()) if probe.exists() else {}
    if child.returncode or seen["first"] is None:
        raise RuntimeError(f"{argv} ended with {child.returncode}: {said.decode(errors='replace')[-800:]}")
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return Run(seen["requests"], cpu, memory, seen["first"] - began, seen["last"] - seen["first"], seen, probed)
