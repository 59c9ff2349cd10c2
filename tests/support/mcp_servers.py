"""Configurations of the test servers (`mcp_server.py`), and one of them over HTTP as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("mcp_server.py")


def entry(mode: str, **more: Any) -> dict[str, Any]:
    """What stands in `mcpServers` for the server in this mode."""
    return {"command": sys.executable, "args": [str(SERVER), mode], **more}


@contextmanager
def over_http(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The plain server over streamable HTTP: its process and port; ended afterwards."""
    process = subprocess.Popen([sys.executable, str(SERVER), "http", str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
