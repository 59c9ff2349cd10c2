"""One message, looked at once: its shape checked, and what the checks across messages need to know of it.

Most messages of a request were in the request before, byte for byte. Their `MessageFacts` are reused, so that checking
a long conversation costs in each turn what is new in it. Nothing here depends on model or headers.
"""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

MEDIA_TOKENS = 1000  # so that as many images as are allowed fit the window
MAX_IMAGE_BYTES = 5 * 1024 * 1024
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")

_COMMON = {"type", "cache_control"}
# block type -> (required keys, optional keys)
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "text": ({"text"}, {"citations"}),
    "image": ({"source"}, {"transformations"}),
    "document": ({"source"}, {"citations", "context", "title"}),
    "search_result": ({"content", "source", "title"}, {"citations"}),
    "thinking": ({"thinking", "signature"}, set()),
    "redacted_thinking": ({"data"}, set()),
    "tool_use": ({"id", "name", "input"}, {"caller", "toolset_name"}),
    "tool_result": ({"tool_use_id"}, {"content", "is_error"}),
    "server_tool_use": ({"id", "name", "input"}, {"caller"}),
    "container_upload": ({"file_id"}, set()),
    "compaction": ({"content"}, {"encrypted_content", "signature", "tool_changes"}),
    "tool_reference": ({"tool_name"}, set()),
}
_SERVER_RESULTS = {
    f"{name}_tool_result"
    for name in ("web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution",
                 "tool_search", "advisor")
}  # fmt: skip
_BETA_BLOCKS = {
    "compaction": ("compact-",),
    "mcp_tool_use": ("mcp-client-",),
    "mcp_tool_result": ("mcp-client-",),
    "mcp_tool_listing": ("mcp-client-",),
    "fallback": ("server-side-fallback-",),
    "advisor_tool_result": ("advisor-tool-",),
    "tool_addition": ("mid-conversation-tool-changes-", "inline-tools-"),
    "tool_removal": ("mid-conversation-tool-changes-",),
}
_BY_ROLE = {
    "user": {"text", "image", "document", "search_result", "tool_result", "container_upload", "mcp_tool_listing"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "compaction", "mcp_tool_use",
                  "mcp_tool_result", "fallback", *_SERVER_RESULTS},
    "system": {"text", "tool_addition", "tool_removal"},
}  # fmt: skip
_IN_RESULT = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
_MESSAGE_BETAS = {
    "clear_at": "mid-conversation-system-clear-at-",
    "effort": "mid-conversation-output-config-",
    "output_config": "mid-conversation-output-config-",
}


@dataclass(slots=True)
class MessageFacts:
    """Positions are indices into the message's content. `digests` and `tokens` have one entry per block, in order.

    `error` is (path inside the message, text) of the first fault. `betas` pairs a path with the header prefixes of
    which one is needed. `too_large` are refusals that a client may cause honestly: oversized images.
    """

    role: str = ""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    marks: list[tuple[int, str, bool]] = field(default_factory=list)  # block, ttl, is a place for a cache entry
    tool_uses: list[tuple[int, str]] = field(default_factory=list)
    results: list[tuple[int, str]] = field(default_factory=list)
    references: list[tuple[int, str]] = field(default_factory=list)  # tools that results name
    other: int | None = None  # first block that is no tool_result
    images: int = 0
    sides: list[tuple[int, int]] = field(default_factory=list)  # block, longest side in pixels
    remote_media: int | None = None
    thinking: list[int] = field(default_factory=list)
    compaction: int | None = None
    betas: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    error: tuple[str, str] | None = None
    too_large: tuple[str, str] | None = None


class _Fault(Exception):
    pass


def look_at(message: Any) -> MessageFacts:
    """The facts of one message; a fault of shape is in `.error`, never raised."""
    facts = MessageFacts()
    try:
        _message(message, facts)
    except _Fault as fault:
        facts.error = fault.args
    return facts


def check_mark(mark: Any, path: str) -> str:
    """The ttl of a `cache_control` value, or a `_Fault`/`Refusal`-ready ValueError with the text."""
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise ValueError(f"{path}.type: Input should be 'ephemeral'")
    if set(mark) - {"type", "ttl"}:
        raise ValueError(f"{path}.{sorted(set(mark) - {'type', 'ttl'})[0]}: Extra inputs are not permitted")
    ttl = mark.get("ttl", "5m")
    if ttl not in ("5m", "1h"):
        raise ValueError(f"{path}.ttl: Input should be '5m' or '1h'")
    return ttl


