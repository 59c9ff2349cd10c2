"""Rows and messages: the same bytes back, histories from the last compaction on, contexts that stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.agents.inbox import TaskInbox
from coordinator.agents.journal import TaskJournal, from_record, load_history, surroundings_row, to_record
from coordinator.agents.taking_up import Recollection
from coordinator.agents.transcript_file import TranscriptFile, as_markdown
from coordinator.store import Store
from tasks import leases, outbox, registry, sessions, transcripts
from tasks.connection import Connection
from tasks.db import Database
from tasks.errors import Fenced
from tasks.records import Attempt, DeliveryStatus, Ended, NewTask
from tasks.states import TaskStatus
from tasks.writer import Writer
from worker_agent.config import SystemClock
from worker_agent.loop.ports import Step
from worker_agent.messages import Message, Usage, assistant, user

TEXT = st.text(min_size=1, max_size=40)


@given(TEXT, st.none() | st.integers(0, 10**9), st.dictionaries(TEXT, TEXT, max_size=3))
def test_a_message_comes_back_with_the_bytes_it_was_stored_with(text: str, output: int | None, data: dict[str, str]) -> None:
    usage = None if output is None else Usage(output=output, cache_read=1)
    message = assistant(text, usage=usage, stop_reason="end_turn", model="m", response_id="r", data=data)
    back = from_record(to_record(message, "a1"))
    assert (back, back.wire) == (message, message.wire)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    db = Database.open(tmp_path / "c.db")
    id = db.write(lambda conn: sessions.create(conn, goal="g", cwd="/", model=None, options={})).id
    store = Store(db, Writer(db), id, leases.this_owner(), SystemClock())
    store.fence = db.write(lambda conn: leases.acquire(conn, id, store.owner, store.clock.now()))
    yield store
    store.writer.close()
    db.close()


def run(store: Store, *steps) -> None:
    import asyncio

    async def all_of_them() -> None:
        for step in steps:
            await step

    asyncio.run(all_of_them())


def history(store: Store) -> tuple[Message, ...]:
    return load_history(store, store.session_id, lambda name, input: name == "Read").messages


CALLS = [{"type": "tool_use", "id": f"t{i}", "name": name, "input": {}} for i, name in enumerate(("Read", "Bash"))]


def test_an_unfinished_turn_becomes_whole_messages_with_every_call_answered(store: Store) -> None:
    journal = TaskJournal(store, store.session_id, None)
    result = {"type": "tool_result", "tool_use_id": "t0", "content": "text"}
    run(
        store,
        journal.append([user("go")]),
        journal.step(Step(kind="answer", message_id="m1", blocks=tuple(CALLS), model="m")),
        journal.step(Step(kind="result", message_id="m2", blocks=(result,))),
    )
    _, answer, results = history(store)
    assert (answer.id, len(answer.tool_uses)) == ("m1", 2)
    first, second = results.tool_results
    assert first == result and second["is_error"] and "nknown" in second["content"]


def test_what_is_whole_is_left_as_it_is(store: Store) -> None:
    messages = [user("go"), assistant("done")]
    run(store, TaskJournal(store, store.session_id, None).append(messages))
    loaded = load_history(store, store.session_id, lambda name, input: False)
    assert (loaded.messages, loaded.added) == (tuple(messages), ())


def test_the_surroundings_come_back_and_are_no_part_of_the_conversation(store: Store) -> None:
    run(store, TaskJournal(store, store.session_id, None).append([surroundings_row("sys", "mem", 5.0), user("go")]))
    loaded = load_history(store, store.session_id, lambda name, input: False)
    assert loaded.surroundings == {"system": "sys", "user_context": "mem", "at": 5.0} and len(loaded.messages) == 1


def test_a_fenced_journal_raises_and_stores_nothing(store: Store) -> None:
    later = store.clock.now() + 60
    other = leases.Owner(1, 0.0, "elsewhere")
    store.database.write(lambda conn: leases.acquire(conn, store.session_id, other, later))
    with pytest.raises(Fenced):
        run(store, TaskJournal(store, store.session_id, None).append([user("late")]))
    assert history(store) == ()


def ended_task(store: Store, result: str) -> str:
    def job(conn) -> str:
        task = registry.create(
            conn, NewTask(session_id=store.session_id, description="d", prompt="p", parent_id=store.session_id)
        )
        attempt = registry.claim(conn, task.id, owner=store.owner, fence=store.fence)
        registry.finish(conn, task.id, attempt, Ended(status=TaskStatus.COMPLETED, result=result, end_reason="completed"))
        return task.id

    return store.database.write(job)


def take(inbox: TaskInbox):
    import asyncio

    return asyncio.run(inbox.take())


def test_notifications_travel_together_and_are_offered_until_they_are_stored(store: Store) -> None:
    ids = [ended_task(store, f"r{i}") for i in range(3)]
    inbox = TaskInbox(store, store.session_id)
    (attachment,) = take(inbox)
    assert [attachment.message.text.count(id) for id in ids] == [1, 1, 1]
    assert take(inbox)[0].deliveries == attachment.deliveries
    run(store, TaskJournal(store, store.session_id, None).append([attachment.message], attachment.deliveries))
    assert take(inbox) == ()
    statuses = {d.status for d in store.read(lambda conn: outbox.deliveries(conn))}
    assert statuses == {DeliveryStatus.CONSUMED}


def test_an_inbox_asks_the_store_only_when_it_was_nudged(store: Store) -> None:
    inbox = TaskInbox(store, store.session_id)
    assert take(inbox) == ()
    ended_task(store, "r")
    assert take(inbox) == ()
    inbox.nudge()
    assert len(take(inbox)) == 1


def test_a_task_that_still_unwinds_is_not_announced_yet(store: Store) -> None:
    id, unwinding = ended_task(store, "r"), {"yes": True}
    inbox = TaskInbox(store, store.session_id, still_runs=lambda task: task == id and unwinding["yes"])
    assert take(inbox) == () and not inbox.waiting()
    unwinding["yes"] = False
    inbox.nudge()
    assert len(take(inbox)) == 1


def test_what_a_person_sends_is_a_prompt_and_what_the_coordinator_sends_is_not(store: Store) -> None:
    def job(conn) -> None:
        for sender in ("user", "coordinator"):
            outbox.send(conn, session_id=store.session_id, agent_id=store.session_id, body="hello", sender=sender)

    store.database.write(job)
    kinds = [(a.message.kind, a.message.meta) for a in take(TaskInbox(store, store.session_id))]
    assert kinds == [("prompt", False), ("attachment", True)]


def test_the_readable_transcript_says_who_spoke_and_leaves_secrets_out(tmp_path: Path) -> None:
    file = TranscriptFile(tmp_path / "t.md", lambda text: text.replace("hunter2", "[redacted]"))
    file.add(
        [
            user("look"),
            assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hunter2"}, CALLS[0]]),
        ]
    )
    assert file.path.read_text() == "## user (prompt)\n\nlook\n\n## assistant (answer)\n\n[redacted]\n\n→ Read {}\n\n"
    TranscriptFile(tmp_path / "missing" / "t.md").add([user("x")])
    assert as_markdown(user([{"type": "image", "source": {}}])) == "## user (prompt)\n\n[image]\n\n"


def test_a_spawn_whose_result_was_lost_is_answered_from_the_record_of_tasks(store: Store) -> None:
    def call(id: str) -> dict:
        return {"type": "tool_use", "id": id, "name": "Agent", "input": {"description": "d", "prompt": "p"}}

    new = NewTask(session_id=store.session_id, description="d", prompt="p", asked_by="t1")
    task = store.database.write(lambda conn: registry.create(conn, new))
    run(store, TaskJournal(store, store.session_id, None).append([user("go"), assistant([call("t1"), call("t2")])]))
    loaded = Recollection(store, lambda name, input: True, lambda text: text).history(store.session_id)
    first, second = loaded.messages[-1].tool_results
    assert task.id in first["content"] and "is_error" not in first
    assert "does not exist" in second["content"] and second["is_error"]


def test_a_stale_run_of_a_task_writes_nothing_and_a_killed_one_what_it_had(store: Store) -> None:
    """The fence of one run beside that of the session: the same process may have begun the task anew."""

    def claim(conn: Connection) -> int | None:
        return registry.claim(conn, task.id, owner=store.owner, fence=store.fence)

    new = NewTask(session_id=store.session_id, description="d", prompt="p", fence=store.fence)
    task = store.database.write(lambda conn: registry.create(conn, new))
    first, second = store.database.write(claim), store.database.write(claim)
    assert (first, second) == (1, 2)
    stale = TaskJournal(store, task.agent_id, Attempt(task.id, 1))
    fresh = TaskJournal(store, task.agent_id, Attempt(task.id, 2))
    with pytest.raises(Fenced):
        run(store, stale.append([user("from a run that is over")]))
    part = Step(kind="answer", message_id="m1", blocks=({"type": "tool_use", "id": "t1", "name": "Bash", "input": {}},))
    with pytest.raises(Fenced):
        run(store, stale.step(part))
    assert store.read(lambda conn: transcripts.steps(conn, task.agent_id)) == []
    run(store, fresh.append([user("go")]))
    run(store, fresh.step(part))
    with pytest.raises(Fenced):
        run(store, stale.step(part))
    store.database.write(lambda conn: registry.kill(conn, task.id, by="user", notify=False, end_reason="killed"))
    run(store, fresh.append([user("interrupted")]))
    assert len(store.read(lambda conn: transcripts.load(conn, task.agent_id))) == 2
