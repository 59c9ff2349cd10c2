"""Stored messages → what the API accepts, in four passes and in this order:

1. `normalize_messages_for_api`: what is for observers only is dropped, and what a server compaction stands for;
   blocks are brought to their API form, attachments move up to the nearest tool result or assistant message, media
   the API refused is taken out, neighbours of one role are merged with tool results first. First, because the others
   look at neighbours.
2. `ensure_tool_result_pairing`: every call has its one result in the very next message, and no result stands alone.
3. `strip_unsupported_blocks`: what needs a beta that the request does not carry, and thinking nobody signed; a server
   tool's call and its result go together.
4. `strip_excess_media_items`: the oldest images and documents over the limit. Last, so that only what is sent counts.

Rules: inputs are never edited; running twice changes nothing; a message that no pass touches goes out as the bytes it
was born with; and no pass looks ahead beyond the next user message, so that the bytes of the history before the last
answer stay the same when it grows (passes 1 and 4 break this knowingly for media, in one go).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from worker_agent.api.client import ModelInfo
from worker_agent.messages import WIRE_KINDS, Block, Message, canonical, text_block, tool_result_block
from worker_agent.structs import replace

COMPACTION_BETA = "compact-2026-09-04"

# Which betas let a block travel; any one of them is enough.
_NEEDS_BETA: Mapping[str, tuple[str, ...]] = {
    "compaction": (COMPACTION_BETA, "compact-2026-01-12"),
    "mcp_tool_use": ("mcp-client-",),
    "mcp_tool_result": ("mcp-client-",),
    "mcp_tool_listing": ("mcp-client-",),
    "fallback": ("server-side-fallback-",),
    "advisor_tool_result": ("advisor-tool-",),
    "tool_addition": ("mid-conversation-tool-changes-", "inline-tools-"),
    "tool_removal": ("mid-conversation-tool-changes-", "inline-tools-"),
    "container_upload": ("files-api-",),
}
_MEDIA = frozenset({"image", "document"})
_THINKING = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
_USER_ONLY = frozenset({"image", "document", "search_result", "tool_result", "container_upload"})
_FROM_USER = _USER_ONLY | {"text"}
_NOT_WRITTEN = _USER_ONLY | {"tool_reference"}  # what no model writes
_IN_RESULT = frozenset({"text", "image", "document", "search_result", "tool_reference"})
# What a block must have, and what it may have besides. Blocks that a model wrote go back with whatever they came with.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "search_result": ("content", "source", "title"),
    "container_upload": ("file_id",),
    "server_tool_use": ("id", "name", "input"),
    "tool_reference": ("tool_name",),
}
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("source", "transformations"),
    "document": ("source", "citations", "context", "title"),
    "search_result": ("content", "source", "title", "citations"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "container_upload": ("file_id",),
    "tool_reference": ("tool_name",),
}
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")

Place = tuple[int, int | None]  # a block, and one inside it or None for all of it

NO_RESULT = "This call has no result: it was interrupted before it ended, and it is unknown whether it had effects."
NO_OUTPUT = "(no output)"
CONTINUE = "Continue."
START = "(The conversation begins with the answer below.)"
LEFT_OUT = "[left out: the API cannot take this block here]"


Part = bytes | memoryview
"""The bytes of some blocks; a view where a stored message holds them."""
Piece = tuple[Part, ...]
"""A wire message with a comma behind; the last part is `PIECE_END`, or what stands for it."""
PIECE_END = b"]},"


class WireMessage(Struct, frozen=True):
    """A message as it is sent. `wire_parts` are the bytes of its blocks, several in one part where they were born
    together, to be joined by commas. `start` is the index of the first stored message in it; `paused` says that the API
    itself asked to have it back as the last one."""

    role: str
    blocks: list[Block]
    wire_parts: list[Part]
    start: int = 0
    paused: bool = False

    @property
    def wire(self) -> bytes:
        """The message as JSON."""
        return b"".join(self.piece)[:-1]

    @property
    def piece(self) -> Piece:
        """The message as JSON with a comma behind, in parts of which none is a copy of what a stored message holds."""
        parts: list[Part] = [b'{"role":"%b","content":[' % self.role.encode()]
        for part in self.wire_parts:
            parts += (part, b",")
        parts[-1 if self.wire_parts else len(parts) :] = [PIECE_END]
        return tuple(parts)

    def with_blocks(self, blocks: Iterable[Block]) -> WireMessage:
        changed = list(blocks)
        return replace(self, blocks=changed, wire_parts=[canonical(block) for block in changed])


def normalize(
    messages: Sequence[Message], info: ModelInfo, betas: Collection[str] = (), referable: Collection[str] = ()
) -> list[WireMessage]:
    """All four passes. The result is never empty, starts with a user message (or a compaction) and ends with one."""
    wire = normalize_messages_for_api(messages)
    wire = ensure_tool_result_pairing(wire)
    wire = strip_unsupported_blocks(wire, info, betas, referable)
    wire = strip_excess_media_items(wire, info.max_media)
    return close(open_(wire))


def open_(wire: list[WireMessage]) -> list[WireMessage]:
    """A conversation starts with the user, or with the compaction that stands for what came before."""
    if wire and wire[0].role == "assistant" and wire[0].blocks[0].get("type") != "compaction":
        return [_message("user", [text_block(START)], wire[0].start), *wire]
    return wire


def close(wire: list[WireMessage]) -> list[WireMessage]:
    """A request ends with the user: an answer at the end would be a prefill, unless the API asked to have it back."""
    if not wire or (wire[-1].role == "assistant" and not wire[-1].paused):
        start = wire[-1].start if wire else 0
        return [*wire, _message("user", [text_block(CONTINUE)], start)]
    return wire


def _message(role: str, blocks: list[Block], start: int) -> WireMessage:
    return WireMessage(role, blocks, [canonical(block) for block in blocks], start)


# --- pass 1 ----------------------------------------------------------------------------------------------------------


class _Draft(Struct):
    """A wire message that neighbours are still merged into. A user's blocks stand in three ranks: results,
    attachments, all else."""

    role: str
    start: int
    ranks: tuple[list[tuple[list[Block], Part]], ...]
    paused: bool = False

    def add(self, rank: int, blocks: list[Block], part: Part) -> None:
        if blocks:
            self.ranks[rank].append((blocks, part))

    def note_stop(self, reason: str | None) -> None:
        """Why its newest message stopped."""
        self.paused = reason == "pause_turn"

    def finish(self) -> WireMessage | None:
        pieces = [piece for rank in self.ranks for piece in rank]
        blocks = [block for piece, _ in pieces for block in piece]
        if not worth_sending(blocks):
            return None
        return WireMessage(self.role, blocks, [part for _, part in pieces], self.start, self.paused)


def normalize_messages_for_api(messages: Sequence[Message]) -> list[WireMessage]:
    """Pass 1. A message whose blocks are all fit to be sent keeps its own bytes."""
    wire: list[WireMessage] = []
    draft: _Draft | None = None
    for index, message in enumerate(messages):
        if refuses_media(message):
            _flush(wire, draft)
            wire, draft = _without_refused_media(wire, message.data["media"]), None
        if message.kind not in WIRE_KINDS or message.role not in ("user", "assistant"):
            continue
        if (covering := _compaction_at(message)) is not None:
            wire, draft = [], None
            message = replace(message, content=message.content[covering:], wire=b"") if covering else message
        if draft is None or draft.role != message.role:
            _flush(wire, draft)
            draft = _reopen(wire, message.role) or _Draft(message.role, index, ([], [], []))
        _draft_message(draft, message)
    _flush(wire, draft)
    return wire


def refuses_media(message: Message) -> bool:
    """Whether this is an API error that named media to leave out from here on."""
    return message.kind == "api_error" and "media" in message.data


def _compaction_at(message: Message) -> int | None:
    """Where in an answer the last compaction stands that worked; what came before it is covered by it."""
    if message.role != "assistant" or message.kind not in WIRE_KINDS:
        return None
    places = (i for i, block in enumerate(message.content) if _is_compaction(block))
    return max(places, default=None)


def _is_compaction(block: Any) -> bool:
    """A compaction whose content is null failed: it stands for nothing."""
    return isinstance(block, Mapping) and block.get("type") == "compaction" and _has_text(block.get("content"))


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def changes_the_past(message: Message) -> bool:
    """Whether this message changes how those before it are sent: media refused, or a compaction that covers them."""
    return refuses_media(message) or _compaction_at(message) is not None


def _flush(wire: list[WireMessage], draft: _Draft | None) -> None:
    if draft and (done := draft.finish()):
        wire.append(done)


def _reopen(wire: list[WireMessage], role: str) -> _Draft | None:
    """Between two messages of one role stood only one that is not sent: they are neighbours after all."""
    if not wire or wire[-1].role != role:
        return None
    last = wire.pop()
    draft = _Draft(role, last.start, ([], [], []))
    for block, part in zip(last.blocks, _parts_by_block(last), strict=True):
        draft.add(0 if block["type"] == "tool_result" else 2, [block], part)
    return draft


def _parts_by_block(message: WireMessage) -> Sequence[Part]:
    if len(message.wire_parts) == len(message.blocks):
        return message.wire_parts
    return [canonical(block) for block in message.blocks]


def _draft_message(draft: _Draft, message: Message) -> None:
    draft.note_stop(message.stop_reason)
    rank = 1 if message.kind == "attachment" and message.role == "user" else 2  # an answer keeps its order
    blocks = [fit for block in message.content if (fit := api_form(block, message.role)) is not None]
    results = [block for block in blocks if block["type"] == "tool_result"]
    if len(blocks) == len(message.content) and all(map(_same, blocks, message.content)) and len(results) in (0, len(blocks)):
        draft.add(0 if results else rank, blocks, memoryview(message.wire)[1:-1])
        return
    for block in blocks:
        draft.add(0 if block["type"] == "tool_result" else rank, [block], canonical(block))


def _same(one: Block, other: Block) -> bool:
    return one is other


def worth_sending(blocks: Iterable[Block]) -> bool:
    """Whether there is anything but thinking: an answer that was cut inside its thoughts says nothing."""
    return any(block["type"] not in _THINKING for block in blocks)


def api_form(block: Any, role: str) -> Block | None:
    """`block` as the API takes it from `role`: itself if it fits, a corrected copy, or None if it cannot be sent."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str) or not kind:
        return None
    if (role == "user" and kind not in _FROM_USER) or (role == "assistant" and kind in _NOT_WRITTEN):
        return None
    if any(name not in block for name in _REQUIRED.get(kind, ())):
        return None
    allowed = _OPTIONAL.get(kind) if role == "user" else None
    if "cache_control" in block or (allowed and any(name != "type" and name not in allowed for name in block)):
        keep = allowed or block.keys() - {"cache_control"}
        block = {name: value for name, value in block.items() if name == "type" or name in keep}
    form = _FORMS.get(kind)
    return form(block) if form else block


