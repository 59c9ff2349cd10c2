"""One connection to a real server in a process of its own, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from tests.support.mcp_server import PNG
from tests.support.mcp_servers import SERVER, over_http
from worker_agent.config import McpSettings, tool_environment
from worker_agent.errors import ToolError
from worker_agent.mcp import content
from worker_agent.mcp.config import Scope, ServerConfig
from worker_agent.mcp.connection import Connection, State, Surroundings
from worker_agent.mcp.servers import Servers
from worker_agent.process_tree import find_tree

MARKER = "mcp-connection-test"
PATIENT = McpSettings(start_timeout=55, call_timeout=55)  # the machine may be busy


def stdio(mode: str, **more: Any) -> ServerConfig:
    return ServerConfig(
        name=mode, kind="stdio", scope=Scope.USER, source="x", command=sys.executable, args=(str(SERVER), mode), **more
    )


def run(
    tmp: Path,
    server: ServerConfig,
    body: Callable[[Connection], Awaitable[Any]],
    settings: McpSettings = PATIENT,
    **around: Any,
) -> Any:
    """`body` with a started connection, which is closed after it; nothing of it may be left."""
    marker = f"{MARKER}-{tmp.name}"
    values: dict[str, Any] = {"cwd": tmp, "environment": tool_environment(), "marker": marker, "logs": tmp / "logs"}

    async def main() -> Any:
        connection = Connection(
            server, Surroundings(settings=settings, **values | around), around.pop("changed", lambda c: None)
        )
        try:
            await connection.start()
            return await body(connection)
        finally:
            await connection.close()
            assert find_tree(None, None, marker) == []
            assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    return asyncio.run(main())


async def fails(call: Awaitable[Any]) -> str:
    with pytest.raises(ToolError) as raised:
        await call
    return str(raised.value)


def test_a_server_is_asked_called_found_dead_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    said: list[str] = []

    async def body(plain: Connection) -> None:
        assert (plain.state, plain.problem, plain.offer.version) == (State.CONNECTED, None, "plain 1.2")
        assert [t.name for t in plain.offer.tools][:2] == ["mcp__plain__add", "mcp__plain__audio"]
        assert {t.own_name for t in plain.offer.tools if t.read_only} == {"add"}
        assert plain.offer.instructions.startswith("Ask `add`")
        assert content.of_call(await plain.call("add", {"a": 1, "b": 2}), tmp_path)[0]["text"] == "3"
        assert content.of_call(await plain.call("slow", {"seconds": 0}, said.append), tmp_path)[0]["text"] == "done"
        assert said == ["half way"]
        failed = await plain.call("fail", {})
        assert failed.is_error and "fail" in content.of_call(failed, tmp_path)[0]["text"]
        assert (await plain.call("environment", {"name": "ANTHROPIC_API_KEY"})).content[0].text == "(none)"
        assert (await plain.call("environment", {"name": "OWN"})).content[0].text == "a value"

        assert content.of_call(await plain.call("image", {}), tmp_path)[1]["source"]["media_type"] == "image/png"
        sound = content.of_call(await plain.call("audio", {}), tmp_path / "files")[0]["text"]
        assert sound.startswith("[audio, audio/wav, 9 bytes: ") and Path(sound[:-1].split(": ")[1]).read_bytes() == b"RIFFsound"
        note, file = content.of_call(await plain.call("resource", {}), tmp_path / "files")
        assert note["text"] == "Resource note://1:\nthe note" and "3 bytes" in file["text"]
        assert [str(r.uri) for r in await plain.resources()] == ["note://readme"]
        assert content.of_resource(await plain.read("note://readme"), tmp_path)[0]["text"] == "Resource note://readme:\nread me"

        first = int((await plain.call("who", {})).content[0].text)
        assert begun == [first]
        text = await fails(plain.call("die", {}))
        assert "it ended while die ran; whether that had effects is unknown" in text and "started again" in text
        second = int((await plain.call("who", {})).content[0].text)
        assert second != first and begun == [first, second]

        psutil.Process(second).kill()  # while nobody asks
        while plain.state is State.CONNECTED:
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*(plain.call("who", {}) for _ in range(3)))
        assert len({answer.content[0].text for answer in answers}) == 1 and len(begun) == 3

        changed = asyncio.Event()
        plain._on_change = lambda connection: changed.set()
        await plain.call("grow", {})
        await asyncio.wait_for(changed.wait(), 30)
        assert "mcp__plain__extra" in [t.name for t in plain.offer.tools]
        assert "plain server up" in plain.log.read_text()

    def on_process(pid: int, started: float) -> None:
        begun.append(pid)

    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-not-for-servers")
    run(tmp_path, stdio("plain", env={"OWN": "a value"}), body, on_process=on_process)


def test_a_server_over_http_is_reached_and_reached_again_when_it_comes_back(tmp_path: Path) -> None:
    with over_http() as (process, port):
        server = ServerConfig(name="web", kind="http", scope=Scope.USER, source="x", url=f"http://127.0.0.1:{port}/mcp")

        async def body(web: Connection) -> None:
            assert (web.state, len(web.offer.tools)) == (State.CONNECTED, 11)
            assert (await web.call("add", {"a": 1, "b": 2})).content[0].text == "3"
            process.kill()
            await asyncio.to_thread(process.wait)
            first = await fails(web.call("who", {}))
            assert first.startswith("MCP server 'web': ")
            assert "it is not there" in await fails(web.call("who", {}))
            with over_http(port):
                web._not_before = 0.0
                assert (await web.call("add", {"a": 2, "b": 2})).content[0].text == "4"

        run(tmp_path, server, body)


def test_what_answers_nonsense_costs_its_own_tools_only(tmp_path: Path) -> None:
    async def body(nonsense: Connection) -> None:
        (tool,) = nonsense.offer.tools
        assert (tool.name, tool.input_schema) == ("mcp__nonsense__fine_tool", {"type": "object", "properties": {}})
        assert [p.split(" ")[2] for p in nonsense.offer.problems] == ["'fine.tool'", "'broken'", "'elsewhere'"]
        assert "its answer does not fit the protocol" in await fails(nonsense.call("fine tool", {}))

    run(tmp_path, stdio("nonsense"), body)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (stdio("silent"), "Connection closed; it said: I cannot start: no database"),
        (
            ServerConfig(name="gone", kind="stdio", scope=Scope.USER, source="x", command="no-such-program-x"),
            "there is no program",
        ),
        (
            ServerConfig(name="web", kind="http", scope=Scope.USER, source="x", url="http://127.0.0.1:9/${GONE}"),
            "not set: GONE",
        ),
    ],
)
def test_a_server_that_does_not_start_is_a_sentence_and_is_not_tried_again_at_once(
    tmp_path: Path, server: ServerConfig, why: str
) -> None:
    async def body(connection: Connection) -> None:
        assert connection.state is State.FAILED and why in str(connection.problem)
        assert "It is tried again in" in await fails(connection.call("x", {}))

    run(tmp_path, server, body)


def test_a_server_that_hangs_costs_its_time_limit_and_is_ended_though_it_does_not_want_to(tmp_path: Path) -> None:
    async def body(hang: Connection) -> None:
        assert hang.problem == "it did not answer within 0.5 s"

    run(tmp_path, stdio("hang"), body, McpSettings(start_timeout=0.5))


def test_a_call_has_a_limit_of_its_own(tmp_path: Path) -> None:
    async def body(plain: Connection) -> None:
        assert "slow did not answer within 0.3 s" in await fails(plain.call("slow", {"seconds": 50}))
        assert plain.state is State.CONNECTED

    run(tmp_path, stdio("plain", timeout=0.3), body)


def test_the_picture_of_the_test_server_is_one() -> None:
    assert content.image_type(PNG) == "image/png"
    assert content.image_type(b"<svg/>") is None


def test_a_server_that_wants_credentials_says_so_and_what_to_do(tmp_path: Path) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    async def body(web: Connection) -> None:
        assert "(HTTP 401): it wants credentials; give them in `headers`" in str(web.problem)

    with HTTPServer(("127.0.0.1", 0), Refuses) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/mcp"
        run(tmp_path, ServerConfig(name="web", kind="http", scope=Scope.USER, source="x", url=url), body)
        http.shutdown()


def test_a_server_that_still_starts_is_ended_at_once_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    marker = f"{MARKER}-{tmp_path.name}"

    async def main() -> None:
        around = Surroundings(cwd=tmp_path, environment=tool_environment(), marker=marker, logs=tmp_path / "logs")
        servers = Servers(around)
        servers.begin([stdio("hang")])
        while not find_tree(None, None, marker):
            await asyncio.sleep(0.01)
        await servers.close()
        assert find_tree(None, None, marker) == []
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    asyncio.run(main())
