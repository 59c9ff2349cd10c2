import pytest

from tasks import agents, leases, outbox, registry, sessions, transcripts
from tasks.errors import Fenced, NotFound
from tasks.records import DeliveryKind, DeliveryStatus, Owner, StepRecord
from tasks.states import TaskStatus
from tests.unit.tasks.support import Store, message, run_out


def append(store: Store, *rows: object, consumed: tuple[str, ...] = (), agent_id: str | None = None) -> None:
    agent = agent_id or store.session_id
    store.write(transcripts.append, agent, rows, session_id=store.session_id, fence=store.fence, consumed=consumed)


def ids(store: Store) -> list[tuple[int, str]]:
    return [(m.seq, m.id) for m in store.read(transcripts.load, store.session_id)]


def ended_task(store: Store) -> str:
    task = store.task()
    store.write(registry.kill, task.id, by="x", notify=True, end_reason="killed")
    return task.id


def test_messages_come_back_in_order_as_they_were(store: Store) -> None:
    first = message("m1", extra={"usage": {"output": 3}, "data": {}}, task_id="a1", meta=True)
    append(store, first, message("m2"))
    append(store, message("m3"))
    loaded = store.read(transcripts.load, store.session_id)
    assert [(m.seq, m.id) for m in loaded] == [(0, "m1"), (1, "m2"), (2, "m3")]
    assert (loaded[0].extra, loaded[0].meta, loaded[0].task_id, loaded[0].content) == (
        first.extra,
        True,
        "a1",
        first.content,
    )
    assert [m.id for m in store.read(transcripts.load, store.session_id, 1)] == ["m2", "m3"]
    assert [m.id for m in store.read(transcripts.tail, store.session_id, 2)] == ["m2", "m3"]


def test_storing_a_message_twice_is_storing_it_once(store: Store) -> None:
    append(store, message("m1"), message("m1"))
    append(store, message("m1", content="[]"), message("m2"))
    assert ids(store) == [(0, "m1"), (1, "m2")]
    assert store.read(transcripts.load, store.session_id)[0].content != "[]"


def test_a_whole_message_supersedes_its_parts(store: Store) -> None:
    def step(**fields: object) -> None:
        record = StepRecord(at=1.0, **fields)
        store.write(transcripts.step, store.session_id, record, session_id=store.session_id, fence=store.fence)

    step(kind="answer", message_id="m1", content="[1]")
    step(kind="result", message_id="m2", content="[r1]", part="t1")
    step(kind="answer", message_id="m1", content="[1,2]", model="m")
    step(kind="result", message_id="m2", content="[r2]", part="t2")
    found = store.read(transcripts.steps, store.session_id)
    assert [(s.message_id, s.part, s.content) for s in found] == [
        ("m1", "", "[1,2]"),
        ("m2", "t1", "[r1]"),
        ("m2", "t2", "[r2]"),
    ]
    append(store, message("m1"))
    assert [s.part for s in store.read(transcripts.steps, store.session_id)] == ["t1", "t2"]
    append(store, message("m2"))
    step(kind="answer", message_id="m1", content="[late]")
    assert store.read(transcripts.steps, store.session_id) == []


def test_a_fenced_owner_stores_nothing_and_consumes_nothing(store: Store) -> None:
    task_id = ended_task(store)
    run_out(store)
    store.write(leases.acquire, store.session_id, Owner(1, 0.0, "elsewhere"), store.clock() + 60)
    with pytest.raises(Fenced):
        append(store, message("m1"), consumed=(outbox.notification_id(task_id),))
    with pytest.raises(Fenced):
        append(store, consumed=(outbox.notification_id(task_id),))
    assert ids(store) == []
    assert [d.task_id for d in store.read(outbox.waiting, store.session_id)] == [task_id]


def test_an_unknown_agent_is_named(store: Store) -> None:
    with pytest.raises(NotFound, match="no agent nobody"):
        append(store, message("m1"), agent_id="nobody")