def _text_form(block: Block) -> Block | None:
    return block if _has_text(block.get("text")) else None


def _media_form(block: Block) -> Block | None:
    source = block.get("source")
    if not isinstance(source, Mapping) or not isinstance(source.get("type"), str):
        return None
    if source["type"] != "base64":
        return block
    fits = isinstance(source.get("data"), str) and source["data"] and isinstance(source.get("media_type"), str)
    return block if fits and (block["type"] != "image" or source["media_type"] in _IMAGE_TYPES) else None


def _tool_use_form(block: Block) -> Block | None:
    id, name, value = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(id, str) or not _TOOL_ID.fullmatch(id):
        return None
    fixed: dict[str, Any] = {}
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        fixed["name"] = re.sub(r"[^a-zA-Z0-9_-]", "_", str(name or ""))[:64] or "unknown"
    if not isinstance(value, dict):
        fixed["input"] = _object_in(value)
    return {**block, **fixed} if fixed else block


def _object_in(value: Any) -> Mapping[str, Any]:
    """An input that was stored as text (or as any mapping) as an object; what is none is the empty one."""
    if isinstance(value, Mapping):
        return dict(value)
    try:
        parsed = orjson.loads(value) if isinstance(value, str) else None
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {}


def _tool_result_form(block: Block) -> Block | None:
    id, content, is_error = block.get("tool_use_id"), block.get("content"), block.get("is_error", False)
    if not isinstance(id, str) or not _TOOL_ID.fullmatch(id):
        return None
    fixed: dict[str, Any] = {}
    if isinstance(content, (list, tuple)):
        inner = [fit for part in content if (fit := _inner_form(part)) is not None]
        if len(inner) != len(content) or not all(map(_same, inner, content)):
            fixed["content"] = inner
        content = inner
    elif content is not None and not isinstance(content, str):
        fixed["content"] = content = str(content)
    if is_error and not (content.strip() if isinstance(content, str) else content):
        fixed["content"] = NO_OUTPUT
    if not isinstance(is_error, bool):
        fixed["is_error"] = bool(is_error)
    return {**block, **fixed} if fixed else block


