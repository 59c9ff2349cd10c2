"""Giving an answer: at once in one write where nothing has to be waited for, else step by step in a task.

The response begins with its first byte: from then on the prompt cache holds what the request wrote. An answer ends
whole, or in one of the ways of `wire.Ending`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tests.support.fake_api import http, wire
from tests.support.fake_api.cache import Accounting, PromptCache
from tests.support.fake_api.gates import Delay, Gate
from tests.support.fake_api.models import Model
from tests.support.fake_api.prompt import Prompt
from tests.support.fake_api.request import Request
from tests.support.fake_api.signatures import Binding, Signatures
from tests.support.fake_api.watch import End
from tests.support.fake_api.wire import Reply, http_error


@dataclass(slots=True)
class Conversation:
    """What is remembered of one conversation between its requests."""

    prompt: Prompt | None = None
    requests: int = 0
    pause_content: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class Accepted:
    """A request that passed every check, and what its answer needs."""

    request: Request
    call: http.Call
    model: Model
    prompt: Prompt
    binding: Binding
    accounting: Accounting
    conversation: Conversation
    end: End | None


@dataclass(frozen=True, slots=True)
class Shared:
    """What answers need of the server."""

    cache: PromptCache
    signatures: Signatures
    new_id: Callable[[str], str]
    headers: Callable[[Reply | None], dict[str, str]]
    ended: Callable[[Request], None]
    spawn: Callable[[http.Call, Coroutine[Any, Any, None]], None]


class Answerer:
    """Turns replies into bytes on a connection."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def answer(self, accepted: Accepted, reply: Reply) -> None:
        """At once where nothing has to be waited for, else in a task of its own."""
        if (
            reply.hold
            or reply.torn
            or reply.ending
            or any(isinstance(p, Gate | Delay) for p in reply.parts)
            or any(isinstance(p, wire.Text | wire.ToolUse) and _pauses(p) for p in reply.parts)
        ):
            self._shared.spawn(accepted.call, self.perform(accepted, reply))
        elif reply.error is not None or reply.body is not None:
            self._literal(accepted, reply)
        else:
            plan = self._begin(accepted, reply)
            if accepted.request.body.get("stream"):
                data = b"".join(_event(item, reply) for item in plan.items)  # type: ignore[arg-type]
                accepted.call.write(accepted.call.stream(self._shared.headers(reply)) + http.chunk(data, last=True))
                self._done(accepted, reply, plan)
                accepted.call.finish()
            else:
                self._whole(accepted, reply, plan)

    async def perform(self, accepted: Accepted, reply: Reply) -> None:
        for pause in reply.hold:
            await pause.pass_through()
        if reply.error is not None or reply.body is not None:
            self._literal(accepted, reply)
        elif reply.ending is not None and reply.keep == 0 and not reply.parts and await self._mute(accepted, reply):
            return
        elif accepted.request.body.get("stream"):
            await self._stream(accepted, reply)
        else:
            await self._unstreamed(accepted, reply)

    async def _mute(self, accepted: Accepted, reply: Reply) -> bool:
        """A connection that ends, or stalls, before any header."""
        ending = reply.ending
        assert ending is not None
        if ending.kind not in ("drop", "stall") or ending.every is not None:
            return False
        _mark(accepted.request, reply, 0)
        if ending.kind == "stall":
            await asyncio.Event().wait()
        self._shared.ended(accepted.request)
        accepted.call.hang_up()
        return True

    async def _stream(self, accepted: Accepted, reply: Reply) -> None:
        writer = _Writer(accepted.call, accepted.call.stream(self._shared.headers(reply)), reply.torn)
        plan = self._begin(accepted, reply)
        for item in plan.items:
            if isinstance(item, Gate | Delay):
                writer.flush()
                await item.pass_through()
            else:
                writer.add(_event(item, reply))
        if reply.ending is not None:
            await self._break_off(accepted, reply, plan, writer)
            return
        await writer.close()
        self._done(accepted, reply, plan)
        accepted.call.finish()

    async def _break_off(self, accepted: Accepted, reply: Reply, plan: wire.Plan, writer: _Writer) -> None:
        ending = reply.ending
        assert ending is not None
        accepted.request.content = plan.content
        if ending.kind == "error":
            writer.add(wire.error_sse(ending, self._shared.new_id("req")))
        elif ending.kind == "stall":
            await self._stall(ending, writer)
        elif ending.kind == "drop":
            writer.flush()
            self._shared.ended(accepted.request)
            accepted.call.hang_up()
            return
        await writer.close()
        self._shared.ended(accepted.request)
        accepted.call.finish()

    async def _stall(self, ending: wire.Ending, writer: _Writer) -> None:
        writer.flush(always=True)
        while ending.every is not None:
            writer.add(_event(wire.PING, None))
            writer.flush()
            await asyncio.sleep(ending.every)
        await asyncio.Event().wait()

    async def _unstreamed(self, accepted: Accepted, reply: Reply) -> None:
        """The same answers and failures for a client that did not ask for a stream."""
        plan = self._begin(accepted, reply)
        for item in plan.items:
            if isinstance(item, Gate | Delay):
                await item.pass_through()
        ending = reply.ending
        if ending is None:
            self._whole(accepted, reply, plan)
        elif ending.kind == "error":
            status = {"overloaded_error": 529, "rate_limit_error": 429}.get(ending.type, 500)
            self._literal(accepted, http_error(status, ending.type, ending.message))
        elif ending.kind == "stall":
            await asyncio.Event().wait()
        else:
            self._shared.ended(accepted.request)
            accepted.call.hang_up()

    def _whole(self, accepted: Accepted, reply: Reply, plan: wire.Plan) -> None:
        self._done(accepted, reply, plan)
        accepted.call.respond(200, self._shared.headers(reply), orjson.dumps(plan.message), "application/json")

    def _literal(self, accepted: Accepted, reply: Reply) -> None:
        _mark(accepted.request, reply, reply.status)
        headers = self._shared.headers(reply)
        body = reply.error_bytes(headers["request-id"]) if reply.body is None else reply.body
        self._shared.ended(accepted.request)
        accepted.call.respond(reply.status, headers, body, reply.content_type or "application/json")

    def _begin(self, accepted: Accepted, reply: Reply) -> wire.Plan:
        """The response begins: what the request wrote to the cache can be read from now on."""
        _mark(accepted.request, reply, 200)
        self._shared.cache.began(accepted.model, accepted.accounting)
        if accepted.request.dropped and "thinking-binding-controls-2026-08-01" in accepted.request.betas:
            reply = replace(
                reply, extra={**reply.extra, "input_transformations": [d.entry() for d in accepted.request.dropped]}
            )
        context = _Context(self._shared, accepted, _shows_thinking(accepted))
        return wire.render(reply, context, model=accepted.model.id, prompt_usage=accepted.request.usage)

    def _done(self, accepted: Accepted, reply: Reply, plan: wire.Plan) -> None:
        accepted.request.content = plan.content
        if plan.stop_reason == "pause_turn":  # it stays the last one: the same request may be sent again
            accepted.conversation.pause_content = plan.content
        if accepted.end is not None and reply.whole:
            accepted.end.answered = True
        self._shared.ended(accepted.request)


