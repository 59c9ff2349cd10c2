"""Machines that take workers, as they say of themselves by a heartbeat.

1. A name is held by one process. A second one with the same name is refused while the first lives; when that one is dead the
   second takes over, and a first one that was only frozen is told so by its next heartbeat (`Fenced`).
2. All times are the database's: the machines' clocks may differ.
3. `draining` is asked for by anybody and seen by the node at its next heartbeat. Dead is derived, not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from tasks.connection import Connection
from tasks.errors import Fenced, NotFound, OtherVersion, Owned
from tasks.records import Owner

DEAD_AFTER = 3.0  # seconds without a heartbeat
_COLUMNS = "name, holder, host, pid, version, slots, tags, running, draining, load, memory, started_at, heartbeat_at"


class NodeStatus(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class NewNode(Struct, frozen=True, kw_only=True):
    """A process that wants to be the node `name`; `holder` tells it from every other."""

    name: str
    holder: str
    host: str
    pid: int
    version: str
    slots: int
    tags: tuple[str, ...] = ()


class NodeRecord(Struct, frozen=True, kw_only=True):
    name: str
    holder: str
    host: str
    pid: int
    version: str
    slots: int
    tags: tuple[str, ...]
    running: tuple[str, ...]
    draining: bool
    load: float | None
    memory: int | None
    started_at: float
    heartbeat_at: float
    seen_at: float  # when this was read, by the database's clock

    @property
    def status(self) -> NodeStatus:
        if self.seen_at - self.heartbeat_at > DEAD_AFTER:
            return NodeStatus.DEAD
        return NodeStatus.DRAINING if self.draining else NodeStatus.READY


def join(conn: Connection, new: NewNode) -> None:
    """Be the node of that name. Raises `Owned` while a living process is, `OtherVersion` beside living nodes of another."""
    now = conn.server_time()
    for node in list_nodes(conn):
        if node.status is NodeStatus.DEAD:
            continue
        if node.name == new.name:
            raise Owned(f"node {new.name}", Owner(node.pid, node.started_at, node.host))
        if node.version != new.version:
            raise OtherVersion(
                f"node {node.name} is version {node.version}, this is {new.version}: drain the nodes of the other version first"
            )
    conn.execute("DELETE FROM nodes WHERE name = :name", name=new.name)
    row = asdict(new) | {"tags": list(new.tags), "running": []}
    conn.insert("nodes", row | {"draining": False, "load": None, "memory": None, "started_at": now, "heartbeat_at": now})


def beat(
    conn: Connection, name: str, holder: str, *, running: Sequence[str], load: float | None = None, memory: int | None = None
) -> bool:
    """Say that the node lives; whether it is to drain. Raises `Fenced` once another process has its name, or it was
    removed."""
    said = {"heartbeat_at": conn.server_time(), "running": list(running), "load": load, "memory": memory}
    if conn.set("nodes", said, "name = :of AND holder = :holder", of=name, holder=holder) != 1:
        raise Fenced(f"node {name} is another process by now, or was removed")
    return get(conn, name).draining


def leave(conn: Connection, name: str, holder: str) -> None:
    """The node ends of its own will; nothing if it is not this process any more."""
    conn.execute("DELETE FROM nodes WHERE name = :name AND holder = :holder", name=name, holder=holder)


def drain(conn: Connection, name: str) -> None:
    """Have a node start nothing new, give back what it runs, and end. Raises `NotFound`."""
    if conn.set("nodes", {"draining": True}, "name = :of", of=name) != 1:
        raise NotFound(f"no node {name}")


def remove(conn: Connection, name: str) -> None:
    """Forget a node. Raises `NotFound`, and `Owned` while it lives."""
    held = get(conn, name)
    if held.status is not NodeStatus.DEAD:
        raise Owned(f"node {name}", Owner(held.pid, held.started_at, held.host))
    conn.execute("DELETE FROM nodes WHERE name = :name", name=name)


def find(conn: Connection, name: str) -> NodeRecord | None:
    return next((node for node in list_nodes(conn) if node.name == name), None)


def get(conn: Connection, name: str) -> NodeRecord:
    """Raises `NotFound`."""
    if (node := find(conn, name)) is None:
        raise NotFound(f"no node {name}")
    return node


def list_nodes(conn: Connection) -> list[NodeRecord]:
    """All of them, by name."""
    now = conn.server_time()
    return [_record(row, now) for row in conn.rows(f"SELECT {_COLUMNS} FROM nodes ORDER BY name")]


def running(conn: Connection, task_id: str) -> NodeRecord | None:
    """The living node that says that it runs the task."""
    return next((n for n in list_nodes(conn) if task_id in n.running and n.status is not NodeStatus.DEAD), None)


def _record(row: Sequence[Any], now: float) -> NodeRecord:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    for name in ("tags", "running"):
        values[name] = tuple(orjson.loads(values[name]))
    values["draining"] = bool(values["draining"])
    return NodeRecord(**values, seen_at=now)
