"""`Read`: text with line numbers, images, PDF pages, notebooks; everything else is refused in words.

1. Up to `settings.read_bytes` a file is read at once, in the event loop: a thread would cost more than the read. Larger
   files are streamed in a thread up to the last line wanted; memory stays flat.
2. The same part of an unchanged file, read again, is answered in one line. Once: should the first answer have left the
   context since, asking again brings the text.
3. Lines end at "\\n" only, as ripgrep counts them, so that line numbers of Grep and Read agree.
4. A PDF is given as text, which is cheap and which every endpoint takes; only where it has no text (a scan) and is
   small does it go out as a document block, for the model to look at.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import re
from collections.abc import Sequence
from operator import add
from typing import BinaryIO

from msgspec import Struct

from worker_agent import disk, tool_facts
from worker_agent.errors import ToolError
from worker_agent.messages import Block, text_block
from worker_agent.structs import replace
from worker_agent.tools import files
from worker_agent.tools.base import Input, ReadFile, Tool, ToolContext, ToolResult
from worker_agent.tools.builtin import notebook_text, pdf
from worker_agent.words import counted

LINE_CAP = 2_000  # characters of one line shown
IMAGE_CAP = 5 * 1024 * 1024  # bytes of base64 of one image
DOCUMENT_CAP = 4 * 1024 * 1024  # bytes of a PDF sent as it is
MOST_PREFIXES = 10_000  # line numbers kept as text
_CHUNK = 65_536
_PREFIXES: list[str] = []


class Read(Tool):
    facts = tool_facts.READ
    description = (
        'Reads a file: text with line numbers, images (png, jpeg, gif, webp), PDF (`pages`, e.g. "3-7"), notebooks. '
        "Shows up to 2,000 lines from `offset` on (the first line is 1); use `offset` and `limit` for parts of long "
        "files. For directories use Glob."
    )
    input_schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "Absolute path of the file"},
            "offset": {"type": "integer", "minimum": 0, "description": "Number of the first line to show"},
            "limit": {"type": "integer", "minimum": 1, "description": "How many lines to show"},
            "pages": {"type": "string", "description": 'PDF only: a page or a range of up to 20, e.g. "3" or "3-7"'},
        },
        "required": ["file_path"],
        "additionalProperties": False,
    }
    result_cap = None  # bounded by read_lines and read_bytes

    async def call(self, input: Input, context: ToolContext) -> ToolResult:
        target = files.resolve(input["file_path"], context)
        with files.open_regular(target) as file, files.explained(target):
            info = os.fstat(file.fileno())
            if info.st_size <= context.settings.read_bytes:
                data = disk.read_up_to(file, context.settings.read_bytes + 1)
                if len(data) <= context.settings.read_bytes:
                    return await _small(input, context, target, data, info)
                file.seek(0)
            return await _large(input, context, target, file, info)

    def activity(self, input: Input) -> str:
        start = input.get("offset")
        return f"Read {input.get('file_path', '')}" + (f" from line {start}" if start else "")


class _Range(Struct, frozen=True):
    """Lines wanted: `first` counts from 1."""

    first: int
    count: int

    @classmethod
    def of(cls, input: Input, context: ToolContext) -> _Range:
        most = context.settings.read_lines
        return cls(max(1, input.get("offset", 1)), min(input.get("limit", most), most))


# ── small files: the bytes are at hand ───────────────────────────────────────────────────────────────────────────────


async def _small(input: Input, context: ToolContext, target: files.Target, data: bytes, info: os.stat_result) -> ToolResult:
    media = image_type(data)
    if media is None and not data.startswith(b"%PDF-"):
        return _small_text(input, context, target, data, info)
    content = _image(target, media, data) if media else await _pdf(input, context, target, data)
    context.read_files[target.real] = replace(files.remembered(info, data), partial=media is None)
    return ToolResult(content, data={"filePath": str(target.path)})


def _small_text(input: Input, context: ToolContext, target: files.Target, data: bytes, info: os.stat_result) -> ToolResult:
    text = files.decode(data)
    if text is None:
        raise _binary(target, data, info.st_size)
    if _is_notebook(target):
        rendered = notebook_text.render(data, target)
        return _notebook(rendered, _Range.of(input, context), context, target, files.remembered(info, data))
    wanted = _Range.of(input, context)
    known, record = context.read_files.get(target.real), files.remembered(info, data)
    same = known is not None and known.digest == record.digest
    if same and (answer := _unchanged(context, target, wanted)):
        return answer
    shown = _Shown.of_lines(text.lines(), wanted, context)
    _remember(context, target, record, wanted, shown.at_end, keep=same)
    return shown.result(target, wanted)


def _unchanged(context: ToolContext, target: files.Target, wanted: _Range) -> ToolResult | None:
    known = context.read_files[target.real]
    key = (wanted.first, wanted.count)
    if key not in known.ranges:
        return None
    ranges = tuple(r for r in known.ranges if r != key)
    context.read_files[target.real] = replace(known, ranges=ranges, order=files.next_order())
    return ToolResult(
        f"{target.shown} is unchanged since you read these lines; the earlier result holds. (Read once more to see it again.)",
        data={"type": "file_unchanged", "filePath": str(target.path)},
    )


def _remember(
    context: ToolContext, target: files.Target, record: ReadFile, wanted: _Range, at_end: bool, *, keep: bool
) -> None:
    """Note what was shown; `keep` when the file is the one seen before, so that parts add up to the whole."""
    before = context.read_files.get(target.real) if keep else None
    ranges = (before.ranges if before else ()) + ((wanted.first, wanted.count),)
    whole = wanted.first == 1 and at_end
    partial = not whole and (before is None or before.partial) and not (at_end and _reaches(ranges, wanted.first))
    context.read_files[target.real] = replace(record, ranges=ranges, partial=partial)


def _reaches(ranges: Sequence[tuple[int, int]], line: int) -> bool:
    """Whether the ranges show every line before `line`."""
    seen = 1
    for first, count in sorted(ranges):
        if first <= seen:
            seen = max(seen, first + count)
    return seen >= line


# ── text, numbered ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Shown(Struct):
    """Numbered lines within the limits. `at_end`: the file has no line after them; `total` is None when unknown."""

    lines: list[str]
    first: int
    at_end: bool
    total: int | None
    full: bool  # stopped by the byte limit

    @classmethod
    def of_lines(cls, lines: Sequence[str], wanted: _Range, context: ToolContext) -> _Shown:
        piece = lines[wanted.first - 1 : wanted.first - 1 + wanted.count]
        numbered = _plain(piece, wanted.first, context.settings.read_bytes)
        if numbered is None:
            numbered, room = [], context.settings.read_bytes
            for number, line in enumerate(piece, wanted.first):
                room -= len(text := _numbered(number, line))
                if room < 0 and numbered:
                    break
                numbered.append(text)
        last = wanted.first + len(numbered) - 1
        return cls(numbered, wanted.first, last >= len(lines), len(lines), len(numbered) < len(piece))

    def result(self, target: files.Target, wanted: _Range) -> ToolResult:
        last = self.first + len(self.lines) - 1
        if not self.lines:
            said = (
                f"has {self.total} line{'' if self.total == 1 else 's'}, so none from line {self.first} on"
                if self.total
                else "is empty"
            )
            return ToolResult(f"{target.shown} exists and {said}.")
        text = "\n".join(self.lines)
        if not self.at_end:
            of = f" of {self.total}" if self.total is not None else ""
            why = " (size limit of one answer)" if self.full else ""
            text += f"\n\n[Lines {self.first}–{last}{of}{why}. Go on with offset {last + 1}.]"
        return ToolResult(text, data={"filePath": str(target.path), "startLine": self.first, "numLines": len(self.lines)})


def _plain(piece: Sequence[str], first: int, room: int) -> list[str] | None:
    """What `_numbered` makes of these lines where none needs more than its number and all fit: ten times faster, line by
    line. None where it is not so."""
    if first + len(piece) > MOST_PREFIXES or not all(map(str.isascii, piece)):
        return None
    sizes = list(map(len, piece))
    if max(sizes, default=0) > LINE_CAP or sum(sizes) + 7 * len(sizes) > room:
        return None
    for number in range(len(_PREFIXES), first + len(piece)):
        _PREFIXES.append(f"{number:>6}\t")
    return list(map(add, _PREFIXES[first : first + len(piece)], piece))


def _numbered(number: int, line: str, length: int | None = None) -> str:
    length = len(line) if length is None else length
    if not line.isascii():
        line = files.printable(line)
    if length > LINE_CAP:
        line = f"{line[:LINE_CAP]} [line of {length:,} characters, cut]"
    return f"{number:>6}\t{line}"


# ── large files: streamed ────────────────────────────────────────────────────────────────────────────────────────────


async def _large(input: Input, context: ToolContext, target: files.Target, file: BinaryIO, info: os.stat_result) -> ToolResult:
    head = disk.read_up_to(file, files.SNIFF)
    file.seek(0)
    if media := image_type(head):
        if info.st_size * 4 / 3 > IMAGE_CAP:
            raise ToolError(
                f"{target.shown} is a {media} of {info.st_size:,} bytes; up to {IMAGE_CAP * 3 // 4:,} can be shown. "
                "Make it smaller with Bash first."
            )
        return await _small(input, context, target, disk.read_up_to(file, IMAGE_CAP), info)
    if head.startswith(b"%PDF-"):
        content = await _pdf(input, context, target, None)
        context.read_files[target.real] = replace(files.remembered(info, None), partial=True)
        return ToolResult(content, data={"filePath": str(target.path)})
    wanted = _Range.of(input, context)
    if _is_notebook(target):
        data, info = await files.in_thread(files.load, target)
        rendered = await files.in_thread(notebook_text.render, data, target)
        return _notebook(rendered, wanted, context, target, files.remembered(info, data))
    return await _large_text(context, target, file, info, head, wanted)


async def _large_text(
    context: ToolContext, target: files.Target, file: BinaryIO, info: os.stat_result, head: bytes, wanted: _Range
) -> ToolResult:
    sniffed = files.decode(head) or files.decode(head[:-1] if len(head) % 2 else head[:-2])
    if sniffed is None:
        raise _binary(target, head, info.st_size)
    known = context.read_files.get(target.real)
    same = known is not None and (known.mtime_ns, known.size) == (info.st_mtime_ns, info.st_size)
    if same and (answer := _unchanged(context, target, wanted)):
        return answer
    # The thread gets a descriptor of its own: a cancelled call closes this one while the thread may still read.
    duplicate = os.fdopen(os.dup(file.fileno()), "rb", buffering=_CHUNK)
    shown = await asyncio.to_thread(_stream, duplicate, _encoding(sniffed), wanted, context.settings.read_bytes)
    _remember(context, target, files.remembered(info, None), wanted, shown.at_end, keep=same)
    return shown.result(target, wanted)


def _encoding(sniffed: files.Text) -> str:
    return {"utf-8": "utf-8-sig"}.get(sniffed.encoding, sniffed.encoding)


def _stream(file: BinaryIO, encoding: str, wanted: _Range, room: int) -> _Shown:
    """The wanted lines of `file`, which is closed. Reads on from the wanted ones only to see whether there is more."""
    numbered: list[str] = []
    wide = encoding.startswith(("utf-16", "utf-32"))  # whose line ends are no single bytes
    if not wide and (lines := _skip_bytes(file, wanted.first - 1)) < wanted.first - 1:
        file.close()
        return _Shown([], wanted.first, True, lines, False)
    with io.TextIOWrapper(file, encoding, "replace", newline="\n") as text:
        for number in range(1, wanted.first if wide else 1):
            if not _skip_line(text):
                return _Shown([], wanted.first, True, number - 1, False)
        for number in range(wanted.first, wanted.first + wanted.count):
            if (found := _read_line(text)) is None:
                return _Shown(numbered, wanted.first, True, number - 1, False)
            line, length = found
            shown = _numbered(number, line.lstrip("\ufeff") if number == 1 else line, length)
            room -= len(shown)
            if room < 0 and numbered:
                return _Shown(numbered, wanted.first, False, None, True)
            numbered.append(shown)
        at_end = not text.read(1)
    return _Shown(numbered, wanted.first, at_end, number if at_end else None, False)


def _skip_bytes(file: BinaryIO, count: int) -> int:
    """Move `file` behind its first `count` lines; how many lines there are up to there."""
    passed, last = 0, b"\n"
    while passed < count and (chunk := file.read(1 << 20)):
        here = chunk.count(b"\n")
        if passed + here >= count:
            end = -1
            for _ in range(count - passed):
                end = chunk.index(b"\n", end + 1)
            file.seek(end + 1 - len(chunk), os.SEEK_CUR)
            return count
        passed, last = passed + here, chunk[-1:]
    return passed + (last != b"\n")


def _skip_line(text: io.TextIOWrapper) -> bool:
    part = text.readline(_CHUNK)
    while part and not part.endswith("\n"):
        if not (more := text.readline(_CHUNK)):
            break
        part = more
    return bool(part)


def _read_line(text: io.TextIOWrapper) -> tuple[str, int] | None:
    """The beginning of the next line and its whole length, both without its end; None at the end of the file."""
    if not (head := text.readline(_CHUNK)):
        return None
    part, length = head, len(head)
    while not part.endswith("\n") and (more := text.readline(_CHUNK)):
        part = more
        length += len(more)
    return head.rstrip("\n").removesuffix("\r"), length - part.endswith("\n")


# ── what is not text ─────────────────────────────────────────────────────────────────────────────────────────────────


def image_type(data: bytes) -> str | None:
    """The media type of an image that a model can look at, by its first bytes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _image(target: files.Target, media: str, data: bytes) -> list[Block]:
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(data).decode()}
    return [text_block(f"{target.shown}, {media}, {len(data):,} bytes:"), {"type": "image", "source": source}]


