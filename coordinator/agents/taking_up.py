"""What an agent goes on with after a crash or a compaction, from the store and not from anybody's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.agents.journal import History, load_history
from coordinator.store import Store
from coordinator.tools.agent import launched
from tasks import outbox, registry
from tasks.connection import Connection
from tasks.records import TaskRecord
from worker_agent import tool_facts
from worker_agent.messages import Block, Message, canonical, tool_result_block, user


class Recollection:
    """`may_change(name, input)` says of a call that was cut off whether it can have had an effect."""

    def __init__(self, store: Store, may_change: Callable[[str, Block], bool], redact: Callable[[str], str]) -> None:
        self._store = store
        self._may_change = may_change
        self._redact = redact

    def history(self, agent_id: str) -> History:
        return load_history(self._store, agent_id, lambda name, input: not self._may_change(name, input), self.spawned)

    def spawned(self, call: Block) -> Block | None:
        """What became of a spawn whose result was not stored: the record of tasks knows."""
        if call["name"] not in tool_facts.AGENT.names:
            return None
        task = self._store.read(lambda conn: registry.asked_by(conn, self._store.session_id, call["id"]))
        if task is not None:
            return tool_result_block(call["id"], canonical(launched(task)).decode())
        text = "Interrupted before the worker was created: it does not exist. Call again if it is still wanted."
        return tool_result_block(call["id"], text, is_error=True)

    async def live_tasks(self) -> Sequence[Message]:
        """Which tasks live or are still to be announced."""
        tasks = self._store.read(lambda conn: _open_tasks(conn, self._store.session_id))
        if not tasks:
            return ()
        text = "Tasks that have not ended or were not announced yet; each will send its notification once:\n"
        text += "\n".join(map(_line, tasks))
        return (user(self._redact(text), kind="attachment", meta=True, data={"source": "live_tasks"}),)


def _open_tasks(conn: Connection, session_id: str) -> list[TaskRecord]:
    """The tasks that live, and those that ended and whose notification waits, oldest first."""
    live = registry.live(conn, session_id)
    known = {task.id for task in live}
    waiting = [delivery.task_id for delivery in outbox.waiting(conn, session_id)]
    ended = [registry.get(conn, id) for id in waiting if id is not None and id not in known]
    return sorted((*live, *ended), key=lambda task: task.created_at)


def _line(task: TaskRecord) -> str:
    what = f"{task.description} ({task.status}, {task.definition or task.type})"
    return f"- {task.id}{f' named {task.name}' if task.name else ''}: {' '.join(what.split())}"
