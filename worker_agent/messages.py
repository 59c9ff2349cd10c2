"""Frozen messages and their canonical bytes.

Rules of this file:

1. A message is serialised once, when it is born. The same bytes go to the transcript and to the wire, so that what is
   sent stays byte-identical from turn to turn and the provider's prompt cache holds.
2. Content is always a tuple of blocks; a plain string becomes one text block. Empty text blocks are never born.
3. Text is cleaned on the way in: lone surrogates and NUL become U+FFFD. Nothing that is stored can fail to be sent.
4. `kind` says why a message exists. Only `WIRE_KINDS` are ever sent; the others are for observers and for recovery.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import orjson
from msgspec import Struct, field
from msgspec.structs import force_setattr

Role = Literal["user", "assistant", "system"]
Block = Mapping[str, Any]

Kind = Literal[
    "prompt",  # what a person typed, or the spawn prompt of a worker
    "answer",  # what the model said
    "tool_results",  # the results of one answer's tool calls, in the order asked
    "attachment",  # notifications, SendMessage, memory, skills, changed files: from the system, between turns
    "meta",  # a nudge of the loop to the model: go on, budget, stop hook
    "boundary",  # a compaction lies here; `data` has trigger, tokens before, transcript position
    "summary",  # what a compaction made of everything before its boundary
    "view",  # a decision about what is sent of the history (spilled, cleared, collapsed …); `data` is the decision
    "notice",  # display only
    "api_error",  # an API error shown to an observer; `data["media"]` names blocks to leave out from then on
]
CACHE_ANCHOR = "cache_anchor"  # in `data`: what comes behind this message may be replaced, it and all before it stays
WIRE_KINDS: frozenset[str] = frozenset({"prompt", "answer", "tool_results", "attachment", "meta", "summary"})


class Usage(Struct, frozen=True):
    """Tokens of one model call. `input` counts uncached tokens only; see `prompt` for the size of the prompt."""

    input: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_read: int = 0
    output: int = 0

    @property
    def prompt(self) -> int:
        return self.input + self.cache_write_5m + self.cache_write_1h + self.cache_read

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cache_write_5m + other.cache_write_5m,
            self.cache_write_1h + other.cache_write_1h,
            self.cache_read + other.cache_read,
            self.output + other.output,
        )


def clean(text: str) -> str:
    """`text` without lone surrogates and NUL (each becomes U+FFFD)."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any) -> Any:
    """`value` with every string in it cleaned, keys included; containers become plain dicts and lists."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(k)): clean_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_json(v) for v in value]
    return value


def canonical(value: Any) -> bytes:
    """Compact JSON of `value` with keys in the order they were born in."""
    return orjson.dumps(value)


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def tool_result_block(tool_use_id: str, content: str | Sequence[Block], *, is_error: bool = False) -> Block:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
    if is_error:
        block["is_error"] = True
    return block


def new_message_id() -> str:
    return uuid.uuid4().hex


class Message(Struct, frozen=True, kw_only=True, weakref=True):
    """One message of a conversation.

    `wire` is the canonical JSON of its content array, without role; `usage`, `stop_reason`, `model` and `response_id`
    (the API's message id) belong to answers. `meta` marks user messages a person did not write. `data` carries what
    `kind` needs (JSON values only). `at` is seconds since the epoch, UTC.
    """

    role: Role
    content: tuple[Block, ...]
    kind: Kind
    id: str = field(default_factory=new_message_id)
    meta: bool = False
    usage: Usage | None = None
    stop_reason: str | None = None
    model: str | None = None
    response_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)
    wire: bytes = b""

    def __post_init__(self) -> None:
        if self.wire:
            return
        try:
            if any("\x00" in b["text"] for b in self.content if b.get("type") == "text"):
                raise TypeError
            wire = canonical(self.content)
        except (TypeError, orjson.JSONEncodeError):
            force_setattr(self, "content", tuple(clean_json(b) for b in self.content))
            wire = canonical(self.content)
        force_setattr(self, "wire", wire)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def text(self) -> str:
        """The text blocks, joined without a seam."""
        return "".join(b["text"] for b in self.content if b.get("type") == "text")

    @property
    def tool_uses(self) -> list[Block]:
        return [b for b in self.content if b.get("type") == "tool_use"]

    @property
    def tool_results(self) -> list[Block]:
        return [b for b in self.content if b.get("type") == "tool_result"]


def _blocks(content: str | Iterable[Block]) -> tuple[Block, ...]:
    blocks = (text_block(content),) if isinstance(content, str) else tuple(content)
    return tuple(b for b in blocks if not (b.get("type") == "text" and not b.get("text")))


def user(content: str | Iterable[Block], *, kind: Kind = "prompt", meta: bool = False, **fields: Any) -> Message:
    return Message(role="user", content=_blocks(content), kind=kind, meta=meta, **fields)


def assistant(content: str | Iterable[Block], **fields: Any) -> Message:
    return Message(role="assistant", content=_blocks(content), kind="answer", **fields)


def notice(text: str, *, kind: Kind = "notice", **data: Any) -> Message:
    return Message(role="system", content=_blocks(text), kind=kind, meta=True, data=data)
