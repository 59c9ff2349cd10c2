"""Nodes as the store knows them: a name is one living process's, times are the database's, dead is derived."""

from __future__ import annotations

import pytest

from tasks import nodes
from tasks.errors import Fenced, NotFound, OtherVersion, Owned
from tasks.nodes import DEAD_AFTER, NewNode, NodeStatus
from tests.unit.tasks.support import Store, on_sqlite
from worker_agent.structs import replace

A = NewNode(name="a", holder="h1", host="here", pid=7, version="1.0", slots=4, tags=("docker", "gpu"))


def test_a_node_says_what_it_is_and_what_runs_there(store: Store) -> None:
    store.write(nodes.join, A)
    assert not store.write(nodes.beat, "a", "h1", running=["t1", "t2"], load=0.5, memory=2**40)
    node = store.read(nodes.get, "a")
    assert (node.status, node.tags, node.running, node.slots, node.memory) == (
        NodeStatus.READY,
        ("docker", "gpu"),
        ("t1", "t2"),
        4,
        2**40,
    )
    found = store.read(nodes.running, "t2")
    assert found is not None and replace(found, seen_at=node.seen_at) == node
    assert store.read(nodes.running, "t9") is None
    store.write(nodes.drain, "a")
    assert store.write(nodes.beat, "a", "h1", running=[])
    assert store.read(nodes.get, "a").status is NodeStatus.DRAINING
    store.write(nodes.leave, "a", "another")
    store.write(nodes.leave, "a", "h1")
    assert store.read(nodes.list_nodes) == []
    for unknown in (nodes.drain, nodes.remove):
        with pytest.raises(NotFound):
            store.write(unknown, "a")


def test_a_name_is_one_living_processs(store: Store) -> None:
    store.write(nodes.join, A)
    with pytest.raises(Owned):
        store.write(nodes.join, replace(A, holder="h2"))
    with pytest.raises(Owned):
        store.write(nodes.remove, "a")


def test_nodes_of_two_versions_do_not_serve_side_by_side(store: Store) -> None:
    store.write(nodes.join, A)
    with pytest.raises(OtherVersion, match=r"node a is version 1\.0.*this is 2\.0"):
        store.write(nodes.join, replace(A, name="b", holder="h2", version="2.0"))


@on_sqlite  # whose clock a test can move
def test_a_silent_node_is_dead_and_one_that_wakes_late_is_told(store: Store) -> None:
    store.write(nodes.join, A)
    store.clock.now += DEAD_AFTER + 1
    assert store.read(nodes.get, "a").status is NodeStatus.DEAD
    store.write(nodes.join, replace(A, holder="h2", version="2.0"))
    with pytest.raises(Fenced):
        store.write(nodes.beat, "a", "h1", running=[])
    store.clock.now += DEAD_AFTER + 1
    store.write(nodes.remove, "a")
    with pytest.raises(Fenced):
        store.write(nodes.beat, "a", "h2", running=[])
