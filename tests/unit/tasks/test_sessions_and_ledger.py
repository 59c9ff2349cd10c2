import re

import pytest

from tasks import events, ledger, models, processes, sessions
from tasks.errors import Ambiguous, NotFound
from tasks.ledger import Totals
from tasks.records import SessionStatus
from tests.unit.tasks.support import Store

DAY = 86_400.0


def book(store: Store, response_id: str | None, **fields: object) -> bool:
    given = {"session_id": store.session_id, "agent_id": "a1", "model": "m", "cost_usd": 0.5}
    return store.write(ledger.book, response_id=response_id, **(given | fields))


def test_a_session_is_found_by_id_title_and_unique_beginning(store: Store) -> None:
    def create(id: str, title: str | None = None) -> None:
        store.write(sessions.create, id=id, goal="g", cwd="/", model=None, options={}, title=title)

    create("zaa000001", "spring")
    create("zab000001")
    for ref in ("zaa000001", "spring", "zaa"):
        assert store.read(sessions.resolve, ref).id == "zaa000001"
    with pytest.raises(Ambiguous) as ambiguous:
        store.read(sessions.resolve, "za")
    assert ambiguous.value.candidates == ("zaa000001", "zab000001")
    for unknown in ("x", "", "%"):
        with pytest.raises(NotFound):
            store.read(sessions.resolve, unknown)


def test_sessions_are_listed_newest_first_and_by_status(store: Store) -> None:
    new = store.write(sessions.create, goal="g", cwd="/", model=None, options={"max_workers": 3})
    assert [s.id for s in store.read(sessions.list_sessions)] == [new.id, store.session_id]
    store.write(sessions.end, store.session_id, store.fence, reason="done")
    assert [s.id for s in store.read(sessions.list_sessions, status=SessionStatus.OPEN)] == [new.id]
    assert new.options == {"max_workers": 3}


def test_an_ended_session_says_why_and_can_be_opened_again(store: Store) -> None:
    store.write(sessions.end, store.session_id, store.fence, reason="done")
    ended = store.read(sessions.get, store.session_id)
    assert (ended.status, ended.end_reason, ended.owner, ended.ended_at is not None) == (
        SessionStatus.ENDED,
        "done",
        None,
        True,
    )
    store.write(sessions.reopen, store.session_id, store.fence)
    store.write(sessions.reopen, store.session_id, store.fence)
    again = store.read(sessions.get, store.session_id)
    assert (again.status, again.end_reason, again.ended_at) == (SessionStatus.OPEN, None, None)
    kinds = [event.kind for event in store.read(events.since)]
    assert kinds == ["session_created", "session_ended", "session_reopened"]


def test_details_change_only_where_given(store: Store) -> None:
    store.write(sessions.update_details, store.session_id, title="spring")
    now = store.read(sessions.get, store.session_id)
    assert (now.title, now.model, now.options) == ("spring", "some-model", {})


def test_events_are_followed_from_where_one_stopped(store: Store) -> None:
    start = store.read(events.last_id)
    store.write(events.add, store.session_id, None, "note", {"text": "\udc80"})
    store.write(events.add, store.session_id, "a1", "note")
    found = store.read(events.since, start, session_id=store.session_id)
    assert [(e.kind, e.task_id, e.data) for e in found] == [("note", None, {"text": "\ufffd"}), ("note", "a1", {})]
    assert store.read(events.since, start, limit=1) == found[:1]
    assert store.read(events.since, task_id="a1") == found[1:]


def test_a_response_is_counted_once_and_its_last_figures_count(store: Store) -> None:
    assert book(store, "r1", output_tokens=5, cost_usd=0.1)
    assert not book(store, "r1", output_tokens=9, input_tokens=2, cost_usd=0.2)
    assert store.read(ledger.total, session_id=store.session_id) == Totals(
        calls=1, input_tokens=2, output_tokens=9, cost_usd=0.2, known_cost_usd=0.2
    )


def test_responses_without_id_each_count(store: Store) -> None:
    assert book(store, None) and book(store, None)
    assert store.read(ledger.total).calls == 2


