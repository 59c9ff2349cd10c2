"""One MCP server while a run uses it: started or reached, asked what it offers, called, found dead, started again.

Rules of this file:

1. The SDK's client is entered and left by one task of its own (`_hold`), for its transports belong to the task that opened
   them. Calls come from any task.
2. Nothing here raises for what a server does: a start that failed is a sentence in `problem`, a call that failed a
   `ToolError`. A server that hangs costs its time limit, never more.
3. A server that is gone is started again with the next call, after a growing pause when that failed. A call that was under
   way when it went is not made again: whether it had effects is unknown. One that the server cannot have seen is.
4. A process carries the marks that every process of ours carries, and is proven gone when the connection is closed.
5. Everything a server says is hostile: names, schemas and descriptions are checked before a model sees them. What it wants
   of us (sampling, questions to a person, our directories) is not announced as possible, and refused when asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from worker_agent.config import Clock, McpSettings, SystemClock
from worker_agent.errors import ToolError
from worker_agent.mcp import listing, program
from worker_agent.mcp.config import ServerConfig, expanded
from worker_agent.mcp.listing import Offer
from worker_agent.mcp.program import ToProgram
from worker_agent.process import SHELL_MARKER, TASK_MARKER, Output, end_tree
from worker_agent.process_tree import find_tree, marked

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp_types import CallToolResult, ReadResourceResult, Resource

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between tries to start a server that does not start
KEPT_ERRORS = 4_000  # characters of what a server wrote to its standard error, kept for a message
LOG_CAP = 5_000_000  # bytes of the same on disk
MAX_RESOURCES = 1_000
LAST_WORDS = 300  # characters of it in a message
CLOSE_GRACE = 2.0  # seconds between TERM and KILL for what a server left behind
START_GRACE = 0.5  # the same for one that did not start
HTTP_TIMEOUT, HTTP_SILENCE = 30.0, 300.0  # seconds: to connect and send; without a byte of an answer
WANTS_CREDENTIALS = {
    status: f" (HTTP {status}): it wants credentials; give them in `headers`, signing in by OAuth is not supported"
    for status in (401, 403)
}
NAME, VERSION = "coordinator", "1"


class State(StrEnum):
    """How a server stands; the words are those of the stream's `mcp_servers`."""

    PENDING = "pending"
    CONNECTED = "connected"
    FAILED = "failed"
    CLOSED = "closed"


def _nothing(pid: int, started: float) -> None:
    pass


class Surroundings(Struct, frozen=True, kw_only=True):
    """What all servers of a run have in common. `environment` is what a server's process gets beside its own variables;
    `marker` names the run in it; `logs` is where standard error goes; `on_process` hears of every process begun (pid,
    start time); `variable` gives a variable of our own environment, credentials included, for `${VAR}`; `program` reaches
    the servers that live in the program which began the run."""

    cwd: Path
    environment: Mapping[str, str]
    marker: str
    logs: Path
    settings: McpSettings = field(default_factory=McpSettings)
    clock: Clock = field(default_factory=SystemClock)
    variable: Callable[[str], str] = field(default=lambda name: "")
    redact: Callable[[str], str] = field(default=lambda text: text)
    on_process: Callable[[int, float], None] = _nothing
    program: ToProgram | None = None


