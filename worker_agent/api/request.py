"""A `ModelRequest` → the bytes of its body, stable from turn to turn.

Rules of this file:

1. What was sent once is sent again with the same bytes. Messages keep the bytes they were born with; the part of a
   conversation before its last answer is *settled*: it is normalised once and kept, so that a turn costs the few
   messages that are new. A body is never put together here: it travels as the pieces it is made of.
2. Cache marks, the four that are allowed: one after the first system block (equal over all agents of a definition), one
   at the last message that says that what stands before it stays while what follows may be replaced (a collapse), one
   at the end of the previous request when the last turn added more blocks than the lookback reaches over, and the
   automatic one for the tail. Marks do not count as content: the provider compares prefixes without them.
3. No sampling parameters, no betas and no marks for models that no table knows; nothing that only the vendor has for an
   endpoint that refused some of it (`plain.py`).
4. A deferred tool is sent to a model that knows such tools with the others, marked, so that nothing before the
   conversation changes when it is found. Any other model is told of it from the request on whose conversation references it.
5. `messages` comes last in the body, so that everything before it is one constant piece of a conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field

from worker_agent.api import normalize
from worker_agent.api.client import ModelInfo, ModelRequest, ToolSpec
from worker_agent.api.normalize import COMPACTION_BETA, PIECE_END, Piece, WireMessage
from worker_agent.api.transport import Body
from worker_agent.errors import ErrorKind, ModelError
from worker_agent.messages import CACHE_ANCHOR, Message, canonical, clean, clean_json
from worker_agent.structs import replace

CONTEXT_MANAGEMENT_BETA = "context-management-2025-06-27"

MARK = {"type": "ephemeral"}
_MARKED_END = b',"cache_control":{"type":"ephemeral"}}' + PIECE_END
LOOKBACK = 18  # blocks; the provider looks back about 20
KEPT_BYTES = 256 * 1024 * 1024  # of settled conversations, the least recently used are forgotten
KEPT_TOOLSETS = 64
GATHERED = 64  # pieces that are put together at a time
SMALL = 4 * 1024  # bytes; of pieces that are larger on average no copy is made


class _Kept(Struct):
    """What is settled of one conversation: `pieces` are whole wire messages as JSON with a comma behind, made of
    `messages`, whose bytes they share."""

    info: ModelInfo
    betas: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    pieces: list[Piece] = field(default_factory=list)
    size: int = 0
    call_ids: set[str] = field(default_factory=set)
    media: int = 0
    compaction: bool = False
    anchor: int | None = None  # the wire message that holds the last cache anchor
    blocks: list[Piece] = field(default_factory=list)  # the first `gathered` pieces again, many small ones in one
    gathered: int = 0

    def anchor_at(self, place: int) -> None:
        """`place` counts the wire messages behind those that are settled."""
        self.anchor = len(self.pieces) + place

    def take(self, messages: tuple[Message, ...], done: Sequence[WireMessage]) -> int:
        """`done` settles too, so that all of it was made of `messages`; the bytes that are held more."""
        pieces = [message.piece for message in done]
        size = sum(map(len, chain.from_iterable(pieces)))
        self.messages = messages
        self.pieces.extend(pieces)
        size += self._gather()
        self.size += size
        self.media += normalize.media_in(done)
        self.compaction = self.compaction or _has_compaction(done)
        self.call_ids.update(b["id"] for m in done if m.role == "assistant" for b in m.blocks if b["type"] == "tool_use")
        return size

    def _gather(self) -> int:
        """Put the small pieces of a while together, so that a long conversation is not sent in thousands of parts; large ones
        stay as they are. How many bytes that took."""
        fresh = self.pieces[self.gathered :]
        if len(fresh) < GATHERED:
            return 0
        size = sum(map(len, chain.from_iterable(fresh)))
        small = size < len(fresh) * SMALL
        self.blocks += [(b"".join(chain.from_iterable(fresh)),)] if small else fresh
        self.gathered = len(self.pieces)
        return size if small else 0


class Call(Struct, frozen=True):
    """A body, as the parts that make it up one after the other, and the headers that belong to it."""

    parts: Body
    headers: Mapping[str, str]

    @property
    def body(self) -> bytes:
        """The parts in one, put together for each caller."""
        return b"".join(self.parts)


class RequestBuilder:
    """Keeps what it serialised for each conversation and model, up to `kept_bytes` in all. Not thread-safe."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._room = kept_bytes
        self._tools: OrderedDict[int, tuple[tuple[ToolSpec, ...], bytes]] = OrderedDict()
        self._found: OrderedDict[tuple[int, tuple[str, ...]], tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]] = OrderedDict()

    def call(self, request: ModelRequest, info: ModelInfo) -> Call:
        """`POST /v1/messages`. Raises `ModelError` for what the model cannot do (server compaction)."""
        if request.compact is not None and not info.server_compaction:
            raise ModelError(ErrorKind.INVALID_REQUEST, f"{info.id} cannot compact a conversation on the server")
        messages, compaction = self._messages(request, info)
        return Call(_parts(self._head(request, info), messages), _headers(request, info, compaction))

    def count_body(self, request: ModelRequest, info: ModelInfo) -> Call:
        """The same prompt for `POST /v1/messages/count_tokens`."""
        messages, compaction = self._messages(request, info)
        fields = {"model": info.id, **_thinking(info)}
        if system := _system(request, info):
            fields["system"] = system
        head = self._with_tools(canonical(fields), self._told(request, info))
        return Call(_parts(head, messages), _headers(request, info, compaction))

    def forget(self, conversation: str) -> None:
        """Drop what is kept of a conversation, for whichever models."""
        for key in [key for key in self._kept if key[0] == conversation]:
            self._room += self._kept.pop(key).size

    # --- everything before the messages

    def _head(self, request: ModelRequest, info: ModelInfo) -> bytes:
        """The body without its closing brace and without messages."""
        fields: dict[str, Any] = {
            "model": info.id,
            "max_tokens": max(1, min(request.max_tokens, info.max_output)),
            "stream": True,
        }
        if system := _system(request, info):
            fields["system"] = system
        fields |= _thinking(info)
        if output := _output_config(request, info):
            fields["output_config"] = output
        if request.compact is not None:
            fields["compaction"] = _compaction(request.compact)
        elif request.context_management and info.server_editing:
            fields["context_management"] = clean_json(request.context_management)
        if request.tools and not request.tools_allowed and request.compact is None:
            fields["tool_choice"] = {"type": "none"}
        if info.cache_control:
            fields["cache_control"] = MARK
        return self._with_tools(canonical(fields), self._told(request, info))

    def _told(self, request: ModelRequest, info: ModelInfo) -> tuple[ToolSpec, ...]:
        """The tools of this request, as one and the same tuple while nothing new is found."""
        tools = request.tools
        if info.tool_search or not any(tool.deferred for tool in tools):
            return tools
        found = _referenced(request.messages)
        key = (id(tools), tuple(found))
        known = self._found.get(key)
        if known is None or known[0] is not tools:
            at_once = [tool for tool in tools if not tool.deferred]
            named = {tool.name: replace(tool, deferred=False) for tool in tools if tool.deferred}
            known = (tools, (*at_once, *(named[name] for name in found if name in named)))
            self._found[key] = known
            if len(self._found) > KEPT_TOOLSETS:
                self._found.popitem(last=False)
        return known[1]

    def _with_tools(self, fields: bytes, tools: tuple[ToolSpec, ...]) -> bytes:
        return fields[:-1] + (b',"tools":' + self._tools_bytes(tools) if tools else b"")

    def _tools_bytes(self, tools: tuple[ToolSpec, ...]) -> bytes:
        """Serialised once for each tuple of specs; agents of one definition share theirs."""
        key = id(tools)
        if (known := self._tools.get(key)) and known[0] is tools:
            return known[1]
        wire = canonical([_wire_tool(tool) for tool in tools])
        self._tools[key] = (tools, wire)
        if len(self._tools) > KEPT_TOOLSETS:
            self._tools.popitem(last=False)
        return wire

    # --- the messages

    def _messages(self, request: ModelRequest, info: ModelInfo) -> tuple[list[Piece], bool]:
        """(each wire message as JSON with a comma behind, whether one of them holds a compaction)."""
        kept = self._kept_for(request, info)
        new = request.messages[len(kept.messages) :]
        if kept.messages and any(map(normalize.changes_the_past, new)):
            kept = self._restart(request, info)
            new = request.messages
        wire = self._normalized(kept, new, info, _referable(request, info), ends_open=request.compact is not None)
        if kept.media + normalize.media_in(wire) > info.max_media:
            return self._in_full(request, info)
        compaction = kept.compaction or _has_compaction(wire)
        if (anchor := _anchor(new, wire)) is not None:
            kept.anchor_at(anchor)
        live = self._settle(kept, request.messages, wire)
        return _marked(kept, live, info), compaction

    def _kept_for(self, request: ModelRequest, info: ModelInfo) -> _Kept:
        """What is settled, if the conversation still begins with it (compared by identity, in C)."""
        key = (request.conversation, info.id)
        kept = self._kept.get(key)
        if kept is None or kept.betas != request.betas or (kept.info is not info and kept.info != info):
            return self._restart(request, info)
        if request.messages[: len(kept.messages)] != kept.messages:
            return self._restart(request, info)
        self._kept.move_to_end(key)
        return kept

    def _restart(self, request: ModelRequest, info: ModelInfo) -> _Kept:
        kept = _Kept(info, request.betas)
        if request.conversation and not request.single:
            key = (request.conversation, info.id)
            if old := self._kept.pop(key, None):
                self._room += old.size
            self._kept[key] = kept
        return kept

    def _make_room(self, size: int) -> None:
        """Forgets conversations from the one not used for longest; never the one in use, which is the last."""
        self._room -= size
        while self._room < 0 and len(self._kept) > 1:
            self._room += self._kept.popitem(last=False)[1].size

    @staticmethod
    def _normalized(
        kept: _Kept, new: Sequence[Message], info: ModelInfo, referable: Collection[str], *, ends_open: bool = False
    ) -> list[WireMessage]:
        """The passes over the part that is not settled yet. It begins with an answer, so it joins without a merge. With
        `ends_open` an answer may stand last: a compaction adds nothing to what it covers."""
        wire = normalize.normalize_messages_for_api(new)
        wire = normalize.ensure_tool_result_pairing(wire, kept.call_ids)
        wire = normalize.strip_unsupported_blocks(wire, info, _block_betas(kept.betas, info), referable)
        wire = wire if kept.messages else normalize.open_(wire)
        return wire if ends_open and wire else normalize.close(wire)

    def _settle(self, kept: _Kept, messages: tuple[Message, ...], wire: list[WireMessage]) -> list[WireMessage]:
        """Moves what lies before the last answer into `kept`; gives the rest."""
        answer = next((i for i in reversed(range(len(wire))) if wire[i].role == "assistant"), 0)
        done, live = wire[:answer], wire[answer:]
        if not done or not live[0].start:  # before it stands nothing, or nothing that was stored
            return wire
        size = kept.take(messages[: len(kept.messages) + live[0].start], done)
        if kept is next(reversed(self._kept.values()), None):
            self._make_room(size)
        return live

    @staticmethod
    def _in_full(request: ModelRequest, info: ModelInfo) -> tuple[list[Piece], bool]:
        """With too much media the oldest go: that reaches into what is settled, so nothing of it is used."""
        wire = normalize.normalize(request.messages, info, _block_betas(request.betas, info), _referable(request, info))
        return [message.piece for message in wire], _has_compaction(wire)


