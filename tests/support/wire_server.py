"""A server that knows no HTTP: it keeps what comes in, byte for byte, and answers as it is told. For what stands on the wire.

    with WireServer([answer(), HANG_UP, redirect("/other")]) as server: …

Each answer is for one request, in the order they come in, whatever connection they come on. The last one is used again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

HANG_UP = b""  # the connection is closed without a byte
EVENTS = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"x","usage":{"input_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"hi"}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def answer(*headers: str, status: str = "200 OK", body: bytes = EVENTS) -> bytes:
    lines = (f"HTTP/1.1 {status}", "content-type: text/event-stream", f"content-length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def redirect(where: str, status: str = "307 Temporary Redirect") -> bytes:
    return answer(f"location: {where}", status=status, body=b"")


@dataclass(frozen=True, slots=True)
class Arrived:
    """One request. `connection` counts from 0."""

    connection: int
    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n")[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = (line.decode("latin-1").partition(":") for line in self.head.split(b"\r\n")[1:])
        return {name.lower(): value.strip() for name, _, value in lines}


@dataclass(eq=False)
class WireServer:
    answers: Sequence[bytes] = field(default_factory=lambda: [answer()])
    arrived: list[Arrived] = field(default_factory=list)

    def __enter__(self) -> WireServer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def hang_up(self) -> None:
        """Close what is open, as a server does with idle connections."""
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()
            number += 1

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, connection.makefile("rb") as stream:
            while (request := _read(stream, number)) is not None:
                with self._lock:
                    reply = self.answers[min(len(self.arrived), len(self.answers) - 1)]
                    self.arrived.append(request)
                if reply == HANG_UP:
                    return
                connection.sendall(reply)


def _read(stream: object, number: int) -> Arrived | None:
    head = b""
    try:
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()  # type: ignore[attr-defined]
            if not line:
                return None
            head += line
        request = Arrived(number, head[:-4], b"")
        if "transfer-encoding" in request.headers:
            return Arrived(number, head[:-4], _chunks(stream))
        size = int(request.headers.get("content-length", "0"))
        return Arrived(number, head[:-4], stream.read(size))  # type: ignore[attr-defined]
    except OSError:
        return None


def _chunks(stream: object) -> bytes:
    body = b""
    while size := int(stream.readline().split(b";")[0], 16):  # type: ignore[attr-defined]
        body += stream.read(size + 2)[:-2]  # type: ignore[attr-defined]
    stream.readline()  # type: ignore[attr-defined]
    return body