def _inner_form(block: Any) -> Block | None:
    if not isinstance(block, Mapping) or block.get("type") not in _IN_RESULT:
        return None
    if block["type"] == "tool_reference":
        return block if "tool_name" in block else None
    return api_form(block, "user")


def _thinking_form(block: Block) -> Block | None:
    return block if isinstance(block.get("thinking"), str) else None


def _redacted_form(block: Block) -> Block | None:
    return block if isinstance(block.get("data"), str) else None


def _compaction_form(block: Block) -> Block | None:
    return block if _is_compaction(block) else None


_FORMS: Mapping[str, Callable[[Block], Block | None]] = {
    "text": _text_form,
    "image": _media_form,
    "document": _media_form,
    "tool_use": _tool_use_form,
    "tool_result": _tool_result_form,
    "thinking": _thinking_form,
    "redacted_thinking": _redacted_form,
    "compaction": _compaction_form,
}


def _without_refused_media(wire: list[WireMessage], named: Any) -> list[WireMessage]:
    """Media that the API refused leaves the message that carried it. `named` are paths of the request it refused
    (`messages.3.content.0`, `messages.3.content.0.content.1`); where they lead nowhere, the last message with media."""
    targets = _targets(wire, named)
    if not targets:
        last = next((i for i in reversed(range(len(wire))) if _media_in(wire[i].blocks)), None)
        targets = {} if last is None else {last: None}
    return [
        message if i not in targets else message.with_blocks(_refuse(message.blocks, targets[i]))
        for i, message in enumerate(wire)
    ]


