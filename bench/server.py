"""The bench's own Messages API, a process of its own: answers `fanout` as fast as a core allows, and notes when what came.

    python -m bench.server WORKERS TURNS DELAY FILE [--split SECONDS] [--parts]     (prints its port, then serves until it is ended)

No check of anything: what is measured is the client. A request with the tool `Agent` is the coordinator's, which starts
WORKERS workers in one answer and concludes when all have reported; any other is a worker's, which makes TURNS turns of two
parallel reads of FILE and reports; with --parts each turn reads another part of it, of 25 lines. With --split an answer that
asks for reads stays open for SECONDS after its last block closed. `GET /figures` gives what was seen, as JSON: how many
requests, and the times (monotonic seconds, those of this machine) of the first request (`first`), of the last answer (`last`), of
the coordinator's requests (`asked`), of the workers' reports (`reported`), of the closed blocks by the call's id (`closed`). After
`GET /watch/PID` each worker's request brings the CPU seconds that process has used until then (`used`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_DONE = re.compile(rb"<task-id>([^<]+)</task-id>")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nrequest-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: dict[str, object]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def answer(number: int, text: str, calls: list[tuple[str, dict[str, object]]]) -> tuple[bytes, bytes]:
    """A whole answer, text, then calls: up to its last closed block, and the rest."""
    usage = {"input_tokens": 25, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
    events = [event({"type": "message_start", "message": message})]
    blocks: list[tuple[dict[str, object], dict[str, object]]] = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": text}),
        *(
            (
                {"type": "tool_use", "id": f"toolu_{number}_{n}", "name": name, "input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(given)},
            )
            for n, (name, given) in enumerate(calls)
        ),
    ]
    for index, (block, delta) in enumerate(blocks):
        events.append(event({"type": "content_block_start", "index": index, "content_block": block}))
        events.append(event({"type": "content_block_delta", "index": index, "delta": delta}))
        events.append(event({"type": "content_block_stop", "index": index}))
    reason = "tool_use" if calls else "end_turn"
    delta_ = {"stop_reason": reason, "stop_sequence": None}
    end = [event({"type": "message_delta", "delta": delta_, "usage": {"output_tokens": 40}}), event({"type": "message_stop"})]
    return b"".join(events), b"".join(end)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Script:
    """What is said, and what was seen."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.workers, self.turns, self.path = options.workers, options.turns, options.path
        self.parts = options.parts
        self.requests = 0
        self.first: float | None = None
        self.last = 0.0
        self.asked: list[float] = []
        self.reported: list[float] = []
        self.closed: dict[str, float] = {}
        self.used: list[float] = []
        self.watched: int | None = None

    def answer(self, body: bytes) -> Answer:
        self.requests += 1
        turns = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
        if b'"name":"Agent"' in body or b'"name": "Agent"' in body:
            self.asked.append(time.monotonic())
            if not turns:
                spawned = [("Agent", {"description": f"part {n}", "prompt": f"worker {n}"}) for n in range(self.workers)]
                return Answer(*answer(self.requests, "Starting.", spawned))
            done = len(set(_DONE.findall(body))) >= self.workers
            return Answer(*answer(self.requests, "All have reported." if done else "waiting", []))
        if self.watched is not None:
            self.used.append(cpu_of(self.watched))
        if turns >= self.turns:
            return Answer(*answer(self.requests, "Report: done.", []), report=True)
        read = ("Read", {"file_path": self.path, **({"offset": 1 + 3 * turns, "limit": 25} if self.parts else {})})
        other = ("Read", {"file_path": self.path, **({"offset": 2 + 3 * turns, "limit": 25} if self.parts else {})})
        calls = (f"toolu_{self.requests}_0", f"toolu_{self.requests}_1")
        return Answer(*answer(self.requests, f"Reading, turn {turns + 1}.", [read, other]), calls=calls)


@dataclass(frozen=True, slots=True)
class Answer:
    blocks: bytes
    end: bytes
    calls: tuple[str, ...] = ()
    report: bool = False


def cpu_of(pid: int) -> float:
    """CPU seconds that the process has used so far, with those of its threads."""
    used = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended just now
            used += int((thread / "schedstat").read_text().split()[0])
    return used / 1e9


class Connection(asyncio.Protocol):
    def __init__(self, script: Script, delay: float, split: float) -> None:
        self.script, self.delay, self.split = script, delay, split
        self.buffer = bytearray()
        self.need = -1
        self.head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            if self.need < 0:
                end = self.buffer.find(b"\r\n\r\n")
                if end < 0:
                    return
                self.head = bytes(self.buffer[:end])
                del self.buffer[: end + 4]
                found = _LENGTH.search(self.head)
                self.need = int(found[1]) if found else 0
            if len(self.buffer) < self.need:
                return
            body = bytes(memoryview(self.buffer)[: self.need])
            del self.buffer[: self.need]
            self.need = -1
            self.serve(body)

    def serve(self, body: bytes) -> None:
        script = self.script
        if self.head.startswith(b"GET /"):
            if self.head.startswith(b"GET /watch/"):
                script.watched = int(self.head.split(b" ")[1].rpartition(b"/")[2])
            names = ("requests", "first", "last", "asked", "reported", "closed", "used")
            figures = json.dumps({name: getattr(script, name) for name in names}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(figures), figures))
            return
        if script.first is None:
            script.first = time.monotonic()
        asyncio.get_running_loop().call_later(self.delay, self.send, script.answer(body))

    def send(self, answer: Answer) -> None:
        now = time.monotonic()
        self.script.closed.update(dict.fromkeys(answer.calls, now))
        if self.split and answer.calls:
            self.write(_HEAD + chunk(answer.blocks))
            asyncio.get_running_loop().call_later(self.split, self.write, chunk(answer.end) + b"0\r\n\r\n")
            return
        self.write(_HEAD + chunk(answer.blocks + answer.end) + b"0\r\n\r\n")
        if answer.report:
            self.script.reported.append(now)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)
            self.script.last = time.monotonic()


async def main(options: argparse.Namespace) -> None:
    script = Script(options)
    loop = asyncio.get_running_loop()
    made = lambda: Connection(script, options.delay, options.split)  # noqa: E731
    server = await loop.create_server(made, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.disable()
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", type=int)
    parser.add_argument("turns", type=int)
    parser.add_argument("delay", type=float)
    parser.add_argument("path")
    parser.add_argument("--split", type=float, default=0.0)
    parser.add_argument("--parts", action="store_true")
    asyncio.run(main(parser.parse_args()))
