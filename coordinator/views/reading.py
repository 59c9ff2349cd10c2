"""What viewers such as the page's server read: objects of the command line where there are such, else what they draw. In the caller's
snapshot; nothing is written, and no call waits for anything but the database.

A *line* of a log is one message as it is shown in a list: who, when, and of each part the beginning. What a model or a tool
wrote may be a megabyte without a line end; what is longer is asked for by itself (`whole`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from coordinator.views.messages import message_json, parts
from coordinator.views.shown import Shown, sessions_in, shown_approvals, shown_tasks
from coordinator.views.values import iso
from tasks import approvals, events, ledger, registry, sessions, transcripts
from tasks.connection import Connection
from tasks.errors import NotFound
from tasks.records import EventRecord, MessageRecord, SessionRecord, TaskRecord
from tasks.registry import TaskFilter
from worker_agent import disk, tool_facts
from worker_agent.tool_facts import Access

SHOWN = 4_000  # characters of a part in a list
PAGE = 200  # lines
MOST = 1_000  # lines or events in one answer
OUTPUT = 256 * 1024  # bytes of a command's output, its end
UNSEEN = frozenset({"view"})  # kinds of rows that are no messages: what is sent of the history
_KEYS = (
    "SELECT messages.agent_id, messages.seq FROM messages JOIN agents ON agents.id = messages.agent_id "
    "WHERE agents.session_id = :session_id AND {fits} "
    "ORDER BY messages.at {order}, messages.agent_id {order}, messages.seq {order} LIMIT :count"
)
_PLACE = "(messages.at, messages.agent_id, messages.seq)"
_CALLS = (
    "SELECT at, content FROM messages WHERE agent_id = :agent_id AND task_id = :task_id AND role = 'assistant' ORDER BY seq"
)


class Place(Struct, frozen=True):
    """Between which lines of a session's log: its order is that of time, then of agents, then of messages."""

    at: float
    agent_id: str = ""
    seq: int = -1

    @classmethod
    def parse(cls, text: str) -> Place:
        """`AT` or `AT:AGENT:SEQ`. Raises `ValueError`."""
        at, _, rest = text.partition(":")
        agent_id, _, seq = rest.partition(":")
        return cls(float(at), agent_id, int(seq or -1))


def line(row: MessageRecord) -> Shown:
    """One message in a list."""
    return {
        "agent_id": row.agent_id,
        "task_id": row.task_id,
        "seq": row.seq,
        "at": row.at,
        "role": row.role,
        "kind": row.kind,
        "parts": [_part(kind, text) for kind, text in parts(row)],
    }


def _part(kind: str, text: str) -> Shown:
    return {"kind": kind, "text": text} if len(text) <= SHOWN else {"kind": kind, "text": text[:SHOWN], "length": len(text)}


def log(
    conn: Connection,
    session_id: str,
    *,
    task_id: str | None = None,
    before: Place | None = None,
    after: Place | None = None,
    limit: int = PAGE,
) -> list[Shown]:
    """Lines of a session in the order of time: the last before a place, or the first after one; without either the newest. Of
    one task where it is named, of the session's own agent where `task_id` is the session's id."""
    fits, values = ["messages.kind <> 'view'"], {"session_id": session_id, "count": min(max(1, limit), MOST)}
    if task_id is not None:
        fits.append("messages.agent_id = :whose" if task_id == session_id else "messages.task_id = :whose")
        values["whose"] = task_id
    if (place := after or before) is not None:
        fits.append(f"{_PLACE} {'>' if after else '<'} (:at, :agent_id, :seq)")
        values |= {"at": place.at, "agent_id": place.agent_id, "seq": place.seq}
    keys = conn.rows(_KEYS.format(fits=" AND ".join(fits), order="ASC" if after else "DESC"), **values)
    rows = [transcripts.load(conn, agent_id, seq, limit=1)[0] for agent_id, seq in keys]
    return [line(row) for row in (rows if after else reversed(rows))]


def whole(conn: Connection, agent_id: str, seq: int) -> Shown:
    """One message as `logs --json` gives it, with its parts in full. Raises `NotFound`."""
    rows = transcripts.load(conn, agent_id, seq, limit=1)
    if not rows or rows[0].seq != seq:
        raise NotFound(f"{agent_id} has no message {seq}")
    return message_json(rows[0]) | {"parts": [{"kind": kind, "text": text} for kind, text in parts(rows[0])]}


def event_json(event: EventRecord) -> Shown:
    return {
        "id": event.id,
        "session_id": event.session_id,
        "task_id": event.task_id,
        "kind": event.kind,
        "data": dict(event.data),
        "at": event.at,
    }