def _wire_tool(tool: ToolSpec) -> dict[str, Any]:
    wire = {"name": tool.name, "description": clean(tool.description), "input_schema": clean_json(tool.input_schema)}
    return {**wire, "defer_loading": True} if tool.deferred else wire


def _referable(request: ModelRequest, info: ModelInfo) -> Collection[str]:
    """The tools that a result may reference: an endpoint takes no other names."""
    return frozenset(tool.name for tool in request.tools if tool.deferred) if info.tool_search else ()


def _referenced(messages: Sequence[Message]) -> list[str]:
    """The tools that a conversation references, in the order they were found."""
    results = (block for message in messages if message.role == "user" for block in message.tool_results)
    return list(dict.fromkeys(name for block in results for name in normalize.references(block)))


def _parts(head: bytes, messages: list[Piece]) -> Body:
    """The body, without a copy: the commas are in the pieces, the last one gives way to the end."""
    *before, last = messages
    return (head, b',"messages":[', *chain.from_iterable(before), *last[:-1], memoryview(last[-1])[:-1], b"]}")


def _anchor(messages: Sequence[Message], wire: Sequence[WireMessage]) -> int | None:
    """The index in `wire`, made of `messages`, of the one that holds the last cache anchor."""
    place = next((i for i in range(len(messages) - 1, -1, -1) if CACHE_ANCHOR in messages[i].data), None)
    if place is None:
        return None
    found = next((i for i in range(len(wire) - 1, -1, -1) if wire[i].start <= place), None)
    return found if found is not None and wire[found].role == "user" else None


