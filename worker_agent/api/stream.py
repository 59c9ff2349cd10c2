"""Wire events → `ModelEvent`s: blocks put together, usage summed up, silence noticed.

Rules of this file:

1. `EventSplitter` and `Folder` are plain machines without I/O; `fold` only waits, `Watchdog` watches.
2. Lenient in what is read: `data.type` decides where `event:` is missing, null usage is 0, unknown events, deltas and
   stop reasons pass harmlessly, unknown blocks are kept verbatim to be sent back.
3. Strict in what may run: the JSON of a tool's input is parsed as a whole when its block closes, and anything but an
   object is invalid, said in words. The SDK's accumulator takes cut JSON as whole; this is why it is not used.
4. An answer is whole after `message_stop` with a stop reason, and not before: all else is `STREAM_BROKEN`. Text counts
   in a whole answer, also where its block was never closed, and so does thinking; a call only where the stop reason says that
   the answer ends with calls. A `message_start` may carry the whole answer, and so may a
   body that is one JSON message: its content counts where no block of its own came.
5. Pings prove that the connection lives, not that the model does: they do not reset the watchdog; thinking does.

The splitter works on whole chunks of bytes, about three times cheaper for a turn than decoding line by line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import orjson
from msgspec import Struct, field

from worker_agent.api import errors_map
from worker_agent.api.client import BlockClosed, Finished, InputPiece, ModelEvent, Started, TextPiece, ThinkingPiece
from worker_agent.config import Clock
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import Usage, clean, new_message_id

T = TypeVar("T")
WireEvent = Mapping[str, Any]

_CONTENT_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }
)
WHOLE_LIMIT = 32_000_000  # bytes of a body without events that are kept: it may be one whole message
_WITH_INPUT = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


# --- bytes → wire events ---------------------------------------------------------------------------------------------


class EventSplitter:
    """Server-sent events out of chunks of bytes, cut anywhere. `feed` gives (event name or "", data)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterable[tuple[str, bytes]]:
        data = self._rest + chunk if self._rest else chunk
        if b"\r" in data:
            data = self._unify(data)
        *events, self._rest = data.split(b"\n\n")
        return [parsed for event in events if (parsed := _parse_event(event))]

    def flush(self) -> Iterable[tuple[str, bytes]]:
        """What the end of the body left without its blank line."""
        rest, self._rest = self._rest, b""
        parsed = _parse_event(rest)
        return [parsed] if parsed else []

    @staticmethod
    def _unify(data: bytes) -> bytes:
        """Line ends as `\\n`; a `\\r` at the very end stays, its `\\n` may be in the next chunk."""
        tail = b"\r" if data.endswith(b"\r") else b""
        body = data[:-1] if tail else data
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail


def _parse_event(event: bytes) -> tuple[str, bytes] | None:
    name, data = "", []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
    return (name, data[0] if len(data) == 1 else b"\n".join(data)) if data else None


