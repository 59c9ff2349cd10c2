"""Who owns a session: a lease with a fencing token.

1. One process drives a session; others watch, send and kill. The owner renews its lease (10 s) every 2 s.
2. Every change of owner raises `fence`. A write that shows an older fence is refused in the same transaction, so an
   owner that was frozen and wakes late cannot write.
3. A session can be taken over when its lease has run out, or at once when its owner is *proven* dead.
4. Proof of death: on the same host the pid is gone, or belongs to a process with another start time (and the lease has
   run out: a stepped clock shifts start times, a living owner goes on renewing). From another host, or another pid
   namespace, processes cannot be seen: there the heartbeat alone speaks.
"""

from __future__ import annotations

import os
from functools import cache

from tasks.connection import Connection
from tasks.errors import Fenced, NotFound, Owned
from tasks.records import Owner, SessionRecord
from tasks.rows import SESSION
from tasks.states import TaskStatus

TTL = 10.0  # seconds
START_TOLERANCE = 2.0  # seconds: start times are computed from the boot time, which a time service shifts a little
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"

_FENCE = "SELECT fence FROM sessions WHERE id = :session_id"
_MINE = "id = :session_id AND fence = :of_fence"


def acquire(conn: Connection, session_id: str, owner: Owner, now: float, ttl: float = TTL) -> int:
    """Make `owner` the owner and return the new fence. Pending tasks come along. Raises `NotFound`, `Owned`."""
    row = conn.row(f"SELECT {SESSION.columns} FROM sessions WHERE id = :id{conn.updating}", id=session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    session, now = SESSION(row), conn.time_of(now)
    if not _free(session, owner, now):
        raise Owned(session_id, session.owner)
    fence = session.fence + 1
    lease = {"heartbeat_at": now, "lease_expires_at": now + ttl}
    mine = {"owner_pid": owner.pid, "owner_started_at": owner.started_at, "owner_host": owner.host, "fence": fence}
    conn.set("sessions", mine | lease, "id = :session_id", session_id=session_id)
    pending = "session_id = :session_id AND status = :pending"
    conn.set("tasks", {"fence": fence}, pending, session_id=session_id, pending=TaskStatus.PENDING)
    return fence


def _free(session: SessionRecord, owner: Owner, now: float) -> bool:
    if session.owner is None or session.owner == owner or session.lease_expires_at is None:
        return True
    return session.lease_expires_at <= now or is_gone(session.owner, session.lease_expires_at, now, owner.host)


def renew(conn: Connection, session_id: str, fence: int, now: float, ttl: float = TTL) -> None:
    """A heartbeat. Raises `Fenced`."""
    now = conn.time_of(now)
    lease = {"heartbeat_at": now, "lease_expires_at": now + ttl}
    if conn.set("sessions", lease, f"{_MINE} AND owner_pid IS NOT NULL", session_id=session_id, of_fence=fence) != 1:
        raise Fenced(f"session {session_id} has another owner by now")


def release(conn: Connection, session_id: str, fence: int) -> bool:
    """Give the session back; False if it was not ours any more."""
    nobody = {"owner_pid": None, "owner_started_at": None, "owner_host": None, "lease_expires_at": None}
    return conn.set("sessions", dict(nobody), _MINE, session_id=session_id, of_fence=fence) == 1


def check(conn: Connection, session_id: str, fence: int) -> None:
    """Raise `Fenced` unless `fence` is the session's own. Holds until the end of the transaction."""
    current = conn.value(f"{_FENCE}{conn.sharing}", session_id=session_id)
    if current != fence:
        raise Fenced(f"session {session_id} " + ("is gone" if current is None else "has another owner by now"))


def is_gone(owner: Owner | None, lease_expires_at: float | None, now: float, this_host: str) -> bool:
    """Whether the owner is proven gone (rule 4); a session that nobody owns has none to wait for."""
    if owner is None:
        return True
    expired = lease_expires_at is None or lease_expires_at <= now
    if owner.host != this_host:
        return expired
    started_at = start_time(owner.pid)
    if started_at is None:
        return True
    return expired and abs(started_at - owner.started_at) > START_TOLERANCE


def start_time(pid: int) -> float | None:
    """When the process `pid` of this host began; None if there is none, or only its zombie."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return 0.0  # it lives, but is not ours to look at: never the owner we recorded


def this_host() -> str:
    """The name of this machine, and of the pid namespace where it is not the machine's first."""
    return _host(os.getpid())


@cache
def _host(pid: int) -> str:
    name = os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return name
    return name if namespace == _INITIAL_PID_NAMESPACE else f"{name}/{namespace}"


def this_owner() -> Owner:
    """This process as an owner."""
    return _owner(os.getpid())


@cache
def _owner(pid: int) -> Owner:
    return Owner(pid, start_time(pid) or 0.0, this_host())
