"""Notes that a session leaves in the memory directory: a Markdown file each, which `memory.py` finds again.

1. A file is ours as long as its text is what we wrote: its head says of which session it is, and the digest of its text.
   Only such a file is replaced, by a note with the same title; what a person wrote or changed stays, and the note gets a
   name beside it.
2. A file is there whole or not at all. Two notes with the same title and text are one file.
3. Nothing is written through a link out of the project.

Everything here blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from worker_agent import disk
from worker_agent.messages import clean

PLACE = Path(".coordinator") / "memory"  # below a project's root
MAX_TITLE = 120  # characters
MAX_TEXT = 4_000
MAX_NAME = 60
MAX_FILES = 500  # notes in one directory: beyond, none are added
_BYTES = 64 * 1024  # of a file that is looked at: no note of ours is longer
_OURS = re.compile(
    r"\A---\ntitle: (?P<title>.*)\nsession: .*\nwritten: .*\ndigest: (?P<digest>[0-9a-f]{16})\n---\n\n(?P<text>.*)\n\Z",
    re.DOTALL,
)


class Note(Struct, frozen=True):
    """One thing worth remembering: a line that says it, and some sentences of Markdown."""

    title: str
    text: str


def directory(root: Path, *, trusted: bool) -> Path:
    """Where the notes of the project at `root` lie; it need not be there. Raises `disk.Outside` for a link out of a project
    that nobody trusts."""
    place = Path(os.path.realpath(root / PLACE))
    if not (trusted or place.is_relative_to(os.path.realpath(root))):
        raise disk.Outside(root / PLACE, root)
    return place


def write(place: Path, notes: Sequence[Note], *, session_id: str, day: str) -> list[Path]:
    """Write `notes` into the directory `place`; the files that are new or changed. `day` is a date. Raises `OSError`."""
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for title, text in filter(all, ((_one_line(note.title), _body(note.text)) for note in notes)):
        path, old = _place_of(place, title)
        if path is None or (old is not None and old["text"] == text) or (old is None and _count(place) >= MAX_FILES):
            continue
        head = f"---\ntitle: {title}\nsession: {session_id}\nwritten: {day}\ndigest: {_digest(text)}\n---\n\n"
        disk.replace(path, f"{head}{text}\n".encode())
        written.append(path)
    return written


def _place_of(place: Path, title: str) -> tuple[Path | None, re.Match[str] | None]:
    """The file for a note: the one of ours that has its title, with what it holds, else a name that is free. None where
    none of some names is."""
    name = _name(title)
    for number in range(1, 10):
        path = place / (f"{name}.md" if number == 1 else f"{name}-{number}.md")
        if not os.path.lexists(path):
            return path, None
        if (ours := _ours(path)) is not None and ours["title"] == title:
            return path, ours
    return None, None


def _ours(path: Path) -> re.Match[str] | None:
    """What a file holds that is still as we wrote it."""
    try:
        data = disk.read_regular(path, limit=_BYTES, inside=path.parent)
    except OSError:
        return None
    found = _OURS.match(data.decode("utf-8", "replace"))
    return found if found is not None and _digest(found["text"]) == found["digest"] else None


def _count(place: Path) -> int:
    with os.scandir(place) as entries:
        return sum(entry.name.endswith(".md") for entry in entries)


def _name(title: str) -> str:
    """A file name that says the title, as far as it is written in Latin letters."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MAX_NAME].strip("-")
    return words if len(words) >= 3 else f"note-{_digest(title)}"


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in clean(text)).split())[:MAX_TITLE].strip()


def _body(text: str) -> str:
    """The text of a note, without what a terminal would take for orders."""
    lines = ("".join(char if char.isprintable() else " " for char in line).rstrip() for line in clean(text).splitlines())
    return "\n".join(lines).strip()[:MAX_TEXT].rstrip()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