def tokens_of(data: bytes) -> int:
    """The fake's estimate: four bytes of JSON a token, rounded up."""
    return (len(data) + 3) // 4


def digest_of(role: str, data: bytes) -> bytes:
    return blake2b(role.encode() + b"\0" + data, digest_size=16).digest()


def strip_marks(value: Any) -> Any:
    """`value` (a block or a list of blocks) without `cache_control`, at any depth; the same object if it has none."""
    if isinstance(value, list):
        stripped = [strip_marks(v) for v in value]
        return value if all(a is b for a, b in zip(value, stripped)) else stripped
    if not isinstance(value, dict):
        return value
    content = value.get("content")
    bare = strip_marks(content) if isinstance(content, list) else content
    if "cache_control" not in value and bare is content:
        return value
    return {k: (bare if k == "content" else v) for k, v in value.items() if k != "cache_control"}


def _message(message: Any, facts: MessageFacts) -> None:
    if not isinstance(message, dict):
        raise _Fault("", "Input should be an object")
    role = message.get("role")
    if role not in _BY_ROLE:
        raise _Fault(".role", "Input should be 'user', 'assistant' or 'system'")
    facts.role = role
    for key in message.keys() - {"role", "content"}:
        if key not in _MESSAGE_BETAS:
            raise _Fault(f".{key}", "Extra inputs are not permitted")
        facts.betas.append((f".{key}", (_MESSAGE_BETAS[key],)))
    content = message.get("content")
    if not isinstance(content, list | str):
        raise _Fault(".content", "Field required" if content is None else "Input should be a valid array or string")
    if not content:
        raise _Fault("", "all messages must have non-empty content except for the optional final assistant message")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    facts.blocks = content
    for index, block in enumerate(content):
        _block(block, index, facts)


def _block(block: Any, index: int, facts: MessageFacts) -> None:
    path = f".content.{index}"
    kind = _shape(block, path, _BY_ROLE[facts.role] | {"text"}, facts)
    if kind != "tool_result" and facts.other is None:
        facts.other = index
    check = _CHECKS.get(kind)
    if check:
        check(block, path, index, facts)
    if "cache_control" in block and block["cache_control"] is not None:
        _mark(block, path, index, facts, True)
    bare = strip_marks(block)
    data = orjson.dumps(bare)
    facts.digests.append(digest_of(facts.role, data))
    facts.tokens.append(_block_tokens(bare, data))


def _shape(block: Any, path: str, allowed: set[str], facts: MessageFacts) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise _Fault(f"{path}.type", "Field required")
    kind = block["type"]
    if kind not in allowed:
        expected = ", ".join(f"'{name}'" for name in sorted(allowed))
        raise _Fault(path, f"Input tag '{kind}' found using 'type' does not match any of the expected tags: {expected}")
    if kind in _BETA_BLOCKS:
        facts.betas.append((path, _BETA_BLOCKS[kind]))
    if kind in _KEYS:
        required, optional = _KEYS[kind]
        keys = block.keys()
        for key in required - keys:
            raise _Fault(f"{path}.{kind}.{key}", "Field required")
        for key in keys - required - optional - _COMMON:
            raise _Fault(f"{path}.{kind}.{key}", "Extra inputs are not permitted")
    return kind


def _mark(block: dict[str, Any], path: str, index: int, facts: MessageFacts, place: bool) -> None:
    if block["type"] in ("thinking", "redacted_thinking"):
        raise _Fault(f"{path}.{block['type']}.cache_control", "Extra inputs are not permitted")
    try:
        facts.marks.append((index, check_mark(block["cache_control"], f"{path}.cache_control"), place))
    except ValueError as fault:
        where, text = str(fault).split(": ", 1)
        raise _Fault(where, text) from None


def _block_tokens(bare: dict[str, Any], data: bytes) -> int:
    """Base64 media count `MEDIA_TOKENS` each, whatever their size."""
    size, media = len(data), 0
    inner = bare.get("content")
    for block in (bare, *(inner if isinstance(inner, list) else ())):
        source = block.get("source") if isinstance(block, dict) else None
        if isinstance(source, dict) and isinstance(source.get("data"), str) and source.get("type") == "base64":
            size -= len(source["data"])
            media += MEDIA_TOKENS
    return (size + 3) // 4 + media