def _targets(wire: list[WireMessage], named: Any) -> dict[int, set[Place] | None]:
    """Message index → places that hold media."""
    found: dict[int, set[Place] | None] = {}
    for path in named if isinstance(named, (list, tuple)) else ():
        numbers = [int(n) for n in re.findall(r"\d+", path)] if isinstance(path, str) else []
        if len(numbers) < 2 or numbers[0] >= len(wire) or numbers[1] >= len(wire[numbers[0]].blocks):
            continue
        if _media_in([wire[numbers[0]].blocks[numbers[1]]]):
            place = (numbers[1], numbers[2] if len(numbers) > 2 else None)
            found[numbers[0]] = (found.get(numbers[0]) or set()) | {place}
    return found


def _refuse(blocks: list[Block], places: set[Place] | None) -> list[Block]:
    def text_for(outer: int, inner: int | None, kind: str) -> str | None:
        refused = places is None or (outer, None) in places or (outer, inner) in places
        return f"[{kind} left out: the API refused it]" if refused else None

    return _replace_media(blocks, text_for)


def _replace_media(blocks: Sequence[Block], text_for: Callable[[int, int | None, str], str | None]) -> list[Block]:
    """Copies of `blocks` with a text in place of the media for which `text_for(block, inner block, type)` gives one."""
    changed: list[Block] = []
    for i, block in enumerate(blocks):
        if block["type"] in _MEDIA:
            text = text_for(i, None, block["type"])
            changed.append(block if text is None else text_block(text))
        elif block["type"] == "tool_result" and isinstance(block.get("content"), (list, tuple)):
            changed.append(_replace_in_result(block, text_for, i))
        else:
            changed.append(block)
    return changed