async def _pdf(input: Input, context: ToolContext, target: files.Target, data: bytes | None) -> list[Block]:
    first, last = _pages(input.get("pages"))
    found = await pdf.pages(target, first, last, context)
    if any(page.strip() for page in found.texts):
        return [text_block(found.as_text(target, context.settings.read_bytes))]
    whole = data if data is not None else (await files.in_thread(files.load, target))[0]
    if len(whole) > DOCUMENT_CAP:
        raise ToolError(f"{target.shown} has no text on these pages (a scan?) and is too large to be looked at whole.")
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(whole).decode()}
    note = f"{target.shown}: {counted(found.total, 'page')} without text in them, so the document itself follows."
    return [text_block(note), {"type": "document", "source": source}]


def _pages(text: str | None) -> tuple[int, int]:
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", text or "1-20")
    if not match:
        raise ToolError('`pages` must be a page or a range, such as "3" or "3-7".')
    first = int(match[1])
    last = int(match[2] or first)
    if not 1 <= first <= last:
        raise ToolError("`pages` counts from 1, and a range goes upwards.")
    if last - first >= 20:
        raise ToolError("At most 20 pages at once. Ask for a smaller range.")
    return first, last


def _is_notebook(target: files.Target) -> bool:
    return target.real.suffix == ".ipynb"


