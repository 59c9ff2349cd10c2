"""`Inbox` over the durable outbox: what waits for one agent, as messages for its next turn.

1. Nothing is consumed here. The journal marks deliveries consumed in the transaction that stores the message which
   holds them; what was taken and not stored is offered again.
2. Notifications that are ready together travel in one message, oldest first, which says that the system sent it.
3. A task that was killed from outside is announced when its run is unwound (`still_runs` says no), with its partial
   text.
4. The store is asked only when something may have come: `nudge` says so, from this process or another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.store import Store
from tasks import notifications, outbox
from tasks.records import Delivery, DeliveryKind
from worker_agent.loop.ports import Attachment
from worker_agent.messages import user
from worker_agent.session.plain_text import REPORTS

FROM_USER = "user"
FROM_COORDINATOR = "coordinator"


class TaskInbox:
    """The inbox of one agent."""

    def __init__(
        self,
        store: Store,
        agent_id: str,
        redact: Callable[[str], str] = lambda text: text,
        still_runs: Callable[[str], bool] = lambda task_id: False,
    ) -> None:
        self._store = store
        self._agent_id = agent_id
        self._redact = redact
        self._still_runs = still_runs
        self._may_hold = True

    def nudge(self) -> None:
        """Something may have come."""
        self._may_hold = True

    def waiting(self) -> bool:
        """Whether something is waiting now."""
        return bool(self._deliveries())

    async def take(self) -> Sequence[Attachment]:
        """What is ready now. Does not consume: see the rules above."""
        deliveries = self._deliveries()
        notices = [d for d in deliveries if d.kind is DeliveryKind.NOTIFICATION]
        return (
            *self._notifications(notices),
            *(self._message(d) for d in deliveries if d.kind is DeliveryKind.MESSAGE),
        )

    def _deliveries(self) -> list[Delivery]:
        if not self._may_hold:
            return []
        deliveries = self._store.read(lambda conn: outbox.waiting(conn, self._agent_id))
        self._may_hold = bool(deliveries)
        return [d for d in deliveries if d.task_id is None or not self._still_runs(d.task_id)]

    def _notifications(self, deliveries: Sequence[Delivery]) -> tuple[Attachment, ...]:
        if not deliveries:
            return ()
        text = self._redact("\n".join([notifications.PREFACE, *(delivery.body for delivery in deliveries)]))
        data = {"source": REPORTS, "task_ids": [d.task_id for d in deliveries]}
        message = user(text, kind="attachment", meta=True, data=data)
        return (Attachment(message, tuple(d.id for d in deliveries)),)

    def _message(self, delivery: Delivery) -> Attachment:
        if delivery.sender == FROM_USER:
            message = user(delivery.body, kind="prompt", data={"source": "send", "sender": delivery.sender})
        else:
            text = f"A message from the {delivery.sender}, sent while you worked:\n\n{delivery.body}"
            message = user(text, kind="attachment", meta=True, data={"source": "send", "sender": delivery.sender})
        return Attachment(message, (delivery.id,))