def _replace_in_result(block: Block, text_for: Callable[[int, int | None, str], str | None], outer: int) -> Block:
    content = []
    for k, inner in enumerate(block["content"]):
        text = text_for(outer, k, inner["type"]) if inner.get("type") in _MEDIA else None
        content.append(inner if text is None else text_block(text))
    return block if all(map(_same, content, block["content"])) else {**block, "content": content}


def _media_in(blocks: Iterable[Block]) -> int:
    """How many images and documents are in `blocks`, those inside results included."""
    count = 0
    for block in blocks:
        if block["type"] in _MEDIA:
            count += 1
        elif block["type"] == "tool_result" and isinstance(block.get("content"), (list, tuple)):
            count += sum(inner.get("type") in _MEDIA for inner in block["content"])
    return count


def media_in(wire: Iterable[WireMessage]) -> int:
    return sum(_media_in(message.blocks) for message in wire)


# --- pass 2 ----------------------------------------------------------------------------------------------------------


def ensure_tool_result_pairing(wire: Sequence[WireMessage], seen: Collection[str] = ()) -> list[WireMessage]:
    """Pass 2. `seen` are ids of calls in an earlier part of the conversation: a call that repeats one is dropped."""
    known = set(seen)
    out: list[WireMessage] = []
    for message in wire:
        if message.role == "assistant":
            _pair_answer(out, _first_uses(message, known))
        else:
            _pair_results(out, message)
    _answer_open_calls(out)
    return out


def _first_uses(message: WireMessage, known: set[str]) -> WireMessage | None:
    """The answer without calls whose id was used before; None if nothing is left of it."""
    kept = []
    for block in message.blocks:
        if block["type"] == "tool_use":
            if block["id"] in known:
                continue
            known.add(block["id"])
        kept.append(block)
    if len(kept) == len(message.blocks):
        return message
    return message.with_blocks(kept) if worth_sending(kept) else None


def _pair_answer(out: list[WireMessage], message: WireMessage | None) -> None:
    if message is None:
        return
    _answer_open_calls(out)
    _append(out, message)


def _pair_results(out: list[WireMessage], message: WireMessage) -> None:
    asked = _asked(out)
    results = [b for b in message.blocks if b["type"] == "tool_result"]
    if [b["tool_use_id"] for b in results] == asked:
        _append(out, message)
        return
    by_id = {b["tool_use_id"]: b for b in reversed(results)}
    rest = [b for b in message.blocks if b["type"] != "tool_result"]
    paired = [by_id.get(id) or _missing(id) for id in asked]
    if paired or rest:
        _append(out, message.with_blocks([*paired, *rest]))


def _answer_open_calls(out: list[WireMessage]) -> None:
    if asked := _asked(out):
        out.append(_message("user", [_missing(id) for id in asked], out[-1].start))


def _asked(out: list[WireMessage]) -> list[str]:
    if not out or out[-1].role != "assistant":
        return []
    return [b["id"] for b in out[-1].blocks if b["type"] == "tool_use"]


def _missing(id: str) -> Block:
    return tool_result_block(id, NO_RESULT, is_error=True)


def _append(out: list[WireMessage], message: WireMessage) -> None:
    """Merges where a message between two of one role was dropped."""
    if not out or out[-1].role != message.role:
        out.append(message)
        return
    last = out.pop()
    out.append(
        WireMessage(
            last.role,
            [*last.blocks, *message.blocks],
            [*last.wire_parts, *message.wire_parts],
            last.start,
            message.paused,
        )
    )