def test_sums_are_by_session_agent_task_model_and_day(store: Store) -> None:
    book(store, "r1", agent_id="a1", task_id="a1", model="x", at=10 * DAY, cache_read_tokens=7)
    book(
        store,
        "r2",
        agent_id="a2",
        task_id="a2",
        model="y",
        at=10 * DAY + 5,
        cache_write_5m_tokens=1,
        cache_write_1h_tokens=2,
    )
    book(store, "r3", agent_id="a2", task_id="a3", model="y", at=11 * DAY - 1)
    book(store, "r4", agent_id="a2", task_id="a3", model="y", at=11 * DAY)

    def calls(by: str, **which: object) -> dict[str, int]:
        return {total.key: total.calls for total in store.read(ledger.sums, by, **which)}

    assert calls("session") == {store.session_id: 4}
    assert calls("agent") == {"a1": 1, "a2": 3}
    assert calls("task") == {"a1": 1, "a2": 1, "a3": 2}
    assert calls("model") == {"x": 1, "y": 3}
    assert calls("day") == {"1970-01-11": 3, "1970-01-12": 1}
    assert calls("model", agent_id="a2", since=10 * DAY + 6) == {"y": 2}
    [of_a2] = store.read(ledger.sums, agent_id="a2")
    assert (of_a2.cache_write_5m_tokens, of_a2.cache_write_1h_tokens, of_a2.cost_usd) == (1, 2, 1.5)


def test_an_unknown_price_makes_the_sum_unknown_not_zero(store: Store) -> None:
    book(store, "r1", cost_usd=0.5)
    book(store, "r2", cost_usd=None)
    total = store.read(ledger.total)
    assert (total.cost_usd, total.known_cost_usd) == (None, 0.5)


def test_nothing_booked_is_zero(store: Store) -> None:
    assert store.read(ledger.total, session_id=store.session_id) == Totals()
    assert store.read(ledger.sums, "model") == []


def test_process_trees_are_on_record_until_they_end(store: Store) -> None:
    def add(pid: int, **fields: object) -> None:
        given = {"session_id": store.session_id, "task_id": "a1", "pid": pid, "started_at": 1.5, "marker": "m"}
        store.write(processes.add, **(given | fields))

    add(5, command="sleep 1")
    add(5, command="sleep 2")
    add(6, task_id=None)
    assert [(p.pid, p.command) for p in store.read(processes.list_processes, task_id="a1")] == [(5, "sleep 2")]
    assert store.write(processes.remove, 5, 1.5)
    assert not store.write(processes.remove, 5, 1.5)
    assert [p.pid for p in store.read(processes.list_processes, session_id=store.session_id)] == [6]


def test_the_views_have_the_columns_that_their_description_lists(store: Store) -> None:
    described = re.findall(r"^    (v_\w+): ((?:.|\n        )+)", models.__doc__ or "", re.MULTILINE)
    assert [name for name, _ in described] == ["v_sessions", "v_tasks", "v_cost", "v_events"]
    for name, columns in described:
        assert store.db.query(f"SELECT * FROM {name}")[0] == re.split(r",\s+", columns)


def test_the_views_give_iso_times_and_the_documented_columns(store: Store) -> None:
    task = store.task(name="scout", definition="worker")
    book(store, "r1", task_id=task.id, at=0.25)
    columns, [row] = store.db.query("SELECT * FROM v_tasks")
    view = dict(zip(columns, row, strict=True))
    assert (view["id"], view["agent"], view["status"], view["duration_ms"]) == (task.id, "worker", "pending", None)
    assert view["created_at"].endswith("Z") and view["created_at"].startswith("2027-01-15T08:00:0")
    columns, [row] = store.db.query("SELECT * FROM v_cost")
    cost = dict(zip(columns, row, strict=True))
    assert (cost["at"], cost["day"], cost["cost_usd"]) == ("1970-01-01T00:00:00.250Z", "1970-01-01", 0.5)
    columns, [row] = store.db.query("SELECT * FROM v_sessions")
    session = dict(zip(columns, row, strict=True))
    assert (session["tasks"], session["live_tasks"], session["cost_usd"], session["ended_at"]) == (1, 1, 0.5, None)
    assert [row[4] for row in store.db.query("SELECT * FROM v_events")[1]] == ["session_created", "task_created"]
