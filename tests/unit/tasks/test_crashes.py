"""What a hard end or a frozen process leaves behind, with real processes."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tasks import leases, outbox, registry, sessions, transcripts
from tasks.db import Database
from tasks.errors import Owned
from tasks.states import TaskStatus
from tests.support.postgres import server
from tests.support.skips import needs_postgres
from tests.unit.tasks.support import Store, message, start_python

BEGIN = """
import sys, time
from tasks import leases, outbox, registry, sessions, transcripts
from tasks.db import Database
from tasks.errors import Fenced
from tasks.records import Ended, MessageRecord, NewTask
from tasks.states import TaskStatus
db = Database.open(sys.argv[1])
ttl = float(sys.argv[2])
me = leases.this_owner()
db.write(lambda c: sessions.create(c, id="s1", goal="g", cwd="/", model=None, options={}))
fence = db.write(lambda c: leases.acquire(c, "s1", me, time.time(), ttl))
db.write(lambda c: registry.create(c, NewTask(id="a1", session_id="s1", description="d", prompt="p", fence=fence)))
attempt = db.write(lambda c: registry.claim(c, "a1", owner=me, fence=fence))
row = MessageRecord(id="m1", role="user", kind="attachment", content="[]", at=1.0)
def finish():
    end = Ended(status=TaskStatus.COMPLETED, result="r", end_reason="completed")
    return db.write(lambda c: registry.finish(c, "a1", attempt, end))
def store(consumed=()):
    db.write(lambda c: transcripts.append(c, "s1", [row], session_id="s1", fence=fence, consumed=consumed))
"""
PAUSE = "print('here', flush=True); sys.stdin.readline()\n"
LATE = """
try:
    store()
except Fenced:
    print("fenced", finish(), flush=True)
    db.close()
"""


def run_until_here(code: str, path: str, ttl: float = 10.0) -> subprocess.Popen[str]:
    process = start_python(BEGIN + code, path, ttl)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n", process.communicate()[1]
    return process


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def path(request: pytest.FixtureRequest, tmp_path: str) -> str:
    return str(tmp_path / "store.db") if request.param == "sqlite" else server().empty_database()


def killed(code: str, path: str) -> Store:
    """The store after `kill -9` at the pause, taken over by this process."""
    process = run_until_here(code, path)
    process.kill()
    process.communicate()
    db = Database.open(path)
    owner = leases.this_owner()
    fence = db.write(lambda conn: leases.acquire(conn, "s1", owner, time.time()))
    return Store(db, None, "s1", owner, fence)  # type: ignore[arg-type]


def test_a_notification_survives_a_kill_before_it_is_in_the_transcript(path: str) -> None:
    store = killed("finish()\n" + PAUSE, path)
    [waiting] = store.read(outbox.waiting, "s1")
    assert "<result>r</result>" in waiting.body
    arguments = {"session_id": "s1", "fence": store.fence, "consumed": [waiting.id]}
    store.write(transcripts.append, "s1", [message("m1")], **arguments)
    store.db.close()
    again = Database.open(path)
    assert again.read(lambda conn: outbox.waiting(conn, "s1")) == []
    again.close()


def test_a_notification_is_not_told_again_after_a_kill_behind_its_message(path: str) -> None:
    store = killed("finish(); store(['na1'])\n" + PAUSE, path)
    assert store.read(outbox.waiting, "s1") == []
    assert [m.id for m in store.read(transcripts.load, "s1")] == ["m1"]
    store.db.close()


def test_a_running_task_of_a_killed_owner_is_interrupted_and_goes_on_with_the_next_attempt(path: str) -> None:
    process = run_until_here(PAUSE, path)
    db = Database.open(path)
    session, task = db.read(lambda conn: (sessions.get(conn, "s1"), registry.get(conn, "a1")))
    assert session.lease_expires_at is not None
    for now in (session.lease_expires_at - 5, session.lease_expires_at + 5):
        assert registry.shown_status(task, sessions.owner_gone(session, now)) == "running"
    process.kill()
    process.communicate()
    assert registry.shown_status(task, sessions.owner_gone(session, session.lease_expires_at - 5)) == "interrupted"
    owner = leases.this_owner()
    fence = db.write(lambda conn: leases.acquire(conn, "s1", owner, session.lease_expires_at - 5))
    assert db.write(lambda conn: registry.claim(conn, "a1", owner=owner, fence=fence)) == 2
    db.close()


def test_an_owner_that_was_frozen_past_its_lease_cannot_write_when_it_wakes(path: str) -> None:
    process = run_until_here(PAUSE + LATE, path)
    db = Database.open(path)
    process.send_signal(signal.SIGSTOP)
    owner = leases.this_owner()
    session = db.read(lambda conn: sessions.get(conn, "s1"))
    assert session.lease_expires_at is not None
    with pytest.raises(Owned, match=f"process {process.pid} "):
        db.write(lambda conn: leases.acquire(conn, "s1", owner, session.lease_expires_at - 1))
    db.write(lambda conn: conn.set("sessions", {"lease_expires_at": 0.0}, "id = 's1'"))  # by whichever clock
    db.write(lambda conn: leases.acquire(conn, "s1", owner, session.lease_expires_at + 1))
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate("go\n", timeout=30)
    assert (out, err) == ("fenced False\n", "")
    assert db.read(lambda conn: transcripts.load(conn, "s1")) == db.read(lambda conn: outbox.waiting(conn, "s1")) == []
    assert db.read(lambda conn: registry.get(conn, "a1")).status is TaskStatus.RUNNING
    db.close()
