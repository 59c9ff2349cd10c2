import pytest

from tasks import agents, events, leases, models, outbox, registry, sessions
from tasks.connection import Connection
from tasks.errors import Ambiguous, Fenced, IllegalMove, IntegrityError, NameTaken, NotFound
from tasks.ids import TaskType
from tasks.records import Attempt, DeliveryStatus, Ended, NewTask, Owner, TaskRecord
from tasks.registry import KillOutcome, TaskFilter
from tasks.states import TaskStatus
from tests.unit.tasks.support import Store, run_out
from worker_agent.structs import replace

END = Ended(status=TaskStatus.COMPLETED, result="done", end_reason="completed")


def kinds(store: Store, task: TaskRecord) -> list[str]:
    return [event.kind for event in store.read(events.since, task_id=task.id)]


def notified(store: Store, agent_id: str | None = None) -> list[str | None]:
    return [d.task_id for d in store.read(outbox.waiting, agent_id or store.session_id)]


def test_records_have_the_columns_of_their_tables_in_order() -> None:
    assert list(TaskRecord.__struct_fields__) == models.tasks.c.keys()
    from tasks import records

    pairs = [
        (records.SessionRecord, models.sessions),
        (records.EventRecord, models.events),
        (records.ProcessRecord, models.processes),
    ]
    for record, table in pairs:
        assert list(record.__struct_fields__) == table.c.keys()


def test_a_new_task_is_pending_and_its_agent_has_its_id(store: Store) -> None:
    task = store.task(name="scout", definition="worker", model="m", result_schema={"type": "object"}, allowed_tools=["Read"])
    assert (task.status, task.attempt, task.agent_id, task.started_at) == (TaskStatus.PENDING, 0, task.id, None)
    assert (task.result_schema, task.allowed_tools) == ({"type": "object"}, ["Read"])
    assert store.read(agents.get, task.id).name == "scout"
    assert kinds(store, task) == ["task_created"]


def test_creating_an_id_twice_is_creating_it_once(store: Store) -> None:
    first = store.task(id="a00000001")
    assert store.task(id="a00000001", description="another") == first
    assert kinds(store, first) == ["task_created"]


def test_a_colliding_id_is_drawn_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["a00000001", "a00000001", "a00000002"])
    monkeypatch.setattr(registry, "new_id", lambda type: next(drawn))
    assert [store.task().id, store.task().id] == ["a00000001", "a00000002"]


def test_two_agents_of_a_session_cannot_share_a_name(store: Store) -> None:
    store.task(name="scout")
    with pytest.raises(NameTaken):
        store.task(name="scout")


def test_a_run_goes_from_pending_to_its_end_with_event_and_notification(store: Store) -> None:
    task = store.task()
    attempt = store.claim(task)
    assert store.write(registry.finish, task.id, attempt, END)
    ended = store.read(registry.get, task.id)
    assert (ended.status, ended.result, ended.attempt, ended.notified) == (TaskStatus.COMPLETED, "done", 1, False)
    assert ended.started_at is not None and ended.ended_at is not None and ended.ended_at > ended.started_at
    assert kinds(store, task) == ["task_created", "task_running", "task_completed"]
    assert notified(store) == [task.id]


def test_the_first_terminal_state_wins(store: Store) -> None:
    task = store.task()
    attempt = store.claim(task)
    assert store.write(registry.finish, task.id, attempt, END)
    assert not store.write(registry.finish, task.id, attempt, replace(END, status=TaskStatus.FAILED))
    outcome = store.write(registry.kill, task.id, by="a person", notify=True, end_reason="killed")
    assert outcome == KillOutcome(False, TaskStatus.COMPLETED, TaskStatus.COMPLETED)
    assert store.write(registry.claim, task.id, owner=store.owner, fence=store.fence) is None
    assert kinds(store, task)[-1] == "task_completed"
    assert notified(store) == [task.id]


def test_a_later_attempt_ends_the_right_of_the_earlier_to_write(store: Store) -> None:
    task = store.task()
    stale, fresh = store.claim(task), store.claim(task)
    figures = {"tool_uses": 9, "input_tokens": 9, "output_tokens": 9, "cost_usd": 9.0, "activities": ["late"]}
    assert not store.write(registry.progress, task.id, attempt=stale, **figures)
    assert not store.write(registry.finish, task.id, stale, END)
    assert store.read(registry.get, task.id).tool_uses == 0
    assert store.write(registry.finish, task.id, fresh, END)


