"""Constructors of answers, and how they become the events of a stream.

Blocks (`text`, `tool_use`, `thinking` …) are put together by `message`; a block or a string alone is a whole answer.
`Gate` and `delay` may stand between blocks and between the pieces of a text. What goes wrong is wrapped around an
answer: `drop(after=text("half"))`. Everything is a frozen value: one reply may answer many requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from tests.support.fake_api.errors import error_body, error_type_of, html_body
from tests.support.fake_api.gates import Delay, Gate, Pause

Event = tuple[str, dict[str, Any]]  # name, data
Item = Event | Gate | Delay
PING: Event = ("ping", {"type": "ping"})


class Context(Protocol):
    """What a block needs of the request it answers."""

    show_thinking: bool

    def new_id(self, prefix: str) -> str: ...
    def sign_thinking(self, text: str) -> str: ...
    def sign_compaction(self, summary: str) -> str: ...
    def accept(self, signature: str) -> None: ...


@dataclass(slots=True)
class Rendered:
    """One block: its events, and the block as it stands in the finished message (None: no block)."""

    items: list[Item]
    block: dict[str, Any] | None


class Part(Protocol):
    def render(self, index: int, context: Context) -> Rendered: ...


def _start(index: int, block: Mapping[str, Any]) -> Event:
    return ("content_block_start", {"type": "content_block_start", "index": index, "content_block": dict(block)})


def _delta(index: int, **delta: Any) -> Event:
    return ("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})


def _stop(index: int) -> Event:
    return ("content_block_stop", {"type": "content_block_stop", "index": index})


def split(value: str, pieces: int) -> list[str]:
    """`value` in at most `pieces` parts of nearly equal length, none empty."""
    size = max(1, -(-len(value) // max(1, pieces)))
    return [value[i : i + size] for i in range(0, len(value), size)]


# ------------------------------------------------------------------ blocks


@dataclass(frozen=True)
class Text:
    parts: tuple[str | Pause, ...]
    pieces: int = 3

    def render(self, index: int, context: Context) -> Rendered:
        items: list[Item] = [_start(index, {"type": "text", "text": ""})]
        for part in self.parts:
            if isinstance(part, Gate | Delay):
                items.append(part)
            else:
                items += [_delta(index, type="text_delta", text=p) for p in split(part, self.pieces)]
        whole = "".join(p for p in self.parts if isinstance(p, str))
        return Rendered([*items, _stop(index)], {"type": "text", "text": whole})


@dataclass(frozen=True)
class ToolUse:
    """`raw` replaces the JSON of `input`; `within` is passed between its first and second half."""

    name: str
    input: Mapping[str, Any]
    id: str | None = None
    raw: str | None = None
    within: Pause | None = None
    pieces: int = 3
    closed: bool = True
    escaped: bool = False

    def json(self) -> str:
        if self.raw is not None:
            return self.raw
        if self.escaped:
            return json.dumps(self.input, separators=(",", ":"))
        return orjson.dumps(self.input).decode()

    def render(self, index: int, context: Context) -> Rendered:
        block = {"type": "tool_use", "id": self.id or context.new_id("toolu"), "name": self.name, "input": {}}
        pieces = split(self.json(), self.pieces) if self.raw is not None or self.input else []
        items: list[Item] = [_start(index, block), _delta(index, type="input_json_delta", partial_json="")]
        deltas: list[Item] = [_delta(index, type="input_json_delta", partial_json=p) for p in pieces]
        if self.within is not None:
            deltas.insert((len(deltas) + 1) // 2, self.within)
        items += deltas
        if self.closed:
            items.append(_stop(index))
        return Rendered(items, {**block, "input": dict(self.input)})


@dataclass(frozen=True)
class Thinking:
    text: str
    signature: str | None = None
    show: bool | None = None

    def render(self, index: int, context: Context) -> Rendered:
        shown = context.show_thinking if self.show is None else self.show
        text = self.text if shown else ""
        if self.signature is not None:
            context.accept(self.signature)
        signature = context.sign_thinking(text) if self.signature is None else self.signature
        items: list[Item] = [_start(index, {"type": "thinking", "thinking": "", "signature": ""})]
        items += [_delta(index, type="thinking_delta", thinking=p) for p in split(text, 3)]
        items += [_delta(index, type="signature_delta", signature=signature), _stop(index)]
        return Rendered(items, {"type": "thinking", "thinking": text, "signature": signature})


@dataclass(frozen=True)
class Redacted:
    data: str | None = None

    def render(self, index: int, context: Context) -> Rendered:
        if self.data is not None:
            context.accept(self.data)
        block = {"type": "redacted_thinking", "data": self.data or context.sign_thinking("")}
        return Rendered([_start(index, block), _stop(index)], block)


@dataclass(frozen=True)
class Compaction:
    """`summary` None is a compaction that failed."""

    summary: str | None

    def render(self, index: int, context: Context) -> Rendered:
        signature = context.sign_compaction(self.summary) if self.summary is not None else None
        block = {"type": "compaction", "content": None, "encrypted_content": None, "signature": signature}
        items: list[Item] = [_start(index, block)]
        if self.summary is not None:
            items.append(_delta(index, type="compaction_delta", content=self.summary))
        return Rendered([*items, _stop(index)], {**block, "content": self.summary})


@dataclass(frozen=True)
class RawBlock:
    """A block given literally: its start, its deltas, and what it is when finished."""

    start: Mapping[str, Any]
    deltas: tuple[Mapping[str, Any], ...] = ()
    finished: Mapping[str, Any] | None = None

    def render(self, index: int, context: Context) -> Rendered:
        items: list[Item] = [_start(index, self.start), *(_delta(index, **d) for d in self.deltas), _stop(index)]
        return Rendered(items, dict(self.finished or self.start))


@dataclass(frozen=True)
class RawEvent:
    name: str
    data: Mapping[str, Any]

    def render(self, index: int, context: Context) -> Rendered:
        return Rendered([(self.name, dict(self.data))], None)


Block = Text | ToolUse | Thinking | Redacted | Compaction | RawBlock | RawEvent
Piece = Block | Gate | Delay | str


def text(*parts: str | Pause, pieces: int = 3) -> Text:
    """A text block; each string in `pieces` deltas; gates and delays between the strings."""
    return Text(parts, pieces)


def tool_use(
    name: str,
    input: Mapping[str, Any] | None = None,
    id: str | None = None,
    *,
    within: Pause | None = None,
    pieces: int = 3,
    escaped: bool = False,
) -> ToolUse:
    """A tool call. `escaped` writes non-ASCII as ``\\uXXXX``, so that pieces may part a surrogate pair."""
    return ToolUse(name, dict(input or {}), id, within=within, pieces=pieces, escaped=escaped)


def thinking(text: str = "Let me think.", signature: str | None = None, *, show: bool | None = None) -> Thinking:
    """A thinking block, signed by the fake. Its text is sent as `thinking.display` asks, unless `show` says so."""
    return Thinking(text, signature, show)


def redacted(data: str | None = None) -> Redacted:
    return Redacted(data)


def compaction(summary: str | None = "Summary of the conversation.") -> Reply:
    """The answer to a compaction request; None for one that failed."""
    return message(Compaction(summary))


def unknown_block(kind: str = "hologram", **fields: Any) -> RawBlock:
    return RawBlock({"type": kind, **fields}, ({"type": f"{kind}_delta", "value": 1},))


def unknown_delta(text: str = "Hello") -> RawBlock:
    deltas = ({"type": "shimmer_delta", "shimmer": 3}, {"type": "text_delta", "text": text})
    return RawBlock({"type": "text", "text": ""}, deltas, {"type": "text", "text": text})


def unknown_event(name: str = "weather") -> RawEvent:
    return RawEvent(name, {"type": name, "forecast": "rain"})


def ping() -> RawEvent:
    return RawEvent(*PING)


# ------------------------------------------------------------------ replies


@dataclass(frozen=True)
class Ending:
    """How a stream breaks off: `error` (event bytes), `drop`, `stall` (pings at an interval, or silence), `eof`."""

    kind: str
    type: str = ""
    message: str = ""
    data: str | None = None  # an error event's data, literally
    every: float | None = None  # seconds between pings


@dataclass(frozen=True)
class Reply:
    """One answer. `hold` is passed before the first byte. Without `parts` and with `status` it is no stream at all."""

    kind: str = "message"
    parts: tuple[Piece, ...] = ()
    stop_reason: str | None = None
    stop_details: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # further keys of message_start.message
    late_usage: bool = False  # numbers only in message_delta
    event_lines: bool = True
    torn: int = 0  # bytes per network write, 0: whole
    keep: int | None = None  # events sent before `ending`; None: all up to message_delta
    ending: Ending | None = None
    hold: tuple[Pause, ...] = ()
    status: int = 200
    body: bytes | None = None  # a literal body
    error: tuple[str, str, str | None] | None = None  # type, message, error_code of an HTTP error
    html: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    @property
    def whole(self) -> bool:
        """Whether the client gets a finished answer."""
        return self.ending is None and self.body is None and self.error is None

    def error_bytes(self, request_id: str) -> bytes:
        kind, text, code = self.error or ("api_error", "", None)
        if self.html:
            return html_body(self.status, text)
        return error_body(kind, text, request_id, details={"error_code": code} if code else None)


@dataclass(slots=True)
class Plan:
    """A message reply rendered for one request."""

    items: list[Item]
    content: list[dict[str, Any]]
    stop_reason: str | None
    output_tokens: int
    message: dict[str, Any]  # the whole message, as a non-streaming answer


def as_reply(value: Any) -> Reply:
    """A reply, a block or a string, as a reply."""
    if isinstance(value, Reply):
        return value
    if isinstance(value, str | Text | ToolUse | Thinking | Redacted | Compaction | RawBlock | RawEvent):
        return message(value)
    raise TypeError(f"a script gave {value!r}, which is no reply")


def message(
    *parts: Piece,
    stop_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Reply:
    """An answer of several blocks. `usage` overrides single figures; `stop_reason` is derived when not given."""
    return Reply(parts=parts, stop_reason=stop_reason, usage=usage or {}, extra=extra or {})


def stop(reason: str, *parts: Piece, details: Mapping[str, Any] | None = None) -> Reply:
    """An answer that ends for `reason`."""
    return Reply(kind=reason, parts=parts or ("Cut",), stop_reason=reason, stop_details=details)


def refusal(*parts: Piece, category: str | None = "cyber", explanation: str = "Declined.") -> Reply:
    details = {"type": "refusal", "category": category, "explanation": explanation}
    return Reply(kind="refusal", parts=parts, stop_reason="refusal", stop_details=details)


def pause_turn(*parts: Piece) -> Reply:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "news"}}
    return stop("pause_turn", *(parts or ("Searching.", RawBlock({**search}))))


def unknown_stop_reason(reason: str = "bored", *parts: Piece) -> Reply:
    return stop(reason, *(parts or ("Well.",)))


def empty_answer() -> Reply:
    """A finished message without any block."""
    return Reply(kind="empty_answer", stop_reason="end_turn")


def usage_only_in_delta(*parts: Piece) -> Reply:
    return replace(message(*(parts or ("Hello",))), late_usage=True)


def no_event_lines(reply: Any = "Hello") -> Reply:
    """The events of `reply` without their `event:` lines, as some compatible servers send them."""
    return replace(as_reply(reply), event_lines=False)


def torn(reply: Any, size: int = 7) -> Reply:
    """`reply` written to the network `size` bytes at a time, so that events and characters are torn apart."""
    return replace(as_reply(reply), torn=size)


def hold(pause: Pause, reply: Any) -> Reply:
    """`reply`, with `pause` passed before the first byte of the response."""
    inner = as_reply(reply)
    return replace(inner, hold=(pause, *inner.hold))


def with_headers(reply: Any, **headers: str) -> Reply:
    inner = as_reply(reply)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return replace(inner, headers={**inner.headers, **named})


def http_error(
    status: int,
    type: str | None = None,
    message: str = "",
    headers: Mapping[str, str] | None = None,
    error_code: str | None = None,
    html: bool = False,
) -> Reply:
    """An error instead of a stream; `html` as an edge proxy would send it."""
    kind = type or error_type_of(status)
    return Reply(
        kind=f"http_{status}",
        status=status,
        error=(kind, message or kind.replace("_", " "), error_code),
        headers=headers or {},
        html=html,
        content_type="text/html" if html else "application/json",
    )


def _broken(after: Any, keep: int | None, ending: Ending, kind: str) -> Reply:
    inner = as_reply(after) if after is not None else Reply(keep=0)
    return replace(inner, kind=kind, keep=inner.keep if keep is None else keep, ending=ending)


def error_event(
    type: str = "overloaded_error", *, after: Any = None, keep: int | None = None, message: str = "Overloaded",
    data: str | None = None,
) -> Reply:  # fmt: skip
    """An `error` event inside a 200. `after` is the answer that is cut, `keep` how many of its events are sent (default
    all up to `message_delta`); `data` replaces the JSON of the event literally."""
    return _broken(after, keep, Ending("error", type, message, data), "error_event")


def drop(after: Any = None, *, keep: int | None = None) -> Reply:
    """The connection is reset: before any header, or after part of an answer."""
    return _broken(after, keep, Ending("drop"), "drop")


def stall(after: Any = None, *, keep: int | None = None, pings: bool = False, every: float = 0.05) -> Reply:
    """Silence (or pings every `every` seconds) until the client leaves. Without `after` and pings not even headers."""
    return _broken(after, keep, Ending("stall", every=every if pings else None), "stall")


def clean_eof(after: Any = "Half an ans", *, keep: int | None = None) -> Reply:
    """The body ends in good order, without `message_stop`."""
    return _broken(after, keep, Ending("eof"), "clean_eof")


def raw(body: bytes, *, status: int = 200, content_type: str = "text/event-stream; charset=utf-8") -> Reply:
    return Reply(kind="raw", status=status, body=body, content_type=content_type)


def empty_body() -> Reply:
    return replace(raw(b""), kind="empty_body")


def cut_tool_json(
    name: str, prefix: str, stop_reason: str | None = "max_tokens", *, before: Sequence[Piece] = (), closed: bool = True
) -> Reply:
    """A tool call whose JSON stops after `prefix`; with `stop_reason` None the stream ends there in good order."""
    if stop_reason is None:
        return clean_eof(message(*before, ToolUse(name, {}, raw=prefix, closed=False)))
    return stop(stop_reason, *before, ToolUse(name, {}, raw=prefix, closed=closed))


def garbage_tool_json(name: str, garbage: str = '{"path": oops}') -> Reply:
    return stop("tool_use", ToolUse(name, {}, raw=garbage))


# ------------------------------------------------------------------ rendering


def render(reply: Reply, context: Context, *, model: str, prompt_usage: Mapping[str, Any]) -> Plan:
    """The events of a message reply, from `message_start` to `message_stop`, cut where the reply says so."""
    items, content, index = [], [], 0
    for part in reply.parts:
        if isinstance(part, Gate | Delay):
            items.append(part)
            continue
        done = (Text((part,)) if isinstance(part, str) else part).render(index, context)
        items += done.items
        if done.block is not None:
            content.append(done.block)
            index += 1
    reason = reply.stop_reason or _reason(content)
    usage = {**prompt_usage, **reply.usage}
    output = reply.usage.get("output_tokens", max(1, len(orjson.dumps(content)) // 4))
    shell = _message(reply, context.new_id("msg"), model, usage)
    delta = {"stop_reason": reason, "stop_sequence": None}
    if reply.stop_details is not None:
        delta["stop_details"] = reply.stop_details
    final = {**usage, "output_tokens": output} if reply.late_usage else {"output_tokens": output}
    start_usage = dict.fromkeys(usage) | {"input_tokens": 0, "output_tokens": 0} if reply.late_usage else usage
    items.insert(0, ("message_start", {"type": "message_start", "message": {**shell, "usage": start_usage}}))
    end: list[Item] = [
        ("message_delta", {"type": "message_delta", "delta": delta, "usage": final}),
        ("message_stop", {"type": "message_stop"}),
    ]
    items = _kept(items, reply) if reply.ending else [*items, *end]
    whole = {**shell, "content": content, **delta, "usage": {**usage, "output_tokens": output}}
    return Plan(items, content, reason, output, whole)


def _message(reply: Reply, id: str, model: str, usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        **reply.extra,
        "usage": usage,
    }


def _kept(items: list[Item], reply: Reply) -> list[Item]:
    if reply.keep is None:
        return items
    kept: list[Item] = []
    left = reply.keep
    for item in items:
        if isinstance(item, tuple):
            if left == 0:
                break
            left -= 1
        kept.append(item)
    return kept


def _reason(content: list[dict[str, Any]]) -> str:
    kinds = {block["type"] for block in content}
    return "tool_use" if "tool_use" in kinds else "compaction" if "compaction" in kinds else "end_turn"


def sse(name: str, data: bytes, *, event_lines: bool = True) -> bytes:
    if not event_lines:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def error_sse(ending: Ending, request_id: str) -> bytes:
    data = ending.data
    if data is None:
        return sse("error", error_body(ending.type, ending.message, request_id, always_details=True))
    return sse("error", data.encode())