def decode_event(name: str, data: bytes) -> WireEvent | None:
    """One wire event as a mapping with its `type`; None for what is no event (`[DONE]`, an empty line).

    Data that is not JSON becomes `{"type": "error", "error": text}` under an error event, else `ValueError`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _second_look(name, data)
    if not isinstance(value, dict):
        if value is None:
            return None
        value = {"type": name, "error": value}
    if name == "error":
        return value if value.get("type") == "error" else {"type": "error", "error": value.get("error", value)}
    if not isinstance(value.get("type"), str):
        value["type"] = "error" if "error" in value else name
    return value


def _second_look(name: str, data: bytes) -> Any:
    """Half a surrogate pair in a delta is refused by the strict parser; joined with the next one it may be whole."""
    if data.strip() in (b"", b"[DONE]"):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        if name == "error":
            return {"type": "error", "error": data.decode("utf-8", "replace")}
        raise ValueError("an event of the stream is not JSON") from None


# --- wire events → model events --------------------------------------------------------------------------------------


class _OpenBlock(Struct):
    """A block that is being written. `start` is what `content_block_start` gave, in the order of its keys."""

    start: dict[str, Any]
    text: list[str] = field(default_factory=list)
    json: list[str] = field(default_factory=list)
    updates: dict[str, Any] = field(default_factory=dict)


class Folder:
    """The machine: `feed` takes one wire event and gives the model events it completes.

    `finished` turns true with `message_stop`; `end()` says that no more events will come."""

    def __init__(
        self,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        now: Callable[[], float] = lambda: 0.0,
    ):
        self._request_id = request_id
        self._headers = headers or {}
        self._now = now
        self._open: dict[int, _OpenBlock] = {}
        self._carried: Mapping[str, Any] = {}  # the message of `message_start`, until a block of its own comes
        self._any_block = False
        self._seen_ids: set[str] = set()
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None
        self._stop_details: Mapping[str, Any] | None = None
        self.started = False
        self.finished = False

    def feed(self, event: WireEvent) -> list[ModelEvent]:
        """Raises `ModelError` for an error event. Nothing after `message_stop` counts."""
        handler = None if self.finished else _HANDLERS.get(event["type"])
        return handler(self, event) if handler else []

    def end(self) -> None:
        """Raises `STREAM_BROKEN` unless the answer is whole."""
        if not self.finished:
            self._broken("the stream ended without message_stop")

    def _broken(self, why: str) -> NoReturn:
        raise ModelError(ErrorKind.STREAM_BROKEN, f"The answer was cut off: {why}", status=200, request_id=self._request_id)

    def _error(self, event: WireEvent) -> NoReturn:
        raise errors_map.from_event(event, self._headers, self._now())

    def _message_start(self, event: WireEvent) -> list[ModelEvent]:
        message = _mapping(event.get("message"))
        self._take_usage(message.get("usage"))
        self._carried = message
        return self._begin(message)

    def _begin(self, message: Mapping[str, Any]) -> list[ModelEvent]:
        if self.started:
            return []
        self.started = True
        id = message.get("id")
        model = message.get("model")
        return [
            Started(
                id if isinstance(id, str) and id else f"msg_local_{new_message_id()}",
                model if isinstance(model, str) else "",
                usage_of(self._usage),
                self._request_id,
            )
        ]

    def _block_start(self, event: WireEvent) -> list[ModelEvent]:
        events = self._begin({})
        block = event.get("content_block")
        if isinstance(block, dict) and isinstance(block.get("type"), str):
            self._any_block = True
            self._open[_index(event)] = opened = _OpenBlock(block)
            for name, piece in (("text", TextPiece), ("thinking", ThinkingPiece)):
                if block["type"] == name and isinstance(block.get(name), str) and block[name]:
                    opened.text.append(block[name])
                    events.append(piece(_index(event), clean(block[name])))
        return events

    def _block_delta(self, event: WireEvent) -> list[ModelEvent]:
        events = self._begin({})
        delta, index = _mapping(event.get("delta")), _index(event)
        kind = delta.get("type")
        if index not in self._open and kind == "text_delta":
            self._any_block = True
            self._open[index] = _OpenBlock({"type": "text", "text": ""})
        block = self._open.get(index)
        if block is None:
            return events
        if kind == "text_delta" and (text := _text(delta, "text")):
            block.text.append(text)
            events.append(TextPiece(index, clean(text)))
        elif kind == "thinking_delta" and (text := _text(delta, "thinking")):
            block.text.append(text)
            events.append(ThinkingPiece(index, clean(text)))
        elif kind == "input_json_delta":
            block.json.append(_text(delta, "partial_json"))
            if block.json[-1]:
                events.append(InputPiece(index, len(block.json[-1])))
        else:
            _other_delta(block, kind, delta)
        return events

    def _block_stop(self, event: WireEvent) -> list[ModelEvent]:
        index = _index(event)
        opened = self._open.pop(index, None)
        if opened is None:
            return []
        block, invalid = self._close(opened)
        if block["type"] == "text" and not block["text"]:
            return []
        return [BlockClosed(index, block, invalid)]

    def _close(self, opened: _OpenBlock) -> tuple[dict[str, Any], str | None]:
        block, invalid = {**opened.start, **opened.updates}, None
        kind = block["type"]
        if kind in ("text", "thinking"):
            block[kind] = clean("".join(opened.text))
        elif kind in _WITH_INPUT:
            block["input"], invalid = _input_of(opened)
            if kind == "tool_use":
                self._give_id(block)
        return block, invalid if kind == "tool_use" else None

    def _give_id(self, block: dict[str, Any]) -> None:
        """Compatible servers leave ids out or repeat them; a result must find its one call."""
        id = block.get("id")
        if not isinstance(id, str) or not id or id in self._seen_ids:
            block["id"] = id = f"toolu_{new_message_id()}"
        self._seen_ids.add(id)

    def _message_delta(self, event: WireEvent) -> list[ModelEvent]:
        events = self._begin({})
        self._take_usage(event.get("usage"))
        delta = _mapping(event.get("delta"))
        if isinstance(delta.get("stop_reason"), str):
            self._stop_reason = delta["stop_reason"]
        if isinstance(delta.get("stop_details"), dict):
            self._stop_details = delta["stop_details"]
        return events

    def _message_stop(self, event: WireEvent) -> list[ModelEvent]:
        if not self.started:
            self._broken("it holds no message")
        reason = self._stop_reason or _text(self._carried, "stop_reason")
        if not reason:
            self._broken("it gave no stop reason")
        self.finished = True
        left = sorted(self._open.items())
        closed = [done for index, opened in left for done in self._close_late(index, opened, reason)]
        taken = {done.index for done in closed}
        cut = [self._close(opened)[0] for index, opened in left if index not in taken and opened.start["type"] != "text"]
        return [
            *(closed if self._any_block else self._unpack()),
            Finished(reason, usage_of(self._usage), cut[-1] if cut else None, self._stop_details),
        ]

    def _close_late(self, index: int, opened: _OpenBlock, reason: str) -> list[BlockClosed]:
        """A block that the server never closed, where the end of the whole answer closes it."""
        kind = opened.start["type"]
        if kind in ("text", "thinking"):
            return [BlockClosed(index, self._close(opened)[0])] if any(opened.text) else []
        if kind != "tool_use" or reason != "tool_use":
            return []
        block, invalid = self._close(opened)
        return [BlockClosed(index, block)] if invalid is None else []

    def _unpack(self) -> list[ModelEvent]:
        """The content that `message_start` carried, as if each block had been streamed."""
        content = self._carried.get("content")
        events: list[ModelEvent] = []
        for index, block in enumerate(content if isinstance(content, list) else ()):
            opened = {"index": index, "content_block": block}
            events += [*self._block_start(opened), *self._block_stop(opened)]
        return events

    def _take_usage(self, usage: Any) -> None:
        """Usage is cumulative: what a later event names overwrites; what it leaves out, nulls or sets to nothing stays
        as it was known."""
        _overwrite(self._usage, _mapping(usage))


_HANDLERS: Mapping[str, Callable[[Folder, WireEvent], list[ModelEvent]]] = {
    "message_start": Folder._message_start,
    "content_block_start": Folder._block_start,
    "content_block_delta": Folder._block_delta,
    "content_block_stop": Folder._block_stop,
    "message_delta": Folder._message_delta,
    "message_stop": Folder._message_stop,
    "error": Folder._error,
}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _overwrite(known: dict[str, Any], news: Mapping[str, Any]) -> None:
    for name, value in news.items():
        if isinstance(value, dict) and isinstance(known.get(name), dict):
            known[name] = dict(known[name])
            _overwrite(known[name], value)
        elif value or name not in known:
            known[name] = value


def _text(delta: Mapping[str, Any], name: str) -> str:
    value = delta.get(name)
    return value if isinstance(value, str) else ""


def _index(event: WireEvent) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _other_delta(block: _OpenBlock, kind: Any, delta: Mapping[str, Any]) -> None:
    """Deltas nobody is shown. What is not known is not accumulated, as the vendor's own client does."""
    if kind == "signature_delta" and isinstance(delta.get("signature"), str):
        block.updates["signature"] = delta["signature"]
    elif kind == "citations_delta" and isinstance(delta.get("citation"), dict):
        before = block.updates.get("citations") or block.start.get("citations") or []
        block.updates["citations"] = [*before, delta["citation"]]
    elif kind == "compaction_delta":
        block.updates.update((k, v) for k, v in delta.items() if k != "type" and (v is not None or k in block.start))