def _marked(kept: _Kept, live: list[WireMessage], info: ModelInfo) -> list[Piece]:
    """All pieces; the last settled one (the end of the previous request) marked if the lookback cannot reach it, and
    the one with the anchor."""
    settled, marks = kept.pieces, set[int]()
    if info.cache_control:
        if settled and sum(len(message.blocks) for message in live) > LOOKBACK:
            marks.add(len(settled) - 1)
        if kept.anchor is not None and kept.anchor < len(settled) + len(live) - 1:
            marks.add(kept.anchor)
    gathered = 0 if any(mark < kept.gathered for mark in marks) else kept.gathered
    blocks = kept.blocks if gathered else []
    pieces = [*blocks, *settled[gathered:], *(message.piece for message in live)]
    for mark in marks:
        _mark(pieces, mark - gathered + len(blocks))
    return pieces


def _mark(pieces: list[Piece], index: int) -> None:
    *before, block, end = pieces[index]
    if end is not _MARKED_END:
        pieces[index] = (*before, memoryview(block)[:-1], _MARKED_END)


def _has_compaction(wire: Sequence[WireMessage]) -> bool:
    return any(block["type"] == "compaction" for message in wire for block in message.blocks)


def _block_betas(betas: tuple[str, ...], info: ModelInfo) -> tuple[str, ...]:
    """The betas that decide which blocks may travel. A compaction brings its own wherever the model knows it."""
    if not info.known:
        return ()
    return (*betas, COMPACTION_BETA) if info.server_compaction else betas


