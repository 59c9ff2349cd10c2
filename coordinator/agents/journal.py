"""`Journal` over the task store: an agent's messages as rows, and rows as a history that can always be sent.

1. A row holds the very bytes that go to the wire. A history read back serialises to the same bytes.
2. What an unfinished turn left (`steps`) becomes whole messages again: the answer as far as it was closed, the results
   that were there, and for each call without one a result that says so: it may have run, so it is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from coordinator.agents.transcript_file import TranscriptFile
from coordinator.agents.transcript_lines import TranscriptLines
from coordinator.store import Store
from tasks import approvals, transcripts
from tasks.records import Attempt, MessageRecord, StepRecord
from worker_agent.context.rebuild import after_boundary
from worker_agent.loop.ports import Step, StepKind
from worker_agent.messages import Block, Kind, Message, Role, Usage, canonical, notice
from worker_agent.session.transcript import Open, repair

NOT_SPOKEN = frozenset({"notice", "view"})  # rows beside the conversation
SURROUNDINGS = "surroundings"


class TaskJournal:
    """The transcript of one agent, written by one `run` of it (None: the coordinator itself). Every write is
    fenced by its own statement: by the session's owner, and by the run's attempt."""

    def __init__(self, store: Store, agent_id: str, run: Attempt | None, file: TranscriptFile | None = None) -> None:
        self._store = store
        self._agent_id = agent_id
        self._run = run
        self._files: list[TranscriptFile | TranscriptLines] = [file] if file else []

    def also_to(self, lines: TranscriptLines) -> None:
        """What is appended from now on is written there, too."""
        self._files.append(lines)

    async def append(self, messages: Sequence[Message], consumed: Sequence[str] = ()) -> None:
        """Durable on return, in one transaction with marking the deliveries `consumed`. Raises `Fenced` if another
        process owns the session by now."""
        if not messages and not consumed:
            return
        rows = [to_record(message, self._run.task_id if self._run else None) for message in messages]
        fenced = self._fenced()
        await self._store.write(lambda conn: transcripts.append(conn, self._agent_id, rows, **fenced, consumed=consumed))
        for file in self._files:
            file.add(messages)

    async def step(self, step: Step) -> None:
        """Durable on return."""
        row = StepRecord(
            kind=step.kind,
            message_id=step.message_id,
            content=canonical(step.blocks).decode(),
            part=step.blocks[0]["tool_use_id"] if step.kind == "result" else "",
            model=step.model,
            at=self._store.clock.now(),
        )
        fenced = self._fenced()
        await self._store.write(lambda conn: transcripts.step(conn, self._agent_id, row, **fenced))

    def _fenced(self) -> dict[str, Any]:
        return {"session_id": self._store.session_id, "fence": self._store.fence, "run": self._run}


class History(Struct, frozen=True):
    """What an agent goes on with: `messages` in order; the last `len(added)` of them are new and not stored yet, and calls of
    the last may be `open`. `surroundings` are the system and user context it began with, `stored` is the whole transcript
    with all its rows."""

    messages: tuple[Message, ...] = ()
    added: tuple[Message, ...] = ()
    open: Open = Open()
    surroundings: Mapping[str, Any] | None = None
    stored: tuple[Message, ...] = ()


def load_history(
    store: Store,
    agent_id: str,
    is_read_only: Callable[[str, Block], bool],
    known: Callable[[Block], Block | None] = lambda call: None,
) -> History:
    """The stored conversation of `agent_id` from its last compaction on, mended so that it can be sent.
    `is_read_only(name, input)` says of a call whether it can have had an effect, `known(call)` what is recorded of it."""
    rows, steps, waited = store.read(
        lambda conn: (transcripts.load(conn, agent_id), transcripts.steps(conn, agent_id), approvals.open_calls(conn, agent_id))
    )
    stored = [from_record(row) for row in rows]
    messages = tuple(message for message in after_boundary(stored) if message.kind not in NOT_SPOKEN)
    repaired = repair(messages, [to_step(step) for step in steps], is_read_only, known, waited)
    added = repaired.added
    surroundings = next((message.data[SURROUNDINGS] for message in stored if SURROUNDINGS in message.data), None)
    return History((*messages, *added), added, repaired.open, surroundings, (*stored, *added))


def to_step(row: StepRecord) -> Step:
    return Step(
        kind=cast("StepKind", row.kind), message_id=row.message_id, blocks=tuple(orjson.loads(row.content)), model=row.model
    )


def surroundings_row(system: str, user_context: str | None, at: float) -> Message:
    """The first row of a transcript: what stood around the conversation when it began, so that a resumed one sends the
    same bytes in front of it."""
    data: dict[str, Any] = {SURROUNDINGS: {"system": system, "user_context": user_context, "at": at}}
    return notice("", **data)


def to_record(message: Message, task_id: str | None) -> MessageRecord:
    """The row of a message; `seq` is assigned when it is stored."""
    extra: dict[str, Any] = {
        "usage": asdict(message.usage) if message.usage else None,
        "stop_reason": message.stop_reason,
        "model": message.model,
        "response_id": message.response_id,
        "data": dict(message.data) or None,
    }
    return MessageRecord(
        id=message.id,
        task_id=task_id,
        role=message.role,
        kind=message.kind,
        meta=message.meta,
        content=message.wire.decode(),
        extra={key: value for key, value in extra.items() if value is not None},
        at=message.at,
    )


def from_record(row: MessageRecord) -> Message:
    """The message of a row, with the bytes it was stored with. What the columns hold is what `to_record` put there."""
    extra = row.extra
    return Message(
        role=cast("Role", row.role),
        content=tuple(orjson.loads(row.content)),
        kind=cast("Kind", row.kind),
        id=row.id,
        meta=row.meta,
        usage=Usage(**extra["usage"]) if extra.get("usage") else None,
        stop_reason=extra.get("stop_reason"),
        model=extra.get("model"),
        response_id=extra.get("response_id"),
        data=extra.get("data") or {},
        at=row.at,
        wire=row.content.encode(),
    )
