"""A message to a worker, or to a session's coordinator, from any process: the same path as the coordinator's SendMessage.

It is stored; the session's owner sees it and goes on. To a worker that has ended it is a new run on the same conversation.
Without a living owner it waits for `coordinator resume`.
"""

from __future__ import annotations

from msgspec import Struct

from coordinator.other_processes.refusal import Refusal
from coordinator.paths import Paths
from coordinator.views.exit_codes import ExitCode
from coordinator.views.shown import Owners
from tasks import agents, outbox, registry, sessions
from tasks.connection import Connection
from tasks.errors import NotFound
from tasks.records import TaskRecord
from tasks.states import TaskStatus

SENDER = "user"


class Sent(Struct, frozen=True):
    """`words` say what became of it; `undriven` is the session that nobody drives now, if so."""

    words: str
    undriven: str | None


def send(conn: Connection, to: str, text: str, *, paths: Paths, now: float) -> Sent:
    """`text` to the worker, task or session that `to` names. Raises `Refusal`, `NotFound`, `Ambiguous`."""
    if not text.strip():
        raise Refusal("the message is empty", ExitCode.USAGE)
    try:
        agent, task = agents.resolve(conn, None, to)
    except NotFound as unknown:
        try:
            session = sessions.resolve(conn, to)
        except NotFound:
            raise unknown from None
        agent, task = agents.get(conn, session.id), None
    owners = Owners(conn, now)
    nobody = owners.gone(agent.session_id) if task is None else owners.reaches_nobody(task)
    undriven = agent.session_id if nobody else None
    if task is not None and not task.reports:
        raise Refusal(f"{task.id} is a shell command: it reads no messages", ExitCode.USAGE)
    if task is not None and task.status is TaskStatus.KILLED:
        raise Refusal(f"{task.id} was killed; a message does not revive it (`coordinator tasks retry` does)")
    if task is None or task.is_live:
        outbox.send(conn, session_id=agent.session_id, agent_id=agent.id, body=text, sender=SENDER)
        return Sent("queued", undriven)
    return Sent(f"continued {go_on(conn, task, text, paths).id}", undriven)


def go_on(conn: Connection, task: TaskRecord, prompt: str, paths: Paths) -> TaskRecord:
    """A new run on the conversation of an ended one; the session's owner takes it up."""
    from coordinator.session.coordinator import follow_up

    return registry.create(conn, follow_up(task, prompt, None, paths))
