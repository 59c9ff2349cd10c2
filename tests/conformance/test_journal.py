"""What every `Journal` promises the loop, for each of them: the one in memory, and the one over the task store."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.agents.journal import TaskJournal, from_record, to_step
from coordinator.store import Store
from tasks import leases, outbox, sessions, transcripts
from tasks.db import Database
from tasks.records import DeliveryStatus
from tasks.writer import Writer
from tests.support.agent import MemoryJournal
from worker_agent.config import SystemClock
from worker_agent.loop.ports import Journal, Step
from worker_agent.messages import Message, assistant, tool_result_block, user
from worker_agent.session.transcript import repair


@dataclass
class Subject:
    """A journal, and how its promises are looked at from outside."""

    journal: Journal
    messages: Callable[[], Sequence[Message]]
    steps: Callable[[], Sequence[Step]]
    send: Callable[[str], str]  # queue a delivery; its id
    consumed: Callable[[], Sequence[str]]


def in_memory(tmp_path: Path):
    journal = MemoryJournal()
    yield Subject(journal, lambda: journal.messages, lambda: journal.steps, lambda body: body, lambda: journal.consumed)


def in_the_store(tmp_path: Path):
    db = Database.open(tmp_path / "c.db")
    id = db.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model=None, options={})).id
    store = Store(db, Writer(db), id, leases.this_owner(), SystemClock())
    store.fence = db.write(lambda conn: leases.acquire(conn, id, store.owner, store.clock.now()))

    def send(body: str) -> str:
        return db.write(lambda conn: outbox.send(conn, session_id=id, agent_id=id, body=body, sender="user")).id

    def consumed() -> list[str]:
        found = db.read(lambda conn: outbox.deliveries(conn, session_id=id))
        return [one.id for one in found if one.status is DeliveryStatus.CONSUMED]

    yield Subject(
        TaskJournal(store, id, None),
        lambda: [from_record(row) for row in db.read(lambda conn: transcripts.load(conn, id))],
        lambda: [to_step(row) for row in db.read(lambda conn: transcripts.steps(conn, id))],
        send,
        consumed,
    )
    store.writer.close()
    db.close()


@pytest.fixture(params=[in_memory, in_the_store], ids=["memory", "store"])
def subject(request, tmp_path):
    yield from request.param(tmp_path)


def run(*work):
    async def main():
        for one in work:
            await one

    asyncio.run(main())


CALL = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
RESULT = tool_result_block("t1", "done")


def test_messages_come_back_in_order_with_their_bytes(subject):
    messages = [user("goal"), assistant([CALL]), user([RESULT], kind="tool_results", meta=True)]
    run(subject.journal.append(messages[:1]), subject.journal.append(messages[1:]))
    assert [(msg.id, msg.wire) for msg in subject.messages()] == [(msg.id, msg.wire) for msg in messages]


def test_a_delivery_is_consumed_with_the_message_that_holds_it(subject):
    first, second = subject.send("one"), subject.send("two")
    run(subject.journal.append([user("one", kind="attachment")], [first]))
    assert list(subject.consumed()) == [first]
    run(subject.journal.append([user("two", kind="attachment")], [second]))
    assert list(subject.consumed()) == [first, second]


def test_a_step_is_kept_until_the_whole_message_supersedes_it(subject):
    answer = assistant([CALL])
    run(subject.journal.append([user("goal")]), subject.journal.step(Step(kind="answer", message_id=answer.id, blocks=(CALL,))))
    assert [(step.kind, list(step.blocks)) for step in subject.steps()] == [("answer", [CALL])]
    run(subject.journal.append([answer]))
    assert list(subject.steps()) == []


def test_what_is_known_of_an_unfinished_turn_makes_a_history_that_can_be_sent(subject):
    other = {**CALL, "id": "t2"}
    run(
        subject.journal.append([user("goal")]),
        subject.journal.step(Step(kind="answer", message_id="m1", blocks=(CALL, other))),
        subject.journal.step(Step(kind="result", message_id="m2", blocks=(RESULT,))),
    )
    added = repair(tuple(subject.messages()), list(subject.steps()), lambda name, input: False).added
    assert [msg.role for msg in added] == ["assistant", "user"]
    results = added[1].tool_results
    assert [b["tool_use_id"] for b in results] == ["t1", "t2"]
    assert results[0]["content"] == "done" and "unknown" in results[1]["content"]


def test_text_that_no_database_likes_is_stored_all_the_same(subject):
    hostile = "nul \x00, half a pair \ud800, \U0001f600, " + "x" * 1_000_000
    run(subject.journal.append([user(hostile)]))
    (back,) = subject.messages()
    assert back.text == hostile.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