def _input_of(opened: _OpenBlock) -> tuple[dict[str, Any], str | None]:
    raw = "".join(opened.json)
    started = opened.start.get("input")
    if not raw.strip() and isinstance(started, dict):
        return started, None  # nothing came after it: servers that do not stream input give it whole
    return parse_input(raw)


def parse_input(raw: str) -> tuple[dict[str, Any], str | None]:
    """(the object, None) or ({}, what is wrong with it). Empty text is the empty object: a call without arguments."""
    if not raw.strip():
        return {}, None
    try:
        value = orjson.loads(raw)
        json.loads(raw, object_pairs_hook=_no_duplicates)
        if isinstance(value, dict):
            orjson.dumps([[{"input": value}]])
            return value, None
    except _DuplicateKey as error:
        return {}, f"The input names the key {error.args[0]!r} twice. Send one JSON object with each key once."
    except orjson.JSONEncodeError:
        return {}, "The input is nested too deeply."
    except RecursionError:
        return {}, "The input is nested too deeply."
    except (orjson.JSONDecodeError, ValueError) as error:
        return {}, f"The input is not valid JSON, it may have been cut off: {error}. Send one complete JSON object."
    return {}, f"The input must be a JSON object, but it is {_named(value)}."


class _DuplicateKey(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1))
    return found


def _named(value: Any) -> str:
    if isinstance(value, str):
        try:
            inner = orjson.loads(value)
        except orjson.JSONDecodeError:
            return "a string"
        return "a string that holds an object: send the object itself, not quoted" if isinstance(inner, dict) else "a string"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", type(None): "null"}
    return names[type(value)]


