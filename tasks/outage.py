"""A server that goes away comes back: what was asked of it meanwhile waits, and is asked again.

1. Only what says that nobody answered counts (`is_away`): a refused or broken connection, a server that shuts down or starts, or
   that gave up waiting for this process (`engine.HELD`).
   An SQLite file is never away.
2. A transaction is tried again as a whole; what it was to do touches nothing but its connection.
3. A commit whose answer was lost may have happened. The server knows (`was_committed`), so nothing is done twice.
4. It ends: after `OUTAGE` the error is told as any other.
"""

from __future__ import annotations

import time
from typing import Any

from tasks.connection import Pool

OUTAGE = 60.0  # seconds that a server may be away
PAUSE = 0.1  # seconds between two tries
_GOING = ("57P01", "57P02", "57P03", "25P03")  # told to end, crashed, not ready yet, waited too long for us


def is_away(error: BaseException) -> bool:
    """Whether the error only says that the server was not there, or went away in the middle."""
    cause: Any = error
    if type(cause).__name__ not in (
        "OperationalError",
        "AdminShutdown",
        "CrashShutdown",
        "CannotConnectNow",
        "ConnectionTimeout",
        "IdleInTransactionSessionTimeout",
    ):
        return False
    state = getattr(cause, "sqlstate", "")  # a driver without it is SQLite's
    return state is None or state in _GOING or state.startswith("08")


class Patience:
    """For one thing that is asked of a server: begins to count with the first try that fails."""

    def __init__(self) -> None:
        self._until: float | None = None

    def goes_on(self) -> bool:
        """Whether to try again, after a pause; False when the limit is over."""
        now = time.monotonic()
        self._until = self._until or now + OUTAGE
        if now >= self._until:
            return False
        time.sleep(PAUSE)
        return True


def was_committed(pool: Pool, transaction_id: str) -> bool:
    """Whether the transaction took place; waits until that is settled. Raises what the driver raises."""
    with pool.connection() as connection:
        while True:
            status = connection.value("SELECT pg_xact_status(CAST(:id AS xid8))", id=transaction_id)
            if status != "in progress":
                return bool(status == "committed")
            time.sleep(PAUSE)
