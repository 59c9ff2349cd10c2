"""The bench's own Messages API, a process of its own: answers `fanout` as fast as a core allows, and notes when what came.

    python -m bench.server WORKERS TURNS DELAY FILE [BYTES]     (prints its port, then serves until it is ended)

No check of anything: what is measured is the client. A request with the tool `Agent` is the coordinator's, which starts
WORKERS workers in one answer and concludes when all have reported; any other is a worker's, which makes TURNS turns of two
parallel reads of FILE and reports. BYTES is the least a report holds. `GET /figures` gives what was seen, as JSON: how many
requests, and the times (monotonic seconds, those of this machine) of the first request and of the last answer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_DONE = re.compile(rb"<task-id>([^<]+)</task-id>")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nrequest-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: dict[str, object]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def answer(number: int, text: str, calls: list[tuple[str, dict[str, object]]]) -> bytes:
    """A whole answer: text, then calls."""
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
    events.append(event({"type": "message_delta", "delta": delta_, "usage": {"output_tokens": 40}}))
    events.append(event({"type": "message_stop"}))
    body = b"".join(events)
    return b"%b%x\r\n%b\r\n0\r\n\r\n" % (_HEAD, len(body), body)


class Script:
    def __init__(self, workers: int, turns: int, path: str, size: int) -> None:
        self.workers, self.turns, self.path, self.size = workers, turns, path, size
        self.requests = 0
        self.first: float | None = None
        self.last = 0.0
        self.bodies = 0

    def answer(self, body: bytes) -> bytes:
        self.requests += 1
        turns = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
        if b'"name":"Agent"' in body or b'"name": "Agent"' in body:
            if not turns:
                spawned = [("Agent", {"description": f"part {n}", "prompt": f"worker {n}"}) for n in range(self.workers)]
                return answer(self.requests, "Starting.", spawned)
            done = len(set(_DONE.findall(body))) >= self.workers
            return answer(self.requests, "All have reported." if done else "waiting", [])
        if turns >= self.turns:
            return answer(self.requests, "Report: done. " + "x" * self.size, [])
        read = ("Read", {"file_path": self.path})
        return answer(self.requests, f"Reading, turn {turns + 1}.", [read, read])


class Connection(asyncio.Protocol):
    def __init__(self, script: Script, delay: float) -> None:
        self.script, self.delay = script, delay
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
        if self.head.startswith(b"GET /figures"):
            script = self.script
            figures = json.dumps({"requests": script.requests, "first": script.first, "last": script.last}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(figures), figures))
            return
        if self.script.first is None:
            self.script.first = time.monotonic()
        asyncio.get_running_loop().call_later(self.delay, self.send, self.script.answer(body))

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)
            self.script.last = time.monotonic()


async def main(workers: int, turns: int, delay: float, path: str, size: int = 0) -> None:
    script = Script(workers, turns, path, size)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(script, delay), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.disable()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:])))
