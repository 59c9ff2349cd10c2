"""Servers that other people wrote, from npm: they run as they are. Set `COORDINATOR_TEST_NPM` to a directory where
`npm install @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem` was run."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.mcp.test_connection import run
from worker_agent.mcp import content
from worker_agent.mcp.config import Scope, ServerConfig
from worker_agent.mcp.connection import Connection, State

PLACE = Path(os.environ.get("COORDINATOR_TEST_NPM", "/nonexistent")) / "node_modules/@modelcontextprotocol"
EVERYTHING, FILES = (str(PLACE / name / "dist/index.js") for name in ("server-everything", "server-filesystem"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("node") and Path(EVERYTHING).exists()),
        reason="NOT TESTED: no node, or COORDINATOR_TEST_NPM names nothing",
    ),
]


def server(name: str, *args: str) -> ServerConfig:
    return ServerConfig(name=name, kind="stdio", scope=Scope.USER, source="x", command="node", args=args)


async def use_everything(connection: Connection, tmp: Path) -> None:
    assert connection.state is State.CONNECTED, connection.problem
    assert content.of_call(await connection.call("echo", {"message": "hi"}), tmp)[0]["text"] == "Echo: hi"
    blocks = content.of_call(await connection.call("get-tiny-image", {}), tmp)
    assert [block["type"] for block in blocks].count("image") == 1
    links = content.of_call(await connection.call("get-resource-links", {"count": 2}), tmp)
    assert sum(block["text"].startswith("Resource ") for block in links) == 2
    said: list[str] = []
    await connection.call("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, said.append)
    assert said
    resources = await connection.resources()
    assert resources and content.of_resource(await connection.read(str(resources[0].uri)), tmp)


def test_everything_over_stdio(tmp_path: Path) -> None:
    run(tmp_path, server("everything", EVERYTHING), lambda connection: use_everything(connection, tmp_path))


@pytest.fixture
def over_http() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["node", EVERYTHING, "streamableHttp"], env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def test_everything_over_http(over_http: str, tmp_path: Path) -> None:
    config = ServerConfig(name="everything", kind="http", scope=Scope.USER, source="x", url=over_http)
    run(tmp_path, config, lambda connection: use_everything(connection, tmp_path))


def test_the_file_server_keeps_to_the_directories_of_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("content")

    async def body(files: Connection) -> None:
        read: Any = await files.call("read_text_file", {"path": str(tmp_path / "a" / "x.txt")})
        assert content.of_call(read, tmp_path)[0]["text"] == "content"
        refused: Any = await files.call("read_text_file", {"path": "/etc/hostname"})
        assert refused.is_error
        many = await asyncio.gather(*(files.call("list_directory", {"path": str(tmp_path / "a")}) for _ in range(20)))
        assert len(many) == 20

    run(tmp_path, server("files", FILES, str(tmp_path / "a")), body)
