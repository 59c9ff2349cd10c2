"""What is set apart for a process of a session's budget: a row of the database, by the one writer of the process, so that what was
booked before is known to it."""

from __future__ import annotations

from coordinator.agents.budget import Amount, Granted, Limit
from coordinator.store import Store
from tasks import fleet
from tasks.errors import DatabaseError


class BudgetShares:
    """`Shares` of the holder: a node, or `fleet.OWNER`."""

    def __init__(self, store: Store, holder: str, limit: Limit) -> None:
        self._store = store
        self._holder = holder
        self._limit = limit

    def take(self, wanted: Amount, busy: bool) -> Granted:
        store = self._store
        try:
            share = store.writer.submit(
                lambda conn: fleet.take(
                    conn, store.session_id, self._holder, wanted_usd=wanted.usd, wanted_tokens=wanted.tokens,
                    limit_usd=self._limit.usd, limit_tokens=self._limit.tokens, busy=busy,
                )
            ).result()  # fmt: skip
        except DatabaseError as error:
            store.fail(error)
            raise
        total = Amount(share.spent_usd, share.spent_tokens)
        return Granted(Amount(share.usd, share.tokens), total, share.others_busy)

    def keep(self, amount: Amount, busy: bool) -> None:
        store = self._store
        store.submit(lambda conn: fleet.set_share(conn, store.session_id, self._holder, amount.usd, amount.tokens, busy=busy))