def _mark(request: Request, reply: Reply, status: int) -> None:
    request.kind, request.status = reply.kind, status


@dataclass(slots=True)
class _Context:
    """What blocks need of the request they answer; see `wire.Context`."""

    shared: Shared
    accepted: Accepted
    show_thinking: bool
    thoughts: int = 0

    def new_id(self, prefix: str) -> str:
        return self.shared.new_id(prefix)

    def sign_thinking(self, text: str) -> str:
        self.thoughts += 1
        return self.shared.signatures.thinking(text, self.accepted.model, self.accepted.binding, self.thoughts - 1)

    def sign_compaction(self, summary: str) -> str:
        return self.shared.signatures.compaction(summary, self.accepted.binding)

    def accept(self, signature: str) -> None:
        self.thoughts += 1
        self.shared.signatures.literals.add(signature)


class _Writer:
    """Collects events and writes them joined, up to the next pause."""

    def __init__(self, call: http.Call, head: bytes, torn: int) -> None:
        self._call = call
        self._head = head
        self._torn = torn
        self._pending: list[bytes] = []
        self._held: list[bytes] = []  # of a torn reply

    def add(self, data: bytes) -> None:
        self._pending.append(data)

    def flush(self, *, always: bool = False) -> None:
        if not self._pending and not always and not self._head:
            return
        data, self._pending = b"".join(self._pending), []
        head, self._head = self._head, b""
        if self._torn and data:
            self._call.write(head)
            for at in range(0, len(data), self._torn):
                self._call.write(http.chunk(data[at : at + self._torn]))
            return
        if head or data:
            self._call.write(head + http.chunk(data))

    async def close(self) -> None:
        if self._torn:
            await self._trickle()
            self._call.write(http.chunk(b"", last=True))
            return
        data, self._pending = b"".join(self._pending), []
        head, self._head = self._head, b""
        self._call.write(head + http.chunk(data, last=True))

    async def _trickle(self) -> None:
        """One small chunk at each turn of the loop, so that they travel apart."""
        data, self._pending = b"".join(self._pending), []
        head, self._head = self._head, b""
        self._call.write(head)
        for at in range(0, len(data), self._torn):
            self._call.write(http.chunk(data[at : at + self._torn]))
            await asyncio.sleep(0)


def _event(item: wire.Event, reply: Reply | None) -> bytes:
    name, data = item
    return wire.sse(name, orjson.dumps(data), event_lines=reply is None or reply.event_lines)


def _pauses(part: wire.Text | wire.ToolUse) -> bool:
    if isinstance(part, wire.ToolUse):
        return part.within is not None
    return any(isinstance(p, Gate | Delay) for p in part.parts)


def _shows_thinking(accepted: Accepted) -> bool:
    config = accepted.request.body.get("thinking") or {}
    return (config.get("display") or accepted.model.display) == "summarized"