# --- pass 3 ----------------------------------------------------------------------------------------------------------


def strip_unsupported_blocks(
    wire: Sequence[WireMessage], info: ModelInfo, betas: Collection[str] = (), referable: Collection[str] = ()
) -> list[WireMessage]:
    """Pass 3. A compaction that cannot travel leaves its summary as text; a message that would be empty says so. Of tools
    only the `referable` ones may be referenced."""
    last = len(wire) - 1
    return [_supported(message, info, betas, referable, is_last=at == last) for at, message in enumerate(wire)]


def _supported(
    message: WireMessage, info: ModelInfo, betas: Collection[str], referable: Collection[str], *, is_last: bool
) -> WireMessage:
    kept = [fit for block in message.blocks if (fit := _supported_block(block, info, betas, referable)) is not None]
    if message.role == "assistant":
        kept = _server_pairs(kept, waits=message.paused and is_last)
    if len(kept) == len(message.blocks) and all(map(_same, kept, message.blocks)):
        return message
    return message.with_blocks(kept if worth_sending(kept) else [*kept, text_block(LEFT_OUT)])


def _server_pairs(blocks: list[Block], *, waits: bool) -> list[Block]:
    """Without calls of server tools that have no result, and results that have no call; `waits` says that the server is to go
    on from here, so that its last calls may stand alone."""
    calls = {block.get("id") for block in blocks if block["type"] in _SERVER_CALLS}
    results = {block.get("tool_use_id") for block in blocks if _is_server_result(block)}
    if calls == results:
        return blocks
    answered = calls if waits else calls & results
    return [
        block
        for block in blocks
        if not (block["type"] in _SERVER_CALLS and block.get("id") not in answered)
        and not (_is_server_result(block) and block.get("tool_use_id") not in calls)
    ]


def _is_server_result(block: Block) -> bool:
    return bool(block["type"].endswith("_tool_result"))


def _supported_block(block: Block, info: ModelInfo, betas: Collection[str], referable: Collection[str]) -> Block | None:
    kind = block["type"]
    if kind == "tool_result" and any(name not in referable for name in references(block)):
        kept = [part for part in block["content"] if part["type"] != "tool_reference" or part["tool_name"] in referable]
        return {**block, "content": kept or NO_OUTPUT}
    if info.plain and (kind in _THINKING or kind in _SERVER_CALLS):  # their results go with the calls
        return None
    if kind == "thinking" and info.known:
        signature = block.get("signature")
        return block if isinstance(signature, str) and signature else None
    needed = _NEEDS_BETA.get(kind)
    if needed is None or any(beta.startswith(needed) for beta in betas):
        return block
    return text_block(block["content"]) if kind == "compaction" else None


def references(block: Block) -> list[str]:
    """The tools that a result references, by name."""
    content = block.get("content")
    if not isinstance(content, (list, tuple)):
        return []
    return [part["tool_name"] for part in content if part.get("type") == "tool_reference" and "tool_name" in part]


# --- pass 4 ----------------------------------------------------------------------------------------------------------


def strip_excess_media_items(wire: Sequence[WireMessage], limit: int) -> list[WireMessage]:
    """Pass 4. At most `limit` images and documents; the oldest go first, a text stands in their place.

    A tenth of the limit goes at a time: if each new image pushed an old one out, every turn would break the cache."""
    total = media_in(wire)
    if total <= limit:
        return list(wire)
    step = max(1, limit // 10)
    excess = min(total, -(-(total - limit) // step) * step)
    out = []
    for message in wire:
        here = min(_media_in(message.blocks), excess) if excess else 0
        out.append(message.with_blocks(_replace_media(message.blocks, _first(here))) if here else message)
        excess -= here
    return out


def _first(count: int) -> Callable[[int, int | None, str], str | None]:
    left = iter(range(count))
    return lambda outer, inner, kind: None if next(left, None) is None else f"[{kind} left out: too many in one request]"
