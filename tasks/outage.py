"""A server that goes away comes back: what was asked of it meanwhile waits, and is asked again.

1. Only what says that nobody answered counts (`is_away`): a refused or broken connection, a server that shuts down or starts, or
   that gave up waiting for this process (`engine.HELD`).
   An SQLite file is never away.
2. A transaction is tried again as a whole; what it was to do touches nothing but its connection.
3. A commit whose answer was lost may have happened. It left a mark if it did (`was_committed`), so nothing is done twice.
4. It ends: after `OUTAGE` the error is told as any other.
"""

from __future__ import annotations

import time

from tasks.connection import Mark, Pool

OUTAGE = 60.0  # seconds that a server may be away
PAUSE = 0.1  # seconds between two tries
_GOING = (  # what a server says of itself: told to end, crashed, not ready yet, waited too long for us, full
    "57P01", "57P02", "57P03", "57P05", "25P03", "53300",
)  # fmt: skip


def is_away(error: BaseException) -> bool:
    """Whether the error only says that the server was not there, or went away in the middle. Told by the driver's names, so
    that no driver is imported for it."""
    state = getattr(error, "sqlstate", "")  # a driver without it is SQLite's
    if state is None:  # no server said it: the driver did, which calls a broken connection by one of two names
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return "OperationalError" in kinds or kinds[0] == "DatabaseError"
    return state in _GOING or str(state).startswith("08")


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


def was_committed(pool: Pool, mark: Mark) -> bool:
    """Whether the transaction took place. Asked as one that writes: that waits for it, should it still be about to end. Raises
    what the driver raises."""
    with pool.connection() as connection, connection.transaction():
        number = connection.value("SELECT number FROM commit_marks WHERE connection = :id", id=mark.connection)
    return number is not None and int(number) >= mark.number