def test_a_later_owner_of_the_session_ends_the_right_of_the_earlier_to_write(store: Store) -> None:
    task = store.task()
    attempt = store.claim(task)
    run_out(store)
    store.write(leases.acquire, store.session_id, Owner(1, 0.0, "elsewhere"), store.clock() + 60)
    figures = {"tool_uses": 9, "input_tokens": 9, "output_tokens": 9, "cost_usd": 9.0, "activities": ["late"]}
    assert not store.write(registry.progress, task.id, attempt=attempt, **figures)
    assert not store.write(registry.finish, task.id, attempt, END)
    with pytest.raises(Fenced):
        store.claim(task)
    with pytest.raises(Fenced):
        store.task()
    assert store.read(registry.get, task.id).status is TaskStatus.RUNNING
    assert notified(store) == []


def test_a_new_owner_may_fail_a_pending_task_and_take_over_a_running_one(store: Store) -> None:
    pending, running = store.task(), store.task()
    store.claim(running)
    new = Owner(1, 0.0, "elsewhere")
    run_out(store)
    fence = store.write(leases.acquire, store.session_id, new, store.clock() + 60)
    assert store.write(registry.finish, pending.id, 0, replace(END, status=TaskStatus.FAILED))
    assert store.write(registry.claim, running.id, owner=new, fence=fence) == 2
    assert store.write(registry.finish, running.id, 2, END)


def test_other_writes_of_a_run_can_be_guarded_in_their_transaction(store: Store) -> None:
    def guarded(task_id: str, attempt: int) -> None:
        def job(conn: Connection) -> None:
            registry.check_run(conn, Attempt(task_id, attempt))
            events.add(conn, store.session_id, task_id, "written")

        store.db.write(job)

    task, killed = store.task(), store.task()
    with pytest.raises(Fenced):
        guarded(task.id, 0)
    attempt = store.claim(task)
    guarded(task.id, attempt)
    again = store.claim(task)
    with pytest.raises(Fenced):
        guarded(task.id, attempt)
    guarded(task.id, again)
    attempt_of_killed = store.claim(killed)
    store.write(registry.kill, killed.id, by="x", notify=True, end_reason="killed")
    run_out(store)
    store.write(leases.acquire, store.session_id, Owner(1, 0.0, "elsewhere"), store.clock() + 60)
    for stale in ((task.id, again), (killed.id, attempt_of_killed), ("nothing", 1)):
        with pytest.raises(Fenced):
            guarded(*stale)
    assert [kind for kind in kinds(store, task) if kind == "written"] == ["written"] * 2


def test_a_killed_pending_task_never_starts(store: Store) -> None:
    task = store.task()
    store.write(registry.kill, task.id, by="x", notify=True, end_reason="killed")
    assert store.write(registry.claim, task.id, owner=store.owner, fence=store.fence) is None
    assert store.read(registry.get, task.id).started_at is None


def test_a_failed_task_always_has_an_error_class_and_says_whether_to_try_again(store: Store) -> None:
    task = store.task()
    store.write(registry.finish, task.id, 0, Ended(status=TaskStatus.FAILED, result=None, end_reason="spawn"))
    ended = store.read(registry.get, task.id)
    assert (ended.status, ended.error_class, ended.retryable) == (TaskStatus.FAILED, "unknown", False)


def test_a_pending_task_cannot_complete(store: Store) -> None:
    task = store.task()
    with pytest.raises(IllegalMove):
        store.write(registry.finish, task.id, 0, END)
    assert store.read(registry.get, task.id).status is TaskStatus.PENDING


def test_any_text_can_be_stored_as_a_result(store: Store) -> None:
    task = store.task(prompt="\udc80\x00")
    attempt = store.claim(task)
    assert store.write(registry.finish, task.id, attempt, replace(END, result="a\x00b\ud800c😀", error="\udfff"))
    ended = store.read(registry.get, task.id)
    assert (ended.prompt, ended.result, ended.error) == ("\ufffd\ufffd", "a\ufffdb\ufffdc😀", "\ufffd")


def test_a_kill_returns_what_waited_for_the_agent(store: Store) -> None:
    task = store.task()
    store.claim(task)
    sent = store.write(outbox.send, session_id=store.session_id, agent_id=task.id, body="hurry", sender="me")
    outcome = store.write(registry.kill, task.id, by="a person", notify=True, end_reason="killed")
    assert (outcome.changed, outcome.status_before, outcome.status) == (True, TaskStatus.RUNNING, TaskStatus.KILLED)
    assert [(d.id, d.status, d.why) for d in outcome.undelivered] == [
        (sent.id, DeliveryStatus.UNDELIVERED, f"task {task.id} was killed by a person")
    ]
    assert store.read(outbox.waiting, task.id) == []
    assert store.read(registry.get, task.id).status is TaskStatus.KILLED


