"""What a server answers, as blocks for a model.

Text and pictures that a model can look at travel as they are; any other file is put beside the session's files and named.
Nothing that a server says of its data is believed: the kind of a picture is read off its bytes.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from worker_agent import disk
from worker_agent.messages import Block, clean, text_block

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ReadResourceResult, TextResourceContents

MAX_IMAGE = 5 * 1024 * 1024  # bytes of base64
MAX_FILE = 256 * 1024 * 1024  # bytes of one file
MAX_BLOCKS = 500


def of_call(answer: CallToolResult, directory: Path) -> list[Block]:
    """The blocks of a call's result; files go to `directory`. Blocks on disk."""
    blocks = [block for part in answer.content[:MAX_BLOCKS] for block in _part(part, directory)]
    if len(answer.content) > MAX_BLOCKS:
        blocks.append(text_block(f"[{len(answer.content) - MAX_BLOCKS:,} more parts are left out]"))
    if not blocks and answer.structured_content is not None:
        blocks = [text_block(orjson.dumps(answer.structured_content, option=orjson.OPT_INDENT_2).decode())]
    return blocks


def of_resource(answer: ReadResourceResult, directory: Path) -> list[Block]:
    """The blocks of a resource that was read."""
    return [block for part in answer.contents[:MAX_BLOCKS] for block in _resource(part, directory)]


def _part(part: Any, directory: Path) -> list[Block]:
    match part.type:
        case "text":
            return [text_block(part.text)] if part.text else []
        case "image" | "audio":
            return _data(part.data, part.mime_type, part.type, directory)
        case "resource":
            return _resource(part.resource, directory)
        case "resource_link":
            about = f" ({part.description})" if part.description else ""
            return [text_block(f"Resource {part.name}: {part.uri}{about}")]
        case _:
            return [text_block(f"[left out: a part of an unknown kind, {clean(str(part.type))[:40]}]")]


def _resource(resource: TextResourceContents | BlobResourceContents, directory: Path) -> list[Block]:
    blob = getattr(resource, "blob", None)
    if blob is None:
        return [text_block(f"Resource {resource.uri}:\n{getattr(resource, 'text', '')}")]
    return _data(blob, resource.mime_type or "", f"resource {resource.uri}", directory)


def _data(text: str, mime: str, what: str, directory: Path) -> list[Block]:
    """A picture that a model can look at; a note and a file for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return [text_block(f"[left out: {what}, whose data is no base64]")]
    if (kind := image_type(data)) is not None and len(text) <= MAX_IMAGE:
        return [{"type": "image", "source": {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}}]
    if len(data) > MAX_FILE:
        return [text_block(f"[left out: {what}, {len(data):,} bytes]")]
    path = directory / _name(data, mime)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        disk.replace(path, data, mode=0o600)
    except OSError as error:
        return [text_block(f"[left out: {what}, {len(data):,} bytes; it could not be written to a file: {error.strerror}]")]
    return [text_block(f"[{what}, {clean(mime)[:80] or 'of an unknown type'}, {len(data):,} bytes: {path}]")]


def _name(data: bytes, mime: str) -> str:
    ending = mimetypes.guess_extension(mime.partition(";")[0].strip()) or ""
    return f"mcp-{blake2b(data, digest_size=8).hexdigest()}{ending if re.fullmatch(r'[.][a-z0-9]+', ending) else ''}"


def image_type(data: bytes) -> str | None:
    """The media type of an image that a model can look at, by its first bytes."""
    known: Mapping[bytes, str] = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg",
                                  b"GIF87a": "image/gif", b"GIF89a": "image/gif"}  # fmt: skip
    found = next((kind for head, kind in known.items() if data.startswith(head)), None)
    return "image/webp" if found is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP" else found