def _notebook(
    rendered: notebook_text.Rendered, wanted: _Range, context: ToolContext, target: files.Target, record: ReadFile
) -> ToolResult:
    shown = _Shown.of_lines(rendered.lines, wanted, context)
    context.read_files[target.real] = replace(record, partial=not (shown.at_end and wanted.first == 1))
    lines = [line.split("\t", 1)[1] for line in shown.lines]  # numbers of rendered lines would name no place in the file
    result = replace(shown, lines=lines).result(target, wanted)
    return replace(result, content=[text_block(str(result.content)), *rendered.images]) if rendered.images else result


_MAGIC = (
    (b"\x7fELF", "a program or library (ELF)"), (b"PK\x03\x04", "a zip archive (or jar, docx, xlsx, wheel)"),
    (b"\x1f\x8b", "gzip data"), (b"SQLite format 3\x00", "an SQLite database"), (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"), (b"\x28\xb5\x2f\xfd", "zstd data"), (b"\xca\xfe\xba\xbe", "a Java class"),
    (b"MZ", "a Windows program"), (b"\x00asm", "WebAssembly"), (b"OggS", "Ogg media"), (b"ID3", "MP3 audio"),
    (b"wOFF", "a font"), (b"wOF2", "a font"),
)  # fmt: skip


def _binary(target: files.Target, head: bytes, size: int) -> ToolError:
    kind = next((words for magic, words in _MAGIC if head.startswith(magic)), "binary data")
    return ToolError(
        f"{target.shown} is no text: it looks like {kind}, {size:,} bytes. Use Bash with a tool for this kind of file "
        "(file, xxd, unzip -l, sqlite3 …) if you need to know more."
    )
