"""The way to a server, which breaks where a test says: before a word is said, in the handshake, before a statement arrives, or
when it was done and only its answer is lost.

    with Line(server().port) as line:
        database = Database.open(line.url)
        line.cut(b"COMMIT", answered=False)
        database.write(…)

What a client sends is matched as the bytes of the protocol: a statement's text stands in it when it is sent for the first time.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

ACCEPTED = b""  # for `cut`: as soon as somebody connects
HANDSHAKE = b"user\0"  # when it says who it is


@dataclass
class _Cut:
    at: bytes
    arrives: bool
    left: int


class Line:
    """Open from `with` to its end. Threads of its own; every break is of both directions at once."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._cuts: list[_Cut] = []
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def cut(self, at: bytes, *, arrives: bool = False, times: int = 1) -> None:
        """Break the connection of who sends `at`; `arrives`: the server gets it and answers, but nobody hears that."""
        with self._lock:
            self._cuts.append(_Cut(at, arrives, times))

    @property
    def left(self) -> int:
        """How many breaks have not happened yet."""
        with self._lock:
            return sum(cut.left for cut in self._cuts)

    def break_all(self) -> None:
        """Every connection that is open now."""
        with self._lock:
            for one in self._open:
                _end(one)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        _end(self._listening)
        self.break_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # it is over
                self._listening.close()
                return
            if self._due(ACCEPTED, exact=True) is not None:
                client.close()
                continue
            upstream = socket.create_connection(self._to)
            with self._lock:
                self._open += [client, upstream]
            answering = threading.Event()  # set: what the server says is passed on
            answering.set()
            threading.Thread(target=self._carry, args=(client, upstream, answering), daemon=True).start()

    def _carry(self, client: socket.socket, upstream: socket.socket, answering: threading.Event) -> None:
        """Closed by one thread, when none can be about to read: its number may be another connection's at once."""
        back = threading.Thread(target=self._back, args=(client, upstream, answering), daemon=True)
        back.start()
        self._forth(client, upstream, answering)
        back.join()
        with self._lock:
            self._open = [one for one in self._open if one not in (client, upstream)]
        client.close()
        upstream.close()

    def _due(self, sent: bytes, *, exact: bool = False) -> _Cut | None:
        with self._lock:
            for cut in self._cuts:
                if cut.left and (sent == cut.at if exact else cut.at and cut.at in sent):
                    cut.left -= 1
                    return cut
        return None

    def _forth(self, client: socket.socket, upstream: socket.socket, answering: threading.Event) -> None:
        with suppress(OSError):
            while sent := client.recv(1 << 16):
                cut = self._due(sent)
                if cut is not None and cut.arrives:
                    answering.clear()  # `_back` ends both with the answer
                elif cut is not None:
                    break
                upstream.sendall(sent)
        _end(client)
        _end(upstream)

    def _back(self, client: socket.socket, upstream: socket.socket, answering: threading.Event) -> None:
        with suppress(OSError):
            while said := upstream.recv(1 << 16):
                if not answering.is_set():
                    break
                client.sendall(said)
        _end(client)
        _end(upstream)


def _end(one: socket.socket) -> None:
    with suppress(OSError):  # the other side has gone already
        one.shutdown(socket.SHUT_RDWR)