def test_a_kill_that_the_model_asked_for_is_not_announced(store: Store) -> None:
    task = store.task()
    store.write(registry.kill, task.id, by="the coordinator", notify=False, end_reason="killed")
    assert notified(store) == []
    assert store.read(registry.get, task.id).notified
    assert kinds(store, task) == ["task_created", "task_killed"]


def test_a_partial_result_is_added_once_and_only_to_a_killed_task(store: Store) -> None:
    task = store.task()
    attempt = store.claim(task)
    assert not store.write(registry.attach_partial, task.id, "early")
    store.write(registry.kill, task.id, by="x", notify=True, end_reason="killed")
    assert store.write(registry.attach_partial, task.id, "so far")
    assert not store.write(registry.attach_partial, task.id, "again")
    assert not store.write(registry.finish, task.id, attempt, END)
    assert "<result>so far</result>" in store.read(outbox.waiting, store.session_id)[0].body


def test_the_end_of_a_workers_own_task_is_told_to_that_worker_while_it_lives(store: Store) -> None:
    parent = store.task()
    store.claim(parent)
    first, second = store.task(parent_id=parent.id), store.task(parent_id=parent.id)
    store.write(registry.kill, first.id, by="x", notify=True, end_reason="killed")
    assert (notified(store), notified(store, parent.id)) == ([], [first.id])
    store.write(registry.kill, parent.id, by="x", notify=True, end_reason="killed")
    assert (notified(store), notified(store, parent.id)) == ([first.id, parent.id], [])
    store.write(registry.kill, second.id, by="x", notify=True, end_reason="killed")
    assert notified(store) == [first.id, parent.id, second.id]


def test_progress_keeps_the_last_five_activities_and_unknown_cost(store: Store) -> None:
    task = store.task(model="asked")
    attempt = store.claim(task)
    figures = {"tool_uses": 3, "input_tokens": 10, "output_tokens": 5, "activities": list("abcdefg")}
    assert store.write(registry.progress, task.id, attempt=attempt, cost_usd=0.5, cache_read_tokens=7, model="used", **figures)
    assert store.write(registry.progress, task.id, attempt=attempt, cost_usd=None, **figures)
    now = store.read(registry.get, task.id)
    assert (now.activities, now.cost_usd, now.cache_read_tokens, now.model, now.total_tokens) == (
        list("cdefg"),
        None,
        7,
        "used",
        15,
    )
    assert now.last_activity_at is not None and now.last_activity_at > task.created_at


def test_a_continued_run_is_a_new_task_of_the_same_agent(store: Store) -> None:
    first = store.task(name="scout", definition="worker")
    store.write(registry.finish, first.id, store.claim(first), END)
    second = store.task(continues=first.id)
    assert (second.agent_id, second.name, second.definition, second.continues) == (
        first.id,
        "scout",
        "worker",
        first.id,
    )
    for ref in (first.id, second.id, "scout"):
        agent, latest = store.read(agents.resolve, store.session_id, ref)
        assert (agent.id, latest) == (first.id, second)


def test_a_wish_to_stop_is_stored_until_the_end(store: Store) -> None:
    task = store.task()
    assert store.write(registry.request_stop, task.id, by="shell", wrap_up=60.0)
    wished = store.read(registry.get, task.id)
    assert (wished.stop_requested_by, wished.stop_wrap_up, wished.stop_requested_at is not None) == (
        "shell",
        60.0,
        True,
    )
    store.write(registry.kill, task.id, by="shell", notify=True, end_reason="killed")
    assert not store.write(registry.request_stop, task.id, by="shell")


def test_a_task_is_found_by_id_name_and_unique_beginning(store: Store) -> None:
    one, two = store.task(id="aab000001", name="scout"), store.task(id="aac000001")
    find = registry.resolve
    assert store.read(find, "aab000001") == store.read(find, "scout") == store.read(find, "aab") == one
    assert store.read(find, "aac") == two
    with pytest.raises(Ambiguous) as ambiguous:
        store.read(find, "aa")
    assert ambiguous.value.candidates == ("aab000001", "aac000001")
    for unknown in ("b", "", "%", "a_b", "aab0000011"):
        with pytest.raises(NotFound):
            store.read(find, unknown)


def test_a_name_goes_before_the_beginning_of_an_id(store: Store) -> None:
    named = store.task(id="axx000001", name="aab")
    store.task(id="aab000001")
    assert store.read(registry.resolve, "aab") == named


