"""What a page is told while it is open: server-sent events, made of the database alone.

1. One thread looks for commits as every viewer does (`tasks/watch.py`), however many pages are open, and only while one is.
   What it notices wakes all of them; nobody asks in vain, but for owners that die without a commit, every `LOOK` seconds.
2. Two kinds of message. `event`: one row of the event table, in order, with its id; a page that was away says which it saw
   last (`Last-Event-ID`) and gets all that came after, each once. `update`: the documented objects that are not as they were
   when they were last sent; the first of a connection holds all of them, so that it needs no id.
3. A slow page slows its own feed only: what it has not taken is never kept, for the next look says how things stand then.
   At most one update in `GAP` seconds.
4. Looking may fail (a server is away): the page is told that what it shows is old, and the feed goes on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import orjson
from msgspec import Struct, field

from coordinator.views import reading
from coordinator.views.forecast import forecast
from coordinator.views.shown import Shown, listed_tasks
from tasks import events, registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.errors import StoreError
from tasks.records import EventRecord
from tasks.watch import Watcher
from worker_agent.structs import replace

LOOK = 2.0  # seconds until a look without a change
GAP = 0.3  # seconds between two updates at least; five times as long as a look takes, where that is more
BEAT = 15.0  # seconds: after so long without a word a page may believe that nobody is there
EVENTS = 500  # in one message group
SESSIONS = 200  # newest, of a page that shows all
ENDED = 200  # newest ended tasks that such a page shows
PASSING = frozenset({"duration_ms", "idle_ms"})  # differ at every look: a page counts on by itself


class News:
    """Wakes whoever waits when something was committed. Made and waited for in one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._lock = threading.Lock()  # of these two
        self._thread: threading.Thread | None = None
        self._listeners = 0
        self.closed = False

    async def wait(self, seconds: float) -> bool:
        """Whether something was committed meanwhile, or the server leaves."""
        came = self._came
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            return False
        return True

    def __enter__(self) -> News:
        with self._lock:
            self._listeners += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="news", daemon=True)
                self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._listeners -= 1

    def close(self) -> None:
        """From any thread: all feeds end."""
        self.closed = True
        self._wake()

    def _watch(self) -> None:
        while self._is_wanted():
            try:
                with Watcher(self._database) as watcher:
                    self._wake()  # whoever looked before this began may have missed something
                    while self._listeners and not self.closed:
                        if watcher.changed(LOOK):
                            self._wake()
            except StoreError:  # away, or gone: those who look find out
                time.sleep(LOOK)

    def _is_wanted(self) -> bool:
        with self._lock:
            if self._listeners and not self.closed:
                return True
            self._thread = None
            return False

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        came, self._came = self._came, asyncio.Event()
        came.set()


class Sent(Struct):
    """What one page was told: the last event, of each object a fingerprint, of each agent how far its log is known."""

    event: int | None
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)


class Scope(Struct, frozen=True):
    """What a page shows: all sessions, or one; of that one task, if it shows a worker."""

    session_id: str | None = None
    task_id: str | None = None


