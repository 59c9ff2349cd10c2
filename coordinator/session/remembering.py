"""What is worth remembering of a session that has ended, written into the project's memory directory.

1. It happens after the end, in a process that owns nothing: whoever goes on with the session meanwhile is not in its way.
2. How far a session was looked at is stored when the notes are there. Who dies before leaves whole notes or none, and the
   next look begins where the last one that was finished did: what it writes again changes nothing.
3. One process at a time looks back, so that each knows what the others wrote.
4. A session that must change nothing leaves no notes either.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from msgspec import Struct

from coordinator.agents.journal import from_record
from coordinator.composition import Given, tree_budget
from coordinator.runs.workers import book
from tasks import events, sessions, transcripts
from tasks.connection import Connection
from tasks.records import MessageRecord, SessionStatus
from worker_agent import disk, memory, memory_notes
from worker_agent.api.call import Caller
from worker_agent.api.retry import RetrySchedule
from worker_agent.errors import ConfigError
from worker_agent.session.asides import Asides
from worker_agent.tools.permissions import Mode
from worker_agent.tools.trust import repository_root

REMEMBERED = "session_remembered"  # an event: `through` counts the messages that were looked at, `notes` names files
TIME = 300.0  # seconds for all of it
LOOK_AGAIN = 0.2  # seconds, while another process looks back


class Remembered(Struct, frozen=True):
    """`written` are the files that are new or changed; `why` says why there are none."""

    written: tuple[Path, ...] = ()
    why: str = "nothing in it is worth a note"


async def remember(given: Given) -> Remembered:
    """Look back on the session of `given`, which has ended. Raises `ConfigError` where that cannot be, `ModelError`,
    `TimeoutError`, `OSError`, `DatabaseError`."""
    if given.options.offline:
        raise ConfigError("the offline model writes no notes: they take a language model")
    if given.ground.policy.mode is Mode.PLAN:
        raise ConfigError("the session was only to plan: it changes nothing, so it leaves no notes")
    place = _place(given)
    async with asyncio.timeout(TIME), _alone(given):
        return await _look_back(given, place)


def _place(given: Given) -> Path:
    root = repository_root(given.ground.cwd)
    try:
        return memory_notes.directory(root, trusted=given.options.trusted)
    except disk.Outside:
        raise ConfigError(f"{root / memory_notes.PLACE} is a link out of the project") from None


async def _look_back(given: Given, place: Path) -> Remembered:
    store = given.store
    rows = store.read(lambda conn: _not_looked_at(conn, store.session_id))
    messages = [from_record(row) for row in rows]
    if not any(message.kind == "answer" for message in messages):
        return Remembered(why="nothing was said since the last look")
    known = await asyncio.to_thread(memory.titles, place)
    notes = await _asides(given).worth_remembering(messages, known)
    if notes is None:
        return Remembered(why="the model's answer cannot be read as notes")
    day = datetime.fromtimestamp(store.clock.now(), UTC).date().isoformat()
    written = await asyncio.to_thread(memory_notes.write, place, notes, session_id=store.session_id, day=day)
    data = {"through": rows[-1].seq, "notes": [path.name for path in written]}
    await store.write(lambda conn: events.add(conn, store.session_id, None, REMEMBERED, data))
    return Remembered(tuple(written))


def _not_looked_at(conn: Connection, session_id: str) -> list[MessageRecord]:
    """The messages of the session's own agent since the last look. Raises `ConfigError` while the session goes on."""
    if sessions.get(conn, session_id).status is not SessionStatus.ENDED:
        raise ConfigError("the session has not ended")
    looks = events.of_kind(conn, session_id, REMEMBERED)
    return transcripts.load(conn, session_id, looks[-1].data["through"] + 1 if looks else 0)


def _asides(given: Given) -> Asides:
    store, settings = given.store, given.settings
    caller = Caller(
        client=given.client,
        limiter=given.limiter,
        budget=tree_budget(given).agent(),
        clock=store.clock,
        book=partial(book, store, agent_id=store.session_id, task_id=None, price=given.client.cost),
    )
    schedule = RetrySchedule(settings.retry, random.Random())
    return Asides(caller=caller, small=settings.small_model, own=settings.model, schedule=schedule)


@asynccontextmanager
async def _alone(given: Given) -> AsyncIterator[None]:
    """While this process holds the lock, no other looks back on a session of the same home."""
    lock = os.open(given.ground.paths.memory_lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _is_ours(lock):
            await given.store.clock.sleep(LOOK_AGAIN)
        yield
    finally:
        os.close(lock)


def _is_ours(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