def test_a_name_in_two_sessions_means_the_live_one_or_lists_both(store: Store) -> None:
    old = store.task(name="scout")
    other = store.write(sessions.create, goal="g", cwd="/", model=None, options={})
    new = store.write(registry.create, NewTask(session_id=other.id, description="d", prompt="p", name="scout"))
    with pytest.raises(Ambiguous) as ambiguous:
        store.read(registry.resolve, "scout")
    assert set(ambiguous.value.candidates) == {old.id, new.id}
    assert store.read(registry.resolve, "scout", store.session_id) == old
    store.write(registry.kill, old.id, by="x", notify=True, end_reason="killed")
    assert store.read(registry.resolve, "scout") == new


def test_lists_are_by_session_status_and_without_long_texts_if_asked(store: Store) -> None:
    one, two = store.task(), store.task(type=TaskType.LOCAL_BASH)
    store.claim(two)
    other = store.write(sessions.create, goal="g", cwd="/", model=None, options={})
    third = store.write(registry.create, NewTask(session_id=other.id, description="d", prompt="p"))

    def ids(**wanted: object) -> list[str]:
        return [task.id for task in store.read(registry.list_tasks, TaskFilter(**wanted))]

    assert ids() == [one.id, two.id, third.id]
    assert ids(session_id=other.id) == [third.id]
    assert ids(statuses=[TaskStatus.RUNNING]) == [two.id]
    assert [task.id for task in store.read(registry.live, store.session_id)] == [one.id, two.id]
    brief = store.read(registry.list_tasks, TaskFilter(session_id=other.id, texts=False))
    assert brief == [replace(third, prompt="", result=None)]
    store.write(sessions.end, store.session_id, store.fence)
    assert ids() == [third.id]
    assert ids(ended_sessions=True) == [one.id, two.id, third.id]


def test_ending_a_session_ends_its_tasks(store: Store) -> None:
    task = store.task()
    store.write(sessions.end, store.session_id, store.fence, reason="done")
    ended = store.read(registry.get, task.id)
    assert (ended.status, ended.end_reason) == (TaskStatus.KILLED, "session_ended")


@pytest.mark.parametrize(("status", "gone", "shown"), [
    (TaskStatus.PENDING, False, "pending"),
    (TaskStatus.RUNNING, False, "running"),
    (TaskStatus.PENDING, True, "interrupted"),
    (TaskStatus.RUNNING, True, "interrupted"),
    (TaskStatus.COMPLETED, True, "completed"),
    (TaskStatus.FAILED, True, "failed"),
    (TaskStatus.KILLED, True, "killed"),
])  # fmt: skip
def test_a_live_task_without_owner_is_shown_as_interrupted(store: Store, status: TaskStatus, gone: bool, shown: str) -> None:
    assert registry.shown_status(replace(store.task(), status=status), gone) == shown


def test_asking_for_an_unknown_task_says_so(store: Store) -> None:
    for call in (registry.get, lambda c, id: registry.kill(c, id, by="x", notify=True, end_reason="k")):
        with pytest.raises(NotFound, match="no task a0"):
            store.read(call, "a0")


def test_annotations_change_only_what_is_given(store: Store) -> None:
    task = store.task(cwd="/a")
    store.write(registry.annotate, task.id, worktree="/w", branch="b")
    assert store.read(registry.get, task.id) == replace(task, worktree="/w", branch="b")


def test_the_schema_refuses_an_end_without_time_and_a_failure_without_class(store: Store) -> None:
    task = store.task()
    for wrong in ("ended_at = 1.0", "error = 'x', ended_at = NULL, status = 'killed'", "status = 'lost'"):
        with pytest.raises(IntegrityError):
            store.db.write(lambda conn, wrong=wrong: conn.execute(f"UPDATE tasks SET {wrong} WHERE id = '{task.id}'"))
    assert store.read(lambda conn: conn.value("SELECT status FROM tasks")) == "pending"


def test_a_page_is_the_newest_of_what_fits(store: Store) -> None:
    tasks = [store.task(description=str(n)) for n in range(6)]
    for task in tasks[::2]:
        store.write(registry.kill, task.id, by="x", notify=False, end_reason="x")
    ended = TaskFilter(statuses=(TaskStatus.KILLED,), session_id=store.session_id)
    assert [t.description for t in store.read(registry.newest, ended, 2)] == ["2", "4"]
    assert store.read(registry.newest, ended, 9) == store.read(registry.list_tasks, ended)