class Connection:
    """To one server. `on_change` is called when what it offers has changed."""

    def __init__(
        self, server: ServerConfig, around: Surroundings, on_change: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        self.server = server
        self.state = State.PENDING
        self.offer = Offer()
        self.problem: str | None = None
        self._around = around
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._side_work: set[asyncio.Task[None]] = set()
        self._stderr: Output | None = None
        self._status = 0  # of the last HTTP answer
        self._shell = ""  # names the process in the marks that it bears
        self._pause = 0.0
        self._not_before = 0.0

    @property
    def log(self) -> Path:
        """Where the server's standard error is kept."""
        return self._around.logs / f"{listing.file_name(self.server.name)}.log"

    # ── starting and ending ────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Connect if it is not connected; `problem` says why that failed."""
        async with self._lock:
            if self._client is None and self.state is not State.CLOSED:
                await self._connect()

    async def close(self) -> None:
        """End the connection and the server's process, for good. Never raises but a cancellation."""
        self.state = State.CLOSED
        async with self._lock:
            await self._end()

    async def _connect(self) -> None:
        server, missing = expanded(self.server, self._around.variable)
        opened: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._holder = asyncio.create_task(self._hold(server, opened), name=f"mcp {server.name}")
        limit = self._around.settings.start_timeout
        try:
            async with asyncio.timeout(limit):
                self.offer = await asyncio.shield(opened)
        except TimeoutError:
            await self._failed(f"it did not answer within {limit:g} s")
        except asyncio.CancelledError:
            await self._end_at_once()
            raise
        except BaseException as error:
            hint = f"; not set: {', '.join(missing)}" if missing else ""
            await self._failed(f"{in_words(error)}{WANTS_CREDENTIALS.get(self._status, '')}{hint}")
        else:
            self.problem, self._pause = None, 0.0
            if self.state is not State.CLOSED:
                self.state = State.CONNECTED

    async def _failed(self, why: str) -> None:
        await self._end_at_once()
        self.problem = self._around.redact(f"{why}{self._last_words()}")
        self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        self._not_before = self._around.clock.monotonic() + self._pause
        if self.state is not State.CLOSED:
            self.state = State.FAILED

    async def _end_at_once(self) -> None:
        """What did not start is not asked to leave politely."""
        if self.server.kind == "stdio":
            await end_tree(None, None, f"{SHELL_MARKER}={self._shell}", START_GRACE)
        await self._end()

    def _last_words(self) -> str:
        lines = self._stderr.text().strip().splitlines() if self._stderr else []
        return f"; it said: {lines[-1].strip()[:LAST_WORDS]}" if lines else ""

    async def _end(self) -> None:
        """Let the holder leave its transport; what does not leave is cancelled."""
        self._client = None
        self._closing.set()
        holder, self._holder = self._holder, None
        if holder is not None:
            await asyncio.wait({holder}, timeout=2 * CLOSE_GRACE + 1)
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)

    async def _hold(self, server: ServerConfig, opened: asyncio.Future[Offer]) -> None:
        """Open the transport and the client, and keep both open until the connection is to end."""
        closing = self._closing
        self._shell = shell = secrets.token_hex(8)
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._opened(server, shell, stack, closing))
                offer = await listing.read(server.name, client)
                stack.callback(self._cancel_side_work)
                self._follow_changes(client)
                self._client = client
                if not opened.done():
                    opened.set_result(offer)
                await closing.wait()
                self._client = None
                if self._holder is asyncio.current_task():  # nobody wanted it to end
                    self.state, self.problem = State.FAILED, "it ended by itself"
        except Exception as error:
            if not opened.done():
                opened.set_exception(error)
        except BaseExceptionGroup as error:  # with a cancellation in it
            if not opened.done():
                opened.set_exception(ConnectionError(in_words(error)))
        finally:
            if not opened.done():
                opened.set_exception(ConnectionError("it was closed while it started"))
            opened.exception()  # seen, also when nobody waits any more
            if self._closing is closing:
                self._client = None
            if server.kind == "stdio":
                await asyncio.shield(end_tree(None, None, f"{SHELL_MARKER}={shell}", CLOSE_GRACE))
            if self._stderr is not None:
                await self._stderr.drain(0.1)
                self._stderr.close_unless_held()

    async def _opened(self, server: ServerConfig, shell: str, stack: AsyncExitStack, closing: asyncio.Event) -> Client:
        from mcp import Client
        from mcp_types import Implementation

        transport = await self._transport(server, shell, stack)
        return Client(
            _Watched(transport, closing.set),
            message_handler=self._heard,
            client_info=Implementation(name=NAME, version=VERSION),
            cache=None,
        )

    async def _transport(self, server: ServerConfig, shell: str, stack: AsyncExitStack) -> Any:
        if server.kind == "stdio":
            return self._process(server, shell, stack)
        if server.kind == "sdk":
            return program.transport(server.name, self._around.program)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        if server.kind == "sse":
            from mcp.client.sse import sse_client

            return sse_client(server.url, headers=dict(server.headers))

        async def note(response: Any) -> None:
            self._status = response.status_code

        http = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers=dict(server.headers),
                timeout=httpx2.Timeout(HTTP_TIMEOUT, read=HTTP_SILENCE),
                event_hooks={"response": [note]},
            )
        )
        return streamable_http_client(server.url, http_client=http)

    def _process(self, server: ServerConfig, shell: str, stack: AsyncExitStack) -> Any:
        """The SDK's transport over a process that bears our marks."""
        from mcp import StdioServerParameters, stdio_client

        around = self._around
        if server.data is not None:
            Path(server.data).mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = around.cwd / Path(server.cwd).expanduser() if server.cwd else around.cwd
        environment = {**around.environment, **server.env, TASK_MARKER: around.marker, SHELL_MARKER: shell}
        command = _program(server.command, directory)
        program, *args = marked([command, *server.args], shell=shell, task=around.marker)
        self._stderr = output = Output(self.log, KEPT_ERRORS, LOG_CAP, around.redact, True, None)
        errors = stack.enter_context(os.fdopen(output.open(), "w"))
        transport = stdio_client(
            StdioServerParameters(command=program, args=args, env=environment, cwd=directory, encoding_error_handler="replace"),
            errlog=errors,
        )
        return _Begun(transport, lambda: self._began(shell))

    async def _began(self, shell: str) -> None:
        """Tell which process it is: another process of ours may have to end it."""
        for root in (await asyncio.to_thread(find_tree, None, None, f"{SHELL_MARKER}={shell}"))[:1]:
            self._around.on_process(root.pid, root.start_time)

    # ── what it offers ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _heard(self, message: Any) -> None:
        """A notification of a server of the older kind."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._beside(self._read_again())

    def _follow_changes(self, client: Client) -> None:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        changes = client.server_capabilities.tools
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS and changes is not None and changes.list_changed:
            self._beside(self._listen(client))

    async def _listen(self, client: Client) -> None:
        """The same from a server of the newer kind, which is asked to tell."""
        with contextlib.suppress(Exception):  # it need not be able to; then its list stays as it was read
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    await self._read_again()

    async def _read_again(self) -> None:
        client = self._client
        if client is None:
            return
        with contextlib.suppress(Exception):  # what it offered before stands
            async with asyncio.timeout(self._around.settings.start_timeout):
                offer = await listing.read(self.server.name, client)
            if offer != self.offer:
                self.offer = offer
                self._on_change(self)

    def _beside(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._side_work.add(task)
        task.add_done_callback(self._side_work.discard)

    def _cancel_side_work(self) -> None:
        for task in self._side_work:
            task.cancel()

    # ── calls ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self, tool: str, arguments: Mapping[str, Any], say: Callable[[str], None] = lambda text: None
    ) -> CallToolResult:
        """What the tool answers. Raises `ToolError`."""
        limit = self.server.timeout or self._around.settings.call_timeout

        async def told(progress: float, total: float | None, message: str | None) -> None:
            say(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        answer: CallToolResult = await self._asked(
            tool,
            lambda client: client.call_tool(tool, dict(arguments), read_timeout_seconds=limit, progress_callback=told),
            limit,
        )
        return answer

    async def resources(self) -> Sequence[Resource]:
        """What it offers to be read, at most `MAX_RESOURCES`. Raises `ToolError`."""
        found: list[Resource] = []
        cursor = None
        while len(found) < MAX_RESOURCES:
            page = await self._within(lambda client: client.list_resources(cursor=cursor), "the list of resources")  # noqa: B023
            found += page.resources
            cursor = page.next_cursor
            if cursor is None or not page.resources:
                break
        return found[:MAX_RESOURCES]

    async def read(self, uri: str) -> ReadResourceResult:
        """One of its resources. Raises `ToolError`."""
        answer: ReadResourceResult = await self._within(lambda client: client.read_resource(uri), uri)
        return answer

    async def _within(self, ask: Callable[[Client], Awaitable[Any]], what: str) -> Any:
        limit = self.server.timeout or self._around.settings.call_timeout
        try:
            async with asyncio.timeout(limit):
                return await self._asked(what, ask, limit)
        except TimeoutError:
            raise self._error(f"{what} did not answer within {limit:g} s") from None

    async def _asked(self, what: str, ask: Callable[[Client], Awaitable[Any]], limit: float) -> Any:
        """What a question to the server brings; once more where the server cannot have seen it."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        for is_last in (False, True):
            client = await self._live()
            try:
                return await ask(client)
            except MCPError as error:
                if error.code == REQUEST_TIMEOUT:
                    text = f"{what} did not answer within {limit:g} s; whether it had effects is unknown"
                    raise self._error(text) from None
                unseen = error.message == "Session terminated"  # the SDK's words for: this session is not known here
                if error.code != CONNECTION_CLOSED and not unseen:
                    raise self._error(error.message) from None
            except Exception as error:  # an answer that is none, a transport that broke
                raise self._error(in_words(error)) from None
            await self._lost(client)
            if not unseen or is_last:
                text = f"it ended while {what} ran; whether that had effects is unknown. It is started again with the next call"
                raise self._error(f"{text}{self._last_words()}")
        raise AssertionError("the last try returns or raises")

    async def _live(self) -> Client:
        """The client of a server that is there; started again if it went. Raises `ToolError`."""
        if self._client is not None and not self._closing.is_set():
            return self._client
        if self.state is State.CLOSED:
            raise self._error("it was closed: the run is over")
        if (left := self._not_before - self._around.clock.monotonic()) > 0:
            raise self._error(f"it is not there: {self.problem}. It is tried again in {left:.0f} s at the earliest")
        await self._lost(self._client)
        await self.start()
        if self._client is None:
            raise self._error(f"it is not there: {self.problem}")
        return self._client

    async def _lost(self, client: Client | None) -> None:
        async with self._lock:
            if self._client is client:  # nobody else has started it again meanwhile
                await self._end()
                if self.state is State.CONNECTED:
                    self.state = State.FAILED

    def _error(self, text: str) -> ToolError:
        return ToolError(self._around.redact(f"MCP server {self.server.name!r}: {text}"))


