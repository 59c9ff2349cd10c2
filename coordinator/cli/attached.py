"""What comes with a prompt: files that it names with `@path`, and what is piped in beside it.

Rules of this file:

1. Only what a person typed is looked at for `@path`: nothing in a file, a skill or a pipe is.
2. Text stands in a fence that it cannot end. Images and PDFs travel as blocks of their own. What is cut or left out is said,
   to the model in its place and to the person in a line.
3. Standard input is read to its end, to `PIPED_CAP` bytes, or until nothing more comes for `SILENCE` seconds: an input that
   is closed, empty or never ends neither breaks a run nor holds it.
"""

from __future__ import annotations

import base64
import os
import re
import select
import stat
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from worker_agent import disk

PATIENCE = 1.0  # seconds for the first of what is piped in
SILENCE = 10.0  # seconds without anything new after that
PIPED_CAP = 400_000  # bytes
TEXT_CAP = 200_000  # bytes of one file of text
MEDIA_CAP = 3_500_000  # bytes of one image or PDF, below what the API takes of base64
MAX_FILES = 50
MAX_LISTED = 200  # names of a directory
_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_IS_PATH = re.compile(r".*[/\\]|.*\.[A-Za-z0-9]{1,5}$", re.DOTALL)
_CLOSING = ".,;:!?)]}>'\""


class Attached(Struct, frozen=True):
    """`text` goes behind the prompt, `blocks` beside it; `notes` are lines for the person."""

    text: str = ""
    blocks: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def files(prompt: str, cwd: Path, *, media: bool = True) -> Attached:
    """The files that a person's prompt names. Without `media` an image or PDF is only named: there are no blocks beside
    the text."""
    texts: list[str] = []
    blocks: list[dict[str, Any]] = []
    notes: list[str] = []
    seen: set[Path] = set()
    for match in _NAMED.finditer(prompt):
        name = match[1] or match[2]
        path = _existing(name, cwd)
        if path is None:
            if _IS_PATH.match(name):
                notes.append(f"@{name}: there is no such file; it stays as it is written")
        elif _leads_out(path, cwd):
            notes.append(f"@{name} is left out: it is a link out of {cwd}; name the file that it leads to")
        elif path not in seen and len(seen) < MAX_FILES:
            seen.add(path)
            try:
                _add(path, texts, blocks, notes)
                if blocks and not media:
                    kind = blocks.pop()["type"]
                    texts[-1] = f"The {kind} {path} is for you to read."
                    notes.append(f"@{name}: no {kind} goes with a message; its path does, and a worker can read it")
            except OSError as error:
                notes.append(f"@{name} is left out: it {error.strerror}")
    return Attached("\n\n".join(texts), tuple(blocks), tuple(notes))


def _leads_out(path: Path, cwd: Path) -> bool:
    """Whether a path inside the working directory is outside of it once links are followed: what a repository brings says no
    word of a person's about files elsewhere."""
    inside = Path(os.path.normpath(path)).is_relative_to(os.path.normpath(cwd))
    return inside and not path.resolve().is_relative_to(cwd.resolve())


def _existing(name: str, cwd: Path) -> Path | None:
    """The file or directory that a name means, without what closes the sentence around it."""
    for text in dict.fromkeys((name, name.rstrip(_CLOSING))):
        try:
            path = cwd / Path(text).expanduser()
            if text and path.exists():
                return path
        except (OSError, ValueError, RuntimeError):
            return None
    return None


def _add(path: Path, texts: list[str], blocks: list[dict[str, Any]], notes: list[str]) -> None:
    """Raises `OSError` in words."""
    from worker_agent.tools.builtin.read import image_type

    if path.is_dir():
        names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
        rest = [f"… and {len(names) - MAX_LISTED:,} more"] if len(names) > MAX_LISTED else []
        texts.append(f"The directory {path} holds:\n{fenced(chr(10).join([*names[:MAX_LISTED], *rest]))}")
        return
    data = disk.read_beginning(path, limit=MEDIA_CAP + 1)
    media = image_type(data)
    if media or data.startswith(b"%PDF-"):
        if len(data) > MEDIA_CAP:
            notes.append(f"{path} is left out: it has more than {MEDIA_CAP:,} bytes")
            return
        source = {"type": "base64", "media_type": media or "application/pdf", "data": base64.b64encode(data).decode()}
        blocks.append({"type": "image" if media else "document", "source": source})
        texts.append(f"Attached: {path}")
        return
    text, cut = _as_text(data, TEXT_CAP)
    if text is None:
        notes.append(f"{path} is left out: it is neither text nor an image nor a PDF")
        return
    if cut:
        notes.append(f"{path}: only its first {TEXT_CAP:,} bytes are attached")
    texts.append(f"Contents of {path}{' (its beginning; read it for the rest)' if cut else ''}:\n{fenced(text)}")


def _as_text(data: bytes, cap: int) -> tuple[str | None, bool]:
    """The beginning of `data` as text, None where it is none; and whether something was cut."""
    if b"\0" in data[:8_192]:
        return None, False
    return data[:cap].decode("utf-8-sig", "replace"), len(data) > cap


def fenced(text: str) -> str:
    """`text` between lines of more backticks than it has in a row."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text.rstrip()}\n{fence}"


def piped() -> Attached:
    """What is piped in beside a prompt; nothing from a terminal, a closed descriptor or a device."""
    try:
        number = sys.stdin.fileno() if sys.stdin is not None else -1
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):
        return Attached()
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
        return Attached()
    data, why = _read(number)
    if not data.strip():
        return Attached(notes=(why,) if why else ())
    text, _ = _as_text(data, PIPED_CAP)
    if text is None:
        return Attached(notes=("what came on standard input is binary; it is left out",))
    cut = " (cut)" if why else ""
    return Attached(f"What was piped in on standard input{cut}:\n{fenced(text)}", notes=(why,) if why else ())


def _read(number: int) -> tuple[bytes, str]:
    """What comes on a descriptor, and why it is not all, "" where it is."""
    parts: list[bytes] = []
    size, patience = 0, PATIENCE
    deadline = time.monotonic() + SILENCE * 6
    while size <= PIPED_CAP:
        wait = min(patience, deadline - time.monotonic())
        try:
            ready = wait > 0 and bool(select.select([number], [], [], wait)[0])
            part = os.read(number, 65_536) if ready else None
        except OSError:
            break
        if part is None:
            what = "standard input has no end" if parts else "nothing comes on standard input"
            return b"".join(parts), f"{what}: going on with{' what came so far' if parts else 'out it'}"
        if not part:
            break
        parts.append(part)
        size, patience = size + len(part), SILENCE
    cut = f"standard input is cut: only its first {PIPED_CAP:,} bytes go with the prompt" if size > PIPED_CAP else ""
    return b"".join(parts)[:PIPED_CAP], cut
