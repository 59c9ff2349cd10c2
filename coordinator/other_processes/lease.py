"""The lease on a session: this process owns it, says so every two seconds, and stops when it does not any more.

A lease that was lost means that another process drives the session now. Whatever this one still wanted to write, the
fence refuses; all that is left to do is to stop at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.store import Store
from tasks import leases
from tasks.db import Database
from tasks.errors import DatabaseError, DatabaseGone, Fenced, Owned
from tasks.records import Owner
from worker_agent.config import Clock

HEARTBEAT = 2.0  # seconds
LEASE = 10.0  # seconds

log = logging.getLogger(__name__)
_driven: set[str] = set()  # the sessions that this process drives now


@contextmanager
def only_here(session_id: str) -> Iterator[None]:
    """Around driving a session: a process may take over from itself, so that two drivers in one would not see each other.
    Raises `Owned`."""
    if session_id in _driven:
        raise Owned(session_id, leases.this_owner())
    _driven.add(session_id)
    try:
        yield
    finally:
        _driven.discard(session_id)


def acquire(database: Database, session_id: str, owner: Owner, clock: Clock) -> int:
    """Own the session from now on; the token of it, with which everything is written. Raises `Owned` if a living process
    does."""
    return database.write(lambda conn: leases.acquire(conn, session_id, owner, clock.now(), ttl=LEASE))


async def keep(store: Store, on_lost: Callable[[], None]) -> None:
    """Renew until cancelled; when the lease is lost, call `on_lost` and return."""
    while True:
        await store.clock.sleep(HEARTBEAT)
        try:
            await store.writer.write(
                lambda conn: leases.renew(conn, store.session_id, store.fence, store.clock.now(), ttl=LEASE)
            )
        except Fenced:
            on_lost()
            return
        except DatabaseGone as error:
            store.fail(error)
            return
        except DatabaseError as error:
            # The lease outlives a few lost beats; a database that stays away shows at the next real write.
            log.warning("heartbeat of %s failed: %s", store.session_id, error)


async def release(store: Store) -> None:
    """Give the session back, so that another process may take it at once. Also tried when the store has failed; else the
    end of this process says it."""
    try:
        await store.writer.write(lambda conn: leases.release(conn, store.session_id, store.fence))
    except Fenced:
        return
    except DatabaseError as error:
        log.warning("the lease of %s runs out by itself: %s", store.session_id, error)
