"""Memory: a directory of Markdown files, ranked by SQLite's full-text search.

Rules of this file:

1. Nothing here runs in the event loop. One thread of the index owns the connection, so that agents that share an index
   queue up behind each other and never fill the threads that others need.
2. The index is a cache. It is brought up to date by time and size of the files; what is damaged, foreign or of another
   version is made anew, and where no file can be written it lives in memory. A search that fails finds nothing.
3. A query is text that anybody wrote: only its words reach the search, each quoted, never its syntax.
4. A match on one common word is no relevance: a file counts from two words on, or one in its title.
5. Everything is bounded: files, bytes of a file, depth, words of a query. Links are followed only to files inside.
6. A cancelled search ends its thread's work at the next file, and waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from worker_agent import disk
from worker_agent.config import Clock, SystemClock

MAX_FILES = 5_000
MAX_DEPTH = 12
FILE_BYTES = 128 * 1024  # read of one file; what follows is not found
QUERY_CHARACTERS = 8_000
QUERY_WORDS = 48
TEXT_CAP = 3_000  # characters of a hit; longer files are shown around the match
WEAKEST = 0.25  # share of the best score, shown already or not, that a hit must have
STOP_GRACE = 2.0  # seconds a cancelled search waits for its thread

_VERSION = 1
_ON, _OFF = "\x01", "\x02"  # around matched words, taken out of every text before it is indexed
_WORD = re.compile(r"\w+")
# Written without spaces between words: searched by pairs of characters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
_MARKED = re.compile(f"{_ON}([^{_OFF}]*){_OFF}")
_COMMON = frozenset(
    "a about after all also an and any are as at be been before but by can could did do does done for from get had has "
    "have he her his how i if in into is it its just let like make may me more most must my new no not now of on one "
    "only or other our out over please she should so some such than that the their them then there these they this "
    "those to too up us use used using very was we were what when where which who why will with would you your".split()
)


class MemoryHit(Struct, frozen=True):
    """A memory file that may matter. `path` is absolute; `text` is the whole file, or with `whole` False the part
    around the match; a higher `score` is a better match."""

    path: Path
    title: str
    text: str
    score: float
    whole: bool = True


class _File(Struct, frozen=True):
    row: int
    mtime_ns: int
    size: int


class _Stopped(Exception):
    """The search was cancelled, or the index closed."""


class MemoryIndex:
    """The Markdown files under `directory`, which need not exist. `cache` is a file of ours for the index, None keeps
    it in memory. May be shared by agents. `refresh_every` in seconds: the directory is not looked at more often."""

    def __init__(
        self, directory: Path, cache: Path | None = None, *, clock: Clock | None = None, refresh_every: float = 2.0
    ) -> None:
        self.directory = Path(os.path.realpath(directory))
        self._cache = cache
        self._clock = clock or SystemClock()
        self._refresh_every = refresh_every
        self._fresh_until = float("-inf")
        self._closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, "memory")  # starts its thread with the first search
        self._connection: sqlite3.Connection | None = None
        self._files: dict[bytes, _File] = {}
        self._changes: int | None = None

    async def search(self, query_text: str, limit: int = 5, exclude: Collection[Path] = ()) -> list[MemoryHit]:
        """The files that fit `query_text` best, best first, without those in `exclude`. Never raises for what is on the
        disk or in the query."""
        words = _words(query_text)
        if not words or limit < 1 or self._closed.is_set():
            return []
        stop = threading.Event()
        work = self._thread.submit(self._search, words, limit, frozenset(exclude), stop)
        answer = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            stop.set()
            if not work.cancel():
                await asyncio.wait((answer,), timeout=STOP_GRACE)
            raise

    def close(self) -> None:
        """End what runs; later searches find nothing. Does not wait."""
        if not self._closed.is_set():
            self._closed.set()
            with contextlib.suppress(RuntimeError):
                self._thread.submit(self._disconnect)
            self._thread.shutdown(wait=False)

    # ── in the thread of the index ─────────────────────────────────────────────────────────────────────────────────

    def _search(self, words: tuple[str, ...], limit: int, exclude: frozenset[Path], stop: threading.Event) -> list[MemoryHit]:
        for _ in range(2):
            try:
                self._refresh(stop)
                return self._ranked(words, limit, exclude)
            except _Stopped:
                break
            except (sqlite3.Error, OSError):
                self._disconnect()
                self._cache = None  # from here on with an index of our own, in memory
        return []

    def _refresh(self, stop: threading.Event) -> None:
        """Bring the index up to date; raises `_Stopped` with what was done so far kept."""
        connection = self._connected()
        if self._clock.monotonic() < self._fresh_until:
            return
        connection.execute("BEGIN IMMEDIATE")
        self._load_files(connection)  # another process may have brought the same cache up to date
        gone = dict(self._files)
        try:
            for name, info in _markdown(self.directory):
                self._check(stop)
                known = gone.pop(name, None)
                if known is None or (known.mtime_ns, known.size) != (info.st_mtime_ns, info.st_size):
                    self._index(connection, name, info, known)
            for name, file in gone.items():
                self._forget(connection, name, file)
        finally:
            connection.commit()
        self._fresh_until = self._clock.monotonic() + self._refresh_every

    def _check(self, stop: threading.Event) -> None:
        if stop.is_set() or self._closed.is_set():
            raise _Stopped

    def _index(self, connection: sqlite3.Connection, name: bytes, info: os.stat_result, known: _File | None) -> None:
        text = _read(self.directory / os.fsdecode(name))
        if known is not None:
            self._forget(connection, name, known)
        title = _title(text, name)
        row = connection.execute("INSERT INTO files (name, mtime_ns, size, title) VALUES (?, ?, ?, ?)",
                                 (name, info.st_mtime_ns, info.st_size, title)).lastrowid  # fmt: skip
        assert row is not None
        if text:
            searched = f"{title} {_spoken(name)}"
            connection.execute("INSERT INTO docs (rowid, title, body, pairs) VALUES (?, ?, ?, ?)",
                               (row, searched, text, _spaced(f"{searched} {text}")))  # fmt: skip
        self._files[name] = _File(row, info.st_mtime_ns, info.st_size)

    def _forget(self, connection: sqlite3.Connection, name: bytes, file: _File) -> None:
        connection.execute("DELETE FROM docs WHERE rowid = ?", (file.row,))
        connection.execute("DELETE FROM files WHERE id = ?", (file.row,))
        self._files.pop(name, None)

    def _ranked(self, words: tuple[str, ...], limit: int, exclude: frozenset[Path]) -> list[MemoryHit]:
        connection = self._connected()
        rows = connection.execute(
            "SELECT f.name, f.title, highlight(docs, 0, ?1, ?2), highlight(docs, 1, ?1, ?2), highlight(docs, 2, ?1, ?2),"
            " rank FROM docs JOIN files f ON f.id = docs.rowid"
            " WHERE docs MATCH ?3 AND rank MATCH 'bm25(4.0, 1.0, 1.0)' ORDER BY rank LIMIT ?4",
            (_ON, _OFF, " OR ".join(words), (limit + len(exclude)) * 3),
        )
        hits: list[MemoryHit] = []
        best = 0.0
        with contextlib.closing(rows):
            for name, title, in_title, in_body, in_pairs, rank in rows:
                best = best or rank
                if rank > best * WEAKEST:  # ranks are negative, the best one lowest
                    break
                path = self.directory / os.fsdecode(name)
                if path not in exclude and _matters(words, in_title, in_body, in_pairs):
                    text, whole = _excerpt(in_body)
                    hits.append(MemoryHit(path, title, text, -rank, whole))
                if len(hits) == limit:
                    break
        return hits

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _open(self._cache, self.directory)
            self._changes = None
            self._fresh_until = float("-inf")
        return self._connection

    def _load_files(self, connection: sqlite3.Connection) -> None:
        (changes,) = connection.execute("PRAGMA data_version").fetchone()  # counts commits of others
        if changes != self._changes:
            rows = connection.execute("SELECT name, id, mtime_ns, size FROM files")
            self._files = {name: _File(*rest) for name, *rest in rows}
            self._changes = changes

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _open(cache: Path | None, directory: Path) -> sqlite3.Connection:
    """The index of `directory` in `cache`, empty if it held anything else; in memory where that cannot be had."""
    for _ in range(2):
        if cache is None:
            break
        try:
            return _open_file(cache, directory)
        except (sqlite3.OperationalError, OSError):  # locked, read-only, no space: not ours to mend
            break
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                cache.unlink()
    connection = sqlite3.connect(":memory:")
    _create(connection, directory)
    return connection


def _open_file(cache: Path, directory: Path) -> sqlite3.Connection:
    cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(cache, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it holds what the files hold
    connection = sqlite3.connect(cache, timeout=5.0)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # what a crash damages is made anew
        _create(connection, directory)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        about = connection.execute("SELECT directory FROM about").fetchone() if version == _VERSION else None
        if about != (os.fsencode(directory),):
            raise sqlite3.DatabaseError("another version, or the index of another directory")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection, directory: Path) -> None:
    """The tables of an empty database; nothing in one that has a version."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if connection.execute("PRAGMA user_version").fetchone() != (0,):
            return
        connection.execute("CREATE TABLE about (directory BLOB)")
        connection.execute(
            "CREATE TABLE files (id INTEGER PRIMARY KEY, name BLOB UNIQUE, mtime_ns INTEGER, size INTEGER, title TEXT)"
        )
        connection.execute(
            "CREATE VIRTUAL TABLE docs USING fts5(title, body, pairs, tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        connection.execute("INSERT INTO about VALUES (?)", (os.fsencode(directory),))
        connection.execute(f"PRAGMA user_version = {_VERSION}")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _markdown(directory: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    """Names below `directory` and states of its Markdown files, at most `MAX_FILES`, in order of their names."""
    real = os.path.realpath(directory)
    left, todo = MAX_FILES, [(b"", 0)]
    while todo and left:
        below, depth = todo.pop()
        for entry in _entries(os.path.join(os.fsencode(directory), below)):
            name = os.path.join(below, entry.name)
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH and not entry.name.startswith(b"."):
                        todo.append((name, depth + 1))
                elif entry.name.lower().endswith((b".md", b".markdown")) and _is_inside(entry, real):
                    info = entry.stat()
                    if stat.S_ISREG(info.st_mode):
                        yield name, info
                        left -= 1
            if not left:
                break


def _entries(directory: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_inside(entry: os.DirEntry[bytes], root: str) -> bool:
    return not entry.is_symlink() or Path(os.fsdecode(os.path.realpath(entry.path))).is_relative_to(root)


def _read(path: Path) -> str:
    """The beginning of a regular file as text; nothing for what is gone, empty or binary."""
    try:
        data = disk.read_beginning(path, limit=FILE_BYTES)
    except OSError:
        return ""
    if b"\x00" in data:
        return ""
    text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace(_ON, "").replace(_OFF, "")
    return text.strip()


def _title(text: str, name: bytes) -> str:
    """What the front matter or the first heading calls it, else its file name in words. One line."""
    front = re.match(r"---\n(?:.*\n)*?(?:title|name):[ \t]*(.+)\n", text[:2_000])
    heading = re.search(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", text[:4_000], re.MULTILINE)
    found = (front[1].strip("\"' \t") if front else "") or (heading[1] if heading else "") or _spoken(name)
    return " ".join(found.split())[:200]


def _spoken(name: bytes) -> str:
    """A path in words, for the search."""
    text = name.decode("utf-8", "replace")
    return " ".join(_WORD.findall(os.path.splitext(text)[0].replace("_", " ")))


def titles(directory: Path) -> list[str]:
    """What the Markdown files under `directory` are called, in order of their names. Blocks."""
    return [_title(_read(directory / os.fsdecode(name)), name) for name, _ in _markdown(directory)]


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(text: str) -> tuple[str, ...]:
    """The words of a query worth searching, each quoted for FTS5, in the order they came."""
    found: dict[str, None] = {}
    for word in _WORD.findall(text[:QUERY_CHARACTERS].replace("_", " ").casefold()):
        if _UNSPACED.search(word):
            found |= dict.fromkeys(f'"{pair}"' for pair in _pairs(word))
            word = _UNSPACED.sub("", word)
        if 2 < len(word) <= 64 and word not in _COMMON and word.isprintable():
            found[f'"{word}"'] = None
        if len(found) >= QUERY_WORDS:
            break
    return tuple(found)[:QUERY_WORDS]


def _pairs(word: str) -> Iterator[str]:
    for run in _UNSPACED.findall(word):
        yield from (" ".join(run[i : i + 2]) for i in range(max(1, len(run) - 1)))


def _spaced(text: str) -> str:
    """The characters of unspaced scripts, one a token."""
    return " ".join(" ".join(run) for run in _UNSPACED.findall(text))


def _matters(words: tuple[str, ...], in_title: str, in_body: str, in_pairs: str) -> bool:
    title, body = _marked(in_title), _marked(in_body)
    characters = {char for run in _MARKED.findall(in_pairs) for char in run.split()}
    return 2 * len(title) + len(body - title) + max(0, len(characters) - 1) >= min(2, len(words))


def _marked(text: str) -> set[str]:
    """The matched words, cut so that forms of one word count once."""
    return {found.casefold()[:5] for found in _MARKED.findall(text)}


def _excerpt(marked: str) -> tuple[str, bool]:
    """The text of a hit without marks: all of it, or the lines from shortly before the first match on."""
    first = marked.find(_ON)
    text = marked.replace(_ON, "").replace(_OFF, "")
    if len(text) <= TEXT_CAP:
        return text, True
    start = text.rfind("\n", 0, max(0, first - TEXT_CAP // 4)) + 1
    return text[start : start + TEXT_CAP], False