def event_rows(conn: Connection, session_id: str, after: int, limit: int) -> list[Shown]:
    found = events.since(conn, after, session_id=session_id, limit=min(max(1, limit), MOST))
    return [event_json(event) for event in found]


def inbox(conn: Connection) -> list[Shown]:
    return shown_approvals(conn, approvals.waiting(conn))


def session(conn: Connection, record: SessionRecord, now: float) -> Shown:
    (shown,) = sessions_in(conn, [record], now)
    return shown


def session_tasks(conn: Connection, session_id: str, now: float) -> list[Shown]:
    wanted = TaskFilter(session_id=session_id, ended_sessions=True, texts=False)
    return shown_tasks(conn, registry.list_tasks(conn, wanted), now)


def task(conn: Connection, task_id: str, now: float) -> Shown:
    (shown,) = shown_tasks(conn, [registry.get(conn, task_id)], now, detail=True)
    return shown


def money(conn: Connection, record: SessionRecord) -> Shown:
    """What a session may spend and has spent; of all input that its models saw the share that was read from the cache."""
    spent = ledger.total(conn, session_id=record.id)
    seen = spent.input_tokens + spent.cache_read_tokens + spent.cache_write_5m_tokens + spent.cache_write_1h_tokens
    return {
        "budget_usd": record.options.get("max_budget_usd"),
        "token_budget": record.options.get("token_budget"),
        "cache_share": spent.cache_read_tokens / seen if seen else None,
        **_figures(asdict(spent)),
    }


def usage(conn: Connection, task_id: str) -> list[Shown]:
    """What a task spent, by model."""
    return [{"model": one.key, **_figures(asdict(one))} for one in ledger.sums(conn, "model", task_id=task_id)]


def _figures(totals: Mapping[str, Any]) -> Shown:
    written = totals["cache_write_5m_tokens"] + totals["cache_write_1h_tokens"]
    kept = ("calls", "input_tokens", "cache_read_tokens", "output_tokens", "cost_usd", "known_cost_usd")
    return {name: totals[name] for name in kept} | {"cache_write_tokens": written}


def files(conn: Connection, record: TaskRecord) -> list[Shown]:
    """The files that a task's calls named, with how often each was read and edited; what was edited first."""
    found: dict[str, Shown] = {}
    for at, content in conn.rows(_CALLS, agent_id=record.agent_id, task_id=record.id):
        for block in orjson.loads(content) if "tool_use" in content else ():
            if block.get("type") == "tool_use":
                _count(found, block, at)
    return sorted(found.values(), key=lambda file: (not file["edits"], file["path"]))


def _count(found: dict[str, Shown], block: Mapping[str, Any], at: float) -> None:
    facts = tool_facts.of(block["name"])
    for name in facts.path_fields if facts.access is not Access.NONE else ():
        if isinstance(path := block["input"].get(name), str):
            file = found.setdefault(path, {"path": path, "reads": 0, "edits": 0, "last_at": None})
            file["edits" if facts.access is Access.EDIT else "reads"] += 1
            file["last_at"] = iso(at)


def output(record: TaskRecord) -> Shown:
    """The end of what a shell command wrote; `size` is all of it, in bytes."""
    try:
        with disk.open_regular(Path(record.output_file or "")) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - OUTPUT))
            data = disk.read_up_to(file, OUTPUT)
    except OSError:  # it has not begun, or was removed
        return {"text": "", "size": 0}
    return {"text": data.decode("utf-8", "replace"), "size": size}


def newest_lines(conn: Connection, known: dict[str, int], session_id: str) -> tuple[list[Shown], bool]:
    """What was stored since the last look, and whether more came than is worth sending (then only the newest of it).
    `known` has for each agent the number of its next message, and is brought up to date. The first look tells nothing: a
    page asks for the log by itself."""
    first, left_out = not known, False
    rows: list[MessageRecord] = []
    for agent_id, next_seq in conn.rows("SELECT id, next_seq FROM agents WHERE session_id = :id", id=session_id):
        begin = known.get(agent_id, 0)
        if next_seq > begin and not first:
            rows += transcripts.load(conn, agent_id, max(begin, next_seq - PAGE))
            left_out = left_out or next_seq - PAGE > begin
        known[agent_id] = next_seq
    kept = sorted((row for row in rows if row.kind not in UNSEEN), key=lambda row: (row.at, row.agent_id, row.seq))
    return [line(row) for row in kept[-PAGE:]], left_out or len(kept) > PAGE


def newest_sessions(conn: Connection, now: float, limit: int | None) -> Sequence[Shown]:
    return sessions_in(conn, sessions.list_sessions(conn, limit=limit), now)
