"""What a person is told of a task on a node: the node's life counts, not that of the session's own process alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.other_processes import sending
from coordinator.paths import Paths
from coordinator.views.shown import Owners, shown_tasks
from tasks import nodes, registry
from tasks.connection import Connection
from tasks.ids import TaskType
from tasks.nodes import DEAD_AFTER, NewNode
from tasks.records import TaskRecord
from tests.unit.tasks.support import Store, open_store, run_out

NODE = NewNode(name="a", holder="h", host="elsewhere", pid=1, version="1", slots=4)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path)
    made.write(lambda conn: conn.set("sessions", {"options": {"backend": "cluster"}}, "id = :of", of=made.session_id))
    made.write(nodes.join, NODE)
    yield made
    made.db.close()


def owner_dies(store: Store) -> None:
    """Its machine is lost, and with it whoever drove the session."""
    store.write(lambda conn: conn.set("sessions", {"owner_host": "lost"}, "id = :of", of=store.session_id))
    run_out(store)


def on_node(store: Store) -> TaskRecord:
    task = store.task()
    store.claim(task)
    store.write(nodes.beat, "a", "h", running=[task.id])
    return task


def shown(store: Store) -> dict[str, tuple[str, str | None]]:
    """Status and last activity by id."""

    def read(conn: Connection) -> dict[str, tuple[str, str | None]]:
        rows = shown_tasks(conn, registry.live(conn, store.session_id), store.clock())
        return {row["id"]: (row["status"], row["last_activity"]) for row in rows}

    return store.db.read(read)


def node_dies(store: Store) -> None:
    store.write(lambda conn: conn.set("nodes", {"heartbeat_at": store.clock() - 2 * DEAD_AFTER}, "name = :of", of="a"))


def test_what_a_living_node_runs_is_running_though_nobody_drives_the_session(store: Store) -> None:
    task, waiting = on_node(store), store.task()
    command = store.task(parent_id=task.id, type=TaskType.LOCAL_BASH)
    store.claim(command)
    owner_dies(store)
    assert shown(store) == {
        task.id: ("running", None), command.id: ("running", None), waiting.id: ("interrupted", None),
    }  # fmt: skip
    node_dies(store)
    assert {status for status, _ in shown(store).values()} == {"interrupted"}


def test_what_a_dead_node_ran_waits_for_another_while_somebody_drives_the_session(store: Store) -> None:
    task = on_node(store)
    assert shown(store)[task.id] == ("running", None)
    node_dies(store)
    assert shown(store)[task.id] == ("pending", "waits for a node: a, which ran it, is dead")


def test_a_message_to_what_a_living_node_runs_waits_for_nobody(store: Store, tmp_path: Path) -> None:
    task = on_node(store)
    owner_dies(store)

    def send() -> sending.Sent:
        return store.write(sending.send, task.id, "look again", paths=Paths(tmp_path), now=store.clock())

    assert send().undriven is None
    node_dies(store)
    assert send().undriven == store.session_id
    assert store.read(lambda conn: Owners(conn, store.clock()).reaches_nobody(task))
