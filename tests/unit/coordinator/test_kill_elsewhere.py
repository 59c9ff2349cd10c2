"""A kill of what runs on another machine: nothing of it can be looked at from here, so only its owner's word is a proof."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.other_processes import kill
from coordinator.other_processes.foreign import UNWOUND
from tasks import events, leases, registry, sessions
from tasks.connection import Connection
from tasks.db import Database
from tasks.records import NewTask, Owner, TaskRecord
from tasks.states import TaskStatus
from tasks.watch import Watcher

FAR = Owner(1, 0.0, "far-away")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(tmp_path / "c.db")
    yield opened
    opened.close()


@pytest.fixture
def task(database: Database) -> TaskRecord:
    def begin(conn: Connection) -> TaskRecord:
        session = sessions.create(conn, goal="g", cwd="/", model=None, options={})
        fence = leases.acquire(conn, session.id, FAR, time.time())
        task = registry.create(conn, NewTask(session_id=session.id, description="d", prompt="p", fence=fence))
        registry.claim(conn, task.id, owner=FAR, fence=fence)
        return registry.get(conn, task.id)

    return database.write(begin)


def test_where_nobody_answers_the_end_is_stored_but_not_called_proven(
    database: Database, task: TaskRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill, "ANSWER_BOUND", 0.1)
    report = kill.kill_task(database, task.id, grace=0.0)
    assert (report.status, report.changed, report.ended) == (TaskStatus.KILLED, True, False)
    assert "far-away" in report.survivors[0] and "fenced" in report.survivors[0]


@pytest.mark.parametrize("survivors", [[], ["process 7 (stubborn)"]])
def test_its_owners_word_is_the_proof(database: Database, task: TaskRecord, survivors: list[str]) -> None:
    def answer() -> None:
        with Watcher(database) as watcher:
            while database.read(lambda conn: registry.get(conn, task.id)).is_live:
                watcher.changed(1.0)
        data = {"survivors": survivors}
        database.write(lambda conn: events.add(conn, task.session_id, task.id, UNWOUND, data))

    owner = threading.Thread(target=answer)
    owner.start()
    report = kill.kill_task(database, task.id, grace=0.0)
    owner.join()
    assert (report.ended, list(report.survivors)) == (not survivors, survivors)