def usage_of(raw: Mapping[str, Any]) -> Usage:
    """Usage out of the wire's, null and missing as 0.

    With `iterations` the top level leaves out what a compaction in the same call used; their sum is what is billed."""
    iterations = raw.get("iterations")
    if isinstance(iterations, list) and iterations:
        return sum((usage_of(part) for part in iterations if isinstance(part, dict)), Usage())
    written = _count(raw.get("cache_creation_input_tokens"))
    split = _mapping(raw.get("cache_creation"))
    hour = (
        min(_count(split.get("ephemeral_1h_input_tokens")), written)
        if written
        else _count(split.get("ephemeral_1h_input_tokens"))
    )
    short = max(written - hour, _count(split.get("ephemeral_5m_input_tokens")) if not written else 0)
    return Usage(
        input=_count(raw.get("input_tokens")),
        cache_write_5m=short,
        cache_write_1h=hour,
        cache_read=_count(raw.get("cache_read_input_tokens")),
        output=_count(raw.get("output_tokens")),
    )


def _count(value: Any) -> int:
    return max(0, int(value)) if isinstance(value, (int, float)) and value == value and abs(value) < 1e15 else 0


# --- waiting ---------------------------------------------------------------------------------------------------------


class Watchdog:
    """Ends a wait that lasts longer than `silence` seconds without a sign of life; only waits count, not the time the
    consumer takes for itself. One task for the whole stream: a timer for each event would cost more than the event."""

    def __init__(self, clock: Clock, silence: float) -> None:
        self._clock = clock
        self._silence = silence
        self._last = clock.monotonic()
        self._waiter: asyncio.Task[Any] | None = None
        self._fired = False

    @classmethod
    @asynccontextmanager
    async def over(cls, clock: Clock, silence: float) -> AsyncIterator[Watchdog]:
        dog = cls(clock, silence)
        task = asyncio.create_task(dog._watch())
        try:
            yield dog
        finally:
            task.cancel()

    def alive(self) -> None:
        """A sign of life: the wait starts anew."""
        self._last = self._clock.monotonic()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """`awaitable`'s result. Raises `STREAM_SILENT` when the silence lasts too long."""
        self._waiter = task = asyncio.current_task()
        asked_before = task.cancelling() if task else 0
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._fired and task is not None and task.uncancel() <= asked_before:
                message = f"The endpoint sent nothing of the answer for {self._silence:g} s"
                raise ModelError(ErrorKind.STREAM_SILENT, message) from None
            raise
        finally:
            self._waiter = None

    async def _watch(self) -> None:
        while True:
            left = self._last + self._silence - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(left)
            elif self._waiter is None:  # the consumer is busy with what it got
                await self._clock.sleep(self._silence)
            else:
                self._fired = True
                self._waiter.cancel()
                return


async def fold(
    chunks: AsyncIterator[bytes], dog: Watchdog, clock: Clock, headers: Mapping[str, str]
) -> AsyncGenerator[ModelEvent, None]:
    """The model events of one answer, out of the bytes of its body; whole chunks at a time, which costs a turn least.
    `headers` are the response's. Raises `ModelError`: error events, a broken end, silence, no stream at all."""
    folder = Folder(headers.get("request-id"), headers, clock.now)
    splitter = EventSplitter()
    head, seen = bytearray(), False
    while not folder.finished:
        chunk = await dog.wait(anext(chunks, None))
        for name, data in splitter.flush() if chunk is None else splitter.feed(chunk):
            event = _decoded(name, data, folder, last=chunk is None)
            if event is None:
                continue
            seen = True
            if event["type"] in _CONTENT_EVENTS:
                dog.alive()
            for done in folder.feed(event):
                yield done
                dog.alive()
        if chunk is None:
            if not seen:
                message = _whole_message(head)
                if message is None:
                    raise errors_map.not_a_stream(headers, bytes(head), clock.now())
                for done in (
                    *folder.feed({"type": "message_start", "message": message}),
                    *folder.feed({"type": "message_stop"}),
                ):
                    yield done
            folder.end()
            return
        if not seen and len(head) < WHOLE_LIMIT:
            head += chunk


def _whole_message(body: bytearray) -> Mapping[str, Any] | None:
    """The message of a server that answers without streaming; None for any other body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and value.get("type") == "message" else None


def _decoded(name: str, data: bytes, folder: Folder, *, last: bool) -> WireEvent | None:
    try:
        return decode_event(name, data)
    except ValueError as error:
        if last:  # the body ended inside this event
            return None
        kind = ErrorKind.STREAM_BROKEN if folder.started else ErrorKind.NONSENSE
        raise ModelError(kind, f"The answer cannot be read: {error}", status=200) from None