class Feed:
    """The feed of one page."""

    def __init__(self, database: Database, news: News, scope: Scope, last_event: int | None) -> None:
        self._database = database
        self._news = news
        self._scope = scope
        self._sent = Sent(last_event)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Server-sent events until the page or the server leaves."""
        told = time.monotonic()
        with self._news as news:
            while not news.closed:
                begun = time.monotonic()
                coming = asyncio.ensure_future(news.wait(LOOK))  # what comes while we look is not missed
                try:
                    text, is_all = await asyncio.to_thread(self._look)
                    took = time.monotonic() - begun
                    if not text and time.monotonic() - told > BEAT:
                        text = b": still here\n\n"
                    if text:
                        told = time.monotonic()
                        yield text
                    await asyncio.sleep(max(GAP, 5 * took) if is_all else 0)
                    if is_all:
                        await coming
                finally:
                    coming.cancel()

    def _look(self) -> tuple[bytes, bool]:
        """What is to be sent, and whether it is all there is now."""
        try:
            happened, update = self._database.read(self._changes)
        except StoreError as error:
            return _message("stale", {"why": str(error)}), True
        told = b"".join(_message("event", reading.event_json(event), id=event.id) for event in happened)
        return told + (_message("update", update) if update else b""), len(happened) < EVENTS

    def _changes(self, conn: Connection) -> tuple[list[EventRecord], Shown]:
        """The events since the last look, and what differs from then. May run again: what was sent is noted at the end."""
        now, scope, first = time.time(), self._scope, not self._sent.values
        sent = Sent(self._sent.event, dict(self._sent.rows), dict(self._sent.values), dict(self._sent.seqs))
        known = events.last_id(conn) if sent.event is None else sent.event
        happened = events.since(conn, known, session_id=scope.session_id, limit=EVENTS)
        sent = replace(sent, event=happened[-1].id if happened else known)
        update: Shown = {}
        objects = self._objects(conn, now)
        for name, rows in objects.items():
            if changed := _changed(sent.rows, name, rows, now):
                update[name] = changed
        for name, value in self._values(conn, objects["tasks"], now).items():
            if (print := hash(orjson.dumps(value))) != sent.values.get(name):
                sent.values[name], update[name] = print, value
        if scope.session_id is not None:
            lines, left_out = reading.newest_lines(conn, sent.seqs, scope.session_id)
            wanted = [one for one in lines if scope.task_id in (None, one["task_id"])]
            update |= ({"log": wanted} if wanted else {}) | ({"left_out": True} if left_out else {})
        self._sent = sent
        return happened, update | {"now": now, "whole": first} if update else {}

    def _objects(self, conn: Connection, now: float) -> Mapping[str, list[Shown]]:
        """Objects that are compared one by one."""
        if (session_id := self._scope.session_id) is None:
            return {
                "sessions": list(reading.newest_sessions(conn, now, SESSIONS)),
                "tasks": [dict(row) for row in listed_tasks(conn, now, everything=True, limit=ENDED)],
            }
        shown = [reading.session(conn, sessions.get(conn, session_id), now)]
        return {"sessions": shown, "tasks": reading.session_tasks(conn, session_id, now)}

    def _values(self, conn: Connection, tasks: list[Shown], now: float) -> Mapping[str, Any]:
        """What is sent whole when it changes."""
        values: dict[str, Any] = {"inbox": reading.inbox(conn)}
        if self._scope.session_id is not None:
            values["money"] = reading.money(conn, sessions.get(conn, self._scope.session_id))
            left = forecast(tasks, now)
            values["forecast"] = left and left.to_json()
        if self._scope.task_id is not None:
            record = registry.get(conn, self._scope.task_id)
            values["task"] = {
                "prompt": record.prompt,
                "result": record.result,
                "worktree": record.worktree,
                "branch": record.branch,
            }
        return values


def _changed(sent: dict[str, dict[str, int]], name: str, rows: list[Shown], now: float) -> Shown:
    """The rows that differ from those that were sent, and the ids of those that are not there any more."""
    prints = {row["id"]: _print(row, now) for row in rows}
    before = sent.get(name, {})
    sent[name] = prints
    changed = [row for row in rows if before.get(row["id"]) != prints[row["id"]]]
    gone = [id for id in before if id not in prints]
    return {"rows": changed, "gone": gone} if changed or gone else {}


def _print(row: Shown, now: float) -> int:
    """Of what stays as it is until something happens; the last sign of life is told to two seconds."""
    lasting = {name: value for name, value in row.items() if name not in PASSING}
    sign = None if row.get("idle_ms") is None else round((now - row["idle_ms"] / 1000) / 2)
    return hash((orjson.dumps(lasting), sign))


def _message(kind: str, data: Mapping[str, Any], id: int | None = None) -> bytes:
    """One message; JSON has no line end in it."""
    named = b"" if id is None else f"id: {id}\n".encode()
    return named + f"event: {kind}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"
