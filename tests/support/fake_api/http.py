"""HTTP/1.1 for the fake: one connection, one call at a time, keep-alive, and noticing that a client has left.

A protocol rather than streams, because `connection_lost` tells of an abort while an answer is still under way, and
because a complete answer goes out in one write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

MAX_HEADER = 1 << 20
_REASONS = {s.value: s.phrase for s in HTTPStatus} | {529: "Overloaded"}
_LAST_CHUNK = b"0\r\n\r\n"


class Call:
    """One call and the writing side of its answer. `abandoned` runs when the client leaves before `finish`."""

    def __init__(self, connection: Connection, method: str, target: str, headers: dict[str, str]) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.raw = b""
        self.too_large = False
        self.time = time.monotonic()
        self.abandoned: Callable[[], None] = lambda: None
        self.finished = False
        self.task: asyncio.Task[None] | None = None

    def respond(self, status: int, headers: Mapping[str, str], body: bytes, content_type: str) -> None:
        """A whole response in one write."""
        fields = {"content-type": content_type, "content-length": str(len(body)), **headers}
        self._write(_head(status, fields) + body)
        self.finish()

    def stream(self, headers: Mapping[str, str]) -> bytes:
        """The head of a chunked event stream, to be written with its first bytes."""
        fields = {"content-type": "text/event-stream; charset=utf-8", **headers, "transfer-encoding": "chunked"}
        return _head(200, fields)

    def write(self, data: bytes) -> None:
        self._write(data)

    def finish(self) -> None:
        self.finished = True
        self._connection.next(close=self.headers.get("connection", "").lower() == "close")

    def hang_up(self) -> None:
        """Close in the middle: what was written is still sent."""
        self.finished = True
        self._connection.close()

    def _write(self, data: bytes) -> None:
        self._connection.transport.write(data)


def chunk(data: bytes, *, last: bool = False) -> bytes:
    body = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return body + _LAST_CHUNK if last else body


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n{lines}\r\n".encode()


class Connection(asyncio.Protocol):
    """Reads calls and hands each to `serve`, the next only when the one before is finished."""

    transport: asyncio.Transport

    def __init__(self, serve: Callable[[Call], None], living: set[Connection], max_body: int) -> None:
        self._serve = serve
        self._living = living
        self._max_body = max_body
        self._buffer = bytearray()
        self._call: Call | None = None  # being answered
        self._reading: Call | None = None  # its body is not complete
        self._left = 0  # bytes of the body still to come; -1 for chunked
        self._pumping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 26)
        self._living.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._living.discard(self)
        call, self._call = self._call, None
        if call is not None and not call.finished:
            call.finished = True
            call.abandoned()
            if call.task is not None:
                call.task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._pump()

    def next(self, *, close: bool) -> None:
        self._call = None
        if close:
            self.transport.close()
        else:
            self._pump()

    def close(self) -> None:
        self._call = None
        self.transport.close()

    def abort(self) -> None:
        """The server goes: whatever is under way ends here, and that is no abort of the client's."""
        self._call = None
        self.transport.abort()

    def _pump(self) -> None:
        if self._pumping:  # an answer given at once comes back here: the loop below goes on
            return
        self._pumping = True
        try:
            while self._call is None and not self.transport.is_closing() and self._step():
                pass
        finally:
            self._pumping = False

    def _step(self) -> bool:
        """One step on: a head read, or a body complete and served. False when more bytes are needed."""
        if self._reading is None:
            return self._read_head()
        body = self._read_body(self._reading)
        if body is None:
            return False
        call, self._reading = self._reading, None
        call.raw = body
        self._call = call
        self._serve(call)
        return True

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEADER:
                self.transport.abort()
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        method, target, _ = lines[0].split(" ", 2)
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._reading = Call(self, method, target, headers)
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = -1 if chunked else int(headers.get("content-length", "0"))
        self._reading.too_large = self._left > self._max_body
        if headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_body(self, call: Call) -> bytes | None:
        if self._left < 0:
            return self._read_chunks(call)
        if call.too_large:  # read to its end, not kept: the client hears the answer
            taken = min(self._left, len(self._buffer))
            del self._buffer[:taken]
            self._left -= taken
            return None if self._left else b""
        if len(self._buffer) < self._left:
            return None
        body = bytes(memoryview(self._buffer)[: self._left])
        del self._buffer[: self._left]
        return body

    def _read_chunks(self, call: Call) -> bytes | None:
        at, pieces = 0, []
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            size = int(self._buffer[at:line_end].split(b";")[0], 16)
            at = line_end + 2 + size + 2
            if len(self._buffer) < at:
                return None
            if size == 0:
                break
            pieces.append(bytes(self._buffer[line_end + 2 : line_end + 2 + size]))
        del self._buffer[:at]
        body = b"".join(pieces)
        call.too_large = len(body) > self._max_body
        return body