def test_a_notification_waits_until_a_stored_message_holds_it_and_is_never_offered_again(store: Store) -> None:
    task_id = ended_task(store)
    waiting = store.read(outbox.waiting, store.session_id)
    assert [(d.kind, d.task_id, d.sender) for d in waiting] == [(DeliveryKind.NOTIFICATION, task_id, task_id)]
    append(store, message("m0"))
    assert store.read(outbox.waiting, store.session_id) == waiting
    append(store, message("m1"), consumed=(waiting[0].id,))
    append(store, message("m2"), consumed=(waiting[0].id,))
    assert store.read(outbox.waiting, store.session_id) == []
    [settled] = store.read(outbox.deliveries, session_id=store.session_id)
    assert (settled.status, settled.consumed_seq) == (DeliveryStatus.CONSUMED, 1)
    assert store.read(registry.get, task_id).notified


def test_one_agent_cannot_consume_what_waits_for_another(store: Store) -> None:
    task = store.task()
    sent = store.write(outbox.send, session_id=store.session_id, agent_id=task.id, body="b", sender="s")
    append(store, message("m1"), consumed=(sent.id,))
    assert [d.id for d in store.read(outbox.waiting, task.id)] == [sent.id]


def test_messages_wait_in_the_order_they_were_sent(store: Store) -> None:
    task = store.task()
    for body in ("one", "two\x00", "three"):
        store.write(outbox.send, session_id=store.session_id, agent_id=task.id, body=body, sender="a person")
    found = store.read(outbox.waiting, task.id)
    assert [(d.body, d.sender) for d in found] == [
        ("one", "a person"),
        ("two\ufffd", "a person"),
        ("three", "a person"),
    ]
    returned = store.write(outbox.return_undelivered, task.id, "it has ended")
    assert [(d.body, d.why) for d in returned] == [(b, "it has ended") for b in ("one", "two\ufffd", "three")]
    assert store.write(outbox.return_undelivered, task.id, "again") == []


def test_a_rolled_back_end_leaves_neither_status_nor_notification(store: Store) -> None:
    task = store.task()

    def end_and_fail(conn: object) -> None:
        registry.kill(conn, task.id, by="x", notify=True, end_reason="killed")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.db.write(end_and_fail)
    assert store.read(registry.get, task.id).status is TaskStatus.PENDING
    assert store.read(outbox.waiting, store.session_id) == []


def test_a_fork_has_the_conversation_and_neither_tasks_nor_deliveries(store: Store) -> None:
    ended_task(store)
    append(store, message("m1"), message("m2"))
    part = StepRecord(kind="answer", message_id="m3", content="[]", at=1.0)
    store.write(transcripts.step, store.session_id, part, session_id=store.session_id, fence=store.fence)
    fork = store.write(sessions.fork, store.session_id)
    assert (fork.parent_id, fork.goal, fork.owner) == (store.session_id, "a goal", None)
    assert [m.id for m in store.read(transcripts.load, fork.id)] == ["m1", "m2"]
    assert store.read(transcripts.steps, fork.id) == [part]
    assert store.read(registry.live, fork.id) == store.read(outbox.waiting, fork.id) == []
    fence = store.write(leases.acquire, fork.id, store.owner, store.clock())
    store.write(transcripts.append, fork.id, [message("m3")], session_id=fork.id, fence=fence)
    assert [m.seq for m in store.read(transcripts.load, fork.id)] == [0, 1, 2]
    assert [m.id for m in store.read(transcripts.load, store.session_id)] == ["m1", "m2"]


def test_agents_of_a_session_are_listed_oldest_first(store: Store) -> None:
    one = store.task(name="one")
    listed = store.read(agents.list_agents, store.session_id)
    assert [(a.id, a.is_coordinator) for a in listed] == [(store.session_id, True), (one.id, False)]
    assert store.read(agents.resolve, None, store.session_id) == (listed[0], None)