def _system(request: ModelRequest, info: ModelInfo) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": clean(text)} for text in request.system if text.strip()]
    if blocks and info.cache_control:
        blocks[0]["cache_control"] = MARK
    return blocks


def _thinking(info: ModelInfo) -> dict[str, Any]:
    """Newer models show nothing of their thinking unless asked; a summary is what an observer can follow."""
    return {"thinking": {"type": "adaptive", "display": "summarized"}} if info.adaptive_thinking else {}


def _output_config(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if request.effort and info.effort:
        config["effort"] = request.effort
    if request.output_schema is not None and request.compact is None and not info.plain:
        config["format"] = {"type": "json_schema", "schema": clean_json(request.output_schema)}
    return config


def _compaction(instructions: str) -> dict[str, Any]:
    return {"type": "summarize", **({"instructions": clean(instructions)} if instructions.strip() else {})}


def _headers(request: ModelRequest, info: ModelInfo, compaction: bool) -> dict[str, str]:
    headers = {"x-conversation": request.conversation} if request.conversation else {}
    betas = list(request.betas) if info.known else []
    if request.compact is not None or compaction:
        betas.append(COMPACTION_BETA)
    if request.context_management and info.server_editing and request.compact is None:
        betas.append(CONTEXT_MANAGEMENT_BETA)
    if betas:
        headers["anthropic-beta"] = ",".join(dict.fromkeys(betas))
    return headers