class _Begun:
    """A transport that tells when it is open."""

    def __init__(self, transport: Any, on_open: Callable[[], Awaitable[None]]) -> None:
        self._transport, self._on_open = transport, on_open

    async def __aenter__(self) -> TransportStreams:
        streams: TransportStreams = await self._transport.__aenter__()
        await self._on_open()
        return streams

    async def __aexit__(self, *error: Any) -> bool | None:
        done: bool | None = await self._transport.__aexit__(*error)
        return done


class _Watched(_Begun):
    """A transport of which is told when the other side has gone."""

    def __init__(self, transport: Any, on_end: Callable[[], None]) -> None:
        self._transport, self._on_end = transport, on_end

    async def __aenter__(self) -> TransportStreams:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._on_end), write


class _WatchedStream:
    """A stream of messages that says when it has ended."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream, self._on_end = stream, on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def _program(command: str, directory: Path) -> str:
    """A program named by a path relative to the server's directory is looked for there."""
    return str(directory / Path(command).expanduser()) if "/" in command else command


def in_words(error: BaseException) -> str:
    """One line on what went wrong, the innermost of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no program or directory {error.filename!r}" if error.filename else "its program is not there"
    if isinstance(error, PermissionError):
        return f"{error.filename!r} must not be run"
    lines = str(getattr(error, "message", "") or error).strip().splitlines()
    if type(error).__name__ == "ValidationError":
        return f"its answer does not fit the protocol: {' '.join(' '.join(lines[:3]).split())[:300]}"
    first = lines[0] if lines else ""
    if type(error).__module__.startswith("mcp"):
        return first or type(error).__name__
    return f"{type(error).__name__}: {first[:500]}" if first else type(error).__name__


__all__ = ["Connection", "State", "Surroundings", "in_words"]