def _text(block: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    if not isinstance(block["text"], str):
        raise _Fault(f"{path}.text.text", "Input should be a valid string")
    if not block["text"]:
        raise _Fault("", "text content blocks must be non-empty")
    if facts.role == "user" and block.get("citations"):
        raise _Fault(f"{path}.text.citations", "citations are not permitted on user text blocks")


def _thinking(block: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    keys = ("thinking", "signature") if block["type"] == "thinking" else ("data",)
    for key in keys:
        if not isinstance(block[key], str):
            raise _Fault(f"{path}.{block['type']}.{key}", "Input should be a valid string")
    facts.thinking.append(index)


def _tool_use(block: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    if not isinstance(block["id"], str) or not TOOL_ID.match(block["id"]):
        raise _Fault(f"{path}.tool_use.id", "String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block["name"], str) or not TOOL_NAME.match(block["name"]):
        raise _Fault(f"{path}.tool_use.name", "String should match pattern '^[a-zA-Z0-9_-]{1,64}$'")
    if not isinstance(block["input"], dict):
        raise _Fault(f"{path}.tool_use.input", "Input should be a valid dictionary")
    facts.tool_uses.append((index, block["id"]))


def _tool_result(block: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    if not isinstance(block["tool_use_id"], str):
        raise _Fault(f"{path}.tool_result.tool_use_id", "Input should be a valid string")
    if not isinstance(block.get("is_error", False), bool | None):
        raise _Fault(f"{path}.tool_result.is_error", "Input should be a valid boolean")
    content = block.get("content")
    if block.get("is_error") and not content:
        raise _Fault(f"{path}.tool_result", "content cannot be empty if `is_error` is true")
    if not isinstance(content, str | list | None):
        raise _Fault(f"{path}.tool_result.content", "Input should be a valid array or string")
    for number, inner in enumerate(content if isinstance(content, list) else ()):
        _inside_result(inner, f"{path}.tool_result.content.{number}", index, facts)
    facts.results.append((index, block["tool_use_id"]))


def _inside_result(inner: Any, path: str, index: int, facts: MessageFacts) -> None:
    kind = _shape(inner, path, _IN_RESULT, facts)
    if kind in ("text", "image", "document"):
        _CHECKS[kind](inner, path, index, facts)
    if kind == "tool_reference":
        facts.references.append((index, inner["tool_name"]))
    if inner.get("cache_control") is not None:
        _mark(inner, path, index, facts, False)


def _media(block: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    kind, source = block["type"], block["source"]
    if not isinstance(source, dict) or not isinstance(source.get("type"), str):
        raise _Fault(f"{path}.{kind}.source", "Input should be an object")
    if kind == "image":
        facts.images += 1
    if source["type"] in ("url", "file"):
        facts.remote_media = index
    if kind == "image" and source["type"] == "base64":
        _image(source, path, index, facts)


def _image(source: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    path = f"{path}.image.source.base64"
    if source.get("media_type") not in _IMAGE_TYPES:
        allowed = ", ".join(f"'{t}'" for t in _IMAGE_TYPES)
        raise _Fault(f"{path}.media_type", f"Input should be {allowed}")
    data = source.get("data")
    if not isinstance(data, str) or not data:
        raise _Fault(f"{path}.data", "Field required")
    if len(data) > MAX_IMAGE_BYTES:
        text = f"image exceeds 5 MB maximum: {len(data)} bytes > {MAX_IMAGE_BYTES} bytes"
        facts.too_large = facts.too_large or (path, text)
    side = _png_side(data)
    if side:
        facts.sides.append((index, side))


def _png_side(data: str) -> int | None:
    """The longest side of a base64 PNG in pixels; None for anything else."""
    try:
        head = base64.b64decode(data[:32])
    except ValueError:
        return None
    if head[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    return max(struct.unpack(">II", head[16:24]))


def _compaction(block: dict[str, Any], path: str, index: int, facts: MessageFacts) -> None:
    if block["content"] == "":
        raise _Fault(f"{path}.compaction.content", "String should have at least 1 character")
    if facts.compaction is None:
        facts.compaction = index


_CHECKS = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _thinking,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _media,
    "document": _media,
    "compaction": _compaction,
}
