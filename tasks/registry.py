"""The registry of tasks: the only writer of `tasks.status`.

1. Every change of status is one guarded `UPDATE … WHERE status IN (…)` whose row count is looked at (`_move`). The
   states it may come from are read off the table of moves. Terminal is terminal: the first one wins.
2. The event row and the notification are written in the same transaction as the status.
3. A run is fenced twice: by its attempt (a later `claim` ends its right to write) and by the session's fence (a later
   owner does). A stale run writes nothing and is told so by `False`.
4. Killing needs no ownership: any process may. What waits for a killed agent goes back as undelivered.
5. `interrupted` is shown, never stored: a live task whose owner is proven gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, and_, bindparam, func, insert, literal, or_, select, update

from tasks import agents, events, leases, outbox
from tasks.db import now_of
from tasks.errors import Ambiguous, Fenced, IllegalMove, NotFound
from tasks.hot import Hot
from tasks.ids import new_id
from tasks.models import Big, CleanText, sessions, tasks
from tasks.models import agents as agents_table
from tasks.records import AgentRecord, Attempt, Delivery, Ended, NewTask, Owner, SessionStatus, TaskRecord
from tasks.states import INTERRUPTED, LIVE, TaskStatus, sources

ACTIVITIES = 5  # kept
_AS_ASKED = (
    "session_id", "type", "description", "prompt", "parent_id", "continues", "definition", "cwd", "worktree", "branch",
    "isolation", "background", "result_schema", "allowed_tools", "output_file", "fence",
)  # fmt: skip
_OF_AN_END = ("result", "error", "error_class", "retryable", "end_reason")

_INSERT = Hot(insert(tasks).inline().values({c.name: bindparam(c.name, type_=c.type) for c in tasks.c}))
_GET = select(tasks).where(tasks.c.id == bindparam("task_id"))
_KNOWN = Hot(select(tasks.c.attempt).where(tasks.c.id == bindparam("task_id")))
_SESSION_FENCE = select(sessions.c.fence).where(sessions.c.id == tasks.c.session_id).scalar_subquery()
_UNFENCED = or_(tasks.c.fence.is_(None), tasks.c.fence == _SESSION_FENCE)
_STILL_RUNS = and_(
    tasks.c.id == bindparam("task_id"),
    tasks.c.attempt == bindparam("of_attempt"),
    tasks.c.status == TaskStatus.RUNNING,
    _UNFENCED,
)
_RUNS = Hot(select(tasks.c.attempt).where(_STILL_RUNS).with_for_update(read=True))
_WRITING = and_(
    tasks.c.id == bindparam("task_id"),
    tasks.c.attempt == bindparam("of_attempt"),
    or_(tasks.c.status == TaskStatus.RUNNING, tasks.c.status == TaskStatus.KILLED),
    _UNFENCED,
)
_WRITES = Hot(select(tasks.c.attempt).where(_WRITING).with_for_update(read=True))
# A condition for statements of other tables, with the parameters `task_id` and `of_attempt`: as `check_run(or_killed=True)`,
# without a statement of its own.
MAY_WRITE = select(tasks.c.attempt).where(_WRITING).exists()
_PROGRESS = Hot(
    update(tasks)
    .where(_STILL_RUNS)
    .values(
        tool_uses=bindparam("tool_uses"),
        input_tokens=bindparam("input_tokens"),
        output_tokens=bindparam("output_tokens"),
        cache_read_tokens=func.coalesce(bindparam("cache_read_tokens", type_=Big), tasks.c.cache_read_tokens),
        cache_write_tokens=func.coalesce(bindparam("cache_write_tokens", type_=Big), tasks.c.cache_write_tokens),
        cost_usd=bindparam("cost_usd"),
        activities=bindparam("activities"),
        model=func.coalesce(bindparam("model", type_=CleanText), tasks.c.model),
        last_activity_at=bindparam("now"),
    )
)


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """`changed`: this call ended it. `status_before` and `status` are equal if it had ended already. `undelivered` are
    the messages that went back."""

    changed: bool
    status_before: TaskStatus
    status: TaskStatus
    undelivered: tuple[Delivery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """What `list_tasks` gives. Without `session_id` tasks of open sessions only, unless `ended_sessions`. `statuses`
    are stored ones. `texts` False leaves out the long texts (`prompt` "", `result` None), for lists."""

    session_id: str | None = None
    agent_id: str | None = None
    statuses: Sequence[TaskStatus] = ()
    ended_sessions: bool = False
    texts: bool = True


def create(conn: Connection, new: NewTask) -> TaskRecord:
    """Store a pending task, and its agent if it is new. An id that exists already gives that task: asking twice is
    asking once. Raises `NameTaken`, `NotFound` (the task it continues), `Fenced`."""
    if new.fence is not None:
        leases.check(conn, new.session_id, new.fence)
    if new.id is not None and _KNOWN.number(conn, task_id=new.id) is not None:
        return get(conn, new.id)
    id = new.id or _unused_id(conn, new)
    agent = _agent_for(conn, new, id)
    asked = {name: getattr(new, name) for name in _AS_ASKED}
    _INSERT.run(conn, **(_BLANK | asked | _of_agent(agent, new) | {"id": id, "created_at": now_of(conn)}))
    data = {"type": new.type, "description": new.description, "asked_by": new.asked_by}
    events.add(conn, new.session_id, id, "task_created", data)
    return get(conn, id)


def asked_by(conn: Connection, session_id: str, call_id: str) -> TaskRecord | None:
    """The task that the tool call `call_id` of the session's own agent created; None if it created none. Reads the
    session's events: for what follows a crash, not for every turn."""
    created = events.of_kind(conn, session_id, "task_created")
    id = next((event.task_id for event in created if event.data.get("asked_by") == call_id), None)
    return None if id is None else find(conn, id)


_BLANK: dict[str, object] = dict.fromkeys(tasks.c.keys()) | {
    "status": TaskStatus.PENDING,
    "notified": False,
    "attempt": 0,
    "tool_uses": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "activities": [],
}


def _unused_id(conn: Connection, new: NewTask) -> str:
    while True:
        id = new_id(new.type)
        if find(conn, id) is None and agents.find(conn, id) is None:
            return id


def _agent_for(conn: Connection, new: NewTask, task_id: str) -> AgentRecord:
    agent_id = new.agent_id or (get(conn, new.continues).agent_id if new.continues else task_id)
    wanted = AgentRecord(
        id=agent_id, session_id=new.session_id, name=new.name, definition=new.definition, model=new.model, cwd=new.cwd
    )
    return agents.create(conn, wanted)


def _of_agent(agent: AgentRecord, new: NewTask) -> dict[str, object]:
    """Name and definition are the agent's: a later run has them too."""
    return {
        "agent_id": agent.id,
        "name": agent.name,
        "definition": new.definition or agent.definition,
        "model": new.model or agent.model,
    }


def claim(conn: Connection, task_id: str, *, owner: Owner, fence: int) -> int | None:
    """Start a pending task, or take a running one over; returns the attempt that guards every later write of this run.
    None if it has ended. Raises `Fenced`, `NotFound`."""
    task = get(conn, task_id)
    leases.check(conn, task.session_id, fence)
    mine: dict[str, Any] = {
        "owner_pid": owner.pid,
        "owner_started_at": owner.started_at,
        "owner_host": owner.host,
        "fence": fence,
    }
    now = now_of(conn)
    run: dict[str, Any] = {
        "attempt": (attempt := task.attempt + 1),  # the transaction holds the write lock: nobody counts in between
        "started_at": now if task.started_at is None else task.started_at,
        "last_activity_at": now,
    }
    from_states = [*sources(TaskStatus.RUNNING), TaskStatus.RUNNING]
    if not _move(conn, task_id, TaskStatus.RUNNING, from_states, **mine, **run):
        return None
    events.add(conn, task.session_id, task_id, "task_running", {"before": task.status, "attempt": attempt})
    return attempt


def finish(conn: Connection, task_id: str, attempt: int, end: Ended, *, notify: bool = True) -> bool:
    """End a run. False, with nothing written, if it lost the race or is fenced. A pending task can fail with attempt
    0. Raises `IllegalMove`, `NotFound`."""
    before = get(conn, task_id)
    if not _end(conn, before, end.status, attempt, notify, _ending(end)):
        _refuse_illegal(conn, before, end.status, attempt)
        return False
    return True


def _ending(end: Ended) -> dict[str, object]:
    """The columns that an end sets."""
    ending: dict[str, object] = {name: getattr(end, name) for name in _OF_AN_END}
    if end.status is TaskStatus.FAILED:
        ending |= {"error_class": end.error_class or "unknown", "retryable": bool(end.retryable)}
    known = {"exit_code": end.exit_code, "denied": list(end.denied) or None}
    return ending | {name: value for name, value in known.items() if value is not None}


def _refuse_illegal(conn: Connection, before: TaskRecord, status: TaskStatus, attempt: int) -> None:
    """A move that the table does not know is a mistake of the caller; everything else is a lost race."""
    if before.attempt == attempt and before.is_live and before.status not in sources(status):
        raise IllegalMove(f"task {before.id} is {before.status} and cannot become {status}")


def kill(conn: Connection, task_id: str, *, by: str, notify: bool, end_reason: str, error: str | None = None) -> KillOutcome:
    """End a task from any process; one that has ended stays as it is. Without `notify` whoever asked knows already.
    Raises `NotFound`."""
    before = get(conn, task_id)
    if not _end(conn, before, TaskStatus.KILLED, None, notify, {"end_reason": end_reason, "error": error}, by=by):
        return KillOutcome(False, before.status, before.status)
    undelivered = outbox.return_undelivered(conn, before.agent_id, f"task {task_id} was killed by {by}")
    return KillOutcome(True, before.status, TaskStatus.KILLED, tuple(undelivered))


def _end(
    conn: Connection,
    task: TaskRecord,
    status: TaskStatus,
    of_attempt: int | None,
    notify: bool,
    values: dict[str, object],
    by: str | None = None,
) -> bool:
    """The status, the event and the notification, in the caller's transaction."""
    values |= {"ended_at": now_of(conn), "notified": not notify}
    if not _move(conn, task.id, status, sources(status), of_attempt, **values):
        return False
    told = {"before": task.status, "attempt": task.attempt, "end_reason": values["end_reason"], "by": by}
    events.add(conn, task.session_id, task.id, f"task_{status}", told)
    if task.agent_id != task.session_id:
        outbox.redirect_notifications(conn, task.agent_id, task.session_id)
    if notify:
        outbox.notify(conn, task, _whom_to_tell(conn, task))
    return True


def _move(
    conn: Connection,
    task_id: str,
    target: TaskStatus,
    from_states: Sequence[TaskStatus],
    of_attempt: int | None = None,
    **values: object,
) -> bool:
    """The one guarded UPDATE of a status. With `of_attempt` only this run of the task, unfenced, may make the move."""
    statement = _move_from(tuple(sorted(from_states)), of_attempt is not None, tuple(values))
    run = {} if of_attempt is None else {"of_attempt": of_attempt}
    return bool(statement.run(conn, task_id=task_id, target=target, **run, **values).rowcount == 1)


@cache
def _move_from(from_states: tuple[TaskStatus, ...], of_attempt: bool, names: tuple[str, ...]) -> Hot:
    """The statement of `_move` that sets the columns `names`: there are few, and building one costs more than it does."""
    guards = [tasks.c.id == bindparam("task_id"), or_(*(tasks.c.status == state for state in from_states))]
    if of_attempt:
        guards += [tasks.c.attempt == bindparam("of_attempt"), _UNFENCED]
    target = bindparam("target", type_=CleanText)
    values = {name: bindparam(name, type_=tasks.c[name].type) for name in names}
    return Hot(update(tasks).where(*guards).values(status=target, **values))


def _whom_to_tell(conn: Connection, task: TaskRecord) -> str:
    """The agent that asked for the task while it lives, else the coordinator."""
    parent = find(conn, task.parent_id) if task.parent_id else None
    return parent.agent_id if parent is not None and parent.is_live else task.session_id


def kill_all(conn: Connection, session_id: str, *, by: str, notify: bool, end_reason: str) -> list[str]:
    """Kill every live task of a session; returns their ids."""
    ids = [task.id for task in live(conn, session_id)]
    return [id for id in ids if kill(conn, id, by=by, notify=notify, end_reason=end_reason).changed]


def request_stop(conn: Connection, task_id: str, *, by: str, wrap_up: float | None = None) -> bool:
    """Ask the owner to end a task; `wrap_up` are the seconds it has for a last report, None for none. A later wish
    without one overrides. False if it has ended. Raises `NotFound`."""
    task = get(conn, task_id)
    wish = {"stop_requested_at": now_of(conn), "stop_requested_by": by, "stop_wrap_up": wrap_up}
    if not conn.execute(update(tasks).where(tasks.c.id == task_id, tasks.c.status.in_(LIVE)).values(**wish)).rowcount:
        return False
    events.add(conn, task.session_id, task_id, "task_stop_requested", {"by": by, "wrap_up": wrap_up})
    return True


def attach_partial(conn: Connection, task_id: str, result: str) -> bool:
    """Add what a killed task had written so far; only once, and only to a killed one."""
    killed = (tasks.c.id == task_id) & (tasks.c.status == TaskStatus.KILLED) & tasks.c.result.is_(None)
    return conn.execute(update(tasks).where(killed).values(result=result)).rowcount == 1


def progress(
    conn: Connection,
    task_id: str,
    *,
    attempt: int,
    tool_uses: int,
    input_tokens: int,
    output_tokens: int,
    cost_usd: float | None,
    activities: Sequence[str],
    model: str | None = None,
    cache_read_tokens: int | None = None,
    cache_write_tokens: int | None = None,
) -> bool:
    """Store where a run stands: absolute figures, the last activities (5 are kept) and a sign of life. None leaves
    `model` and the cache figures as they are; a `cost_usd` of None means unknown. False if the run is stale."""
    changed = _PROGRESS.run(
        conn,
        task_id=task_id,
        of_attempt=attempt,
        tool_uses=tool_uses,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_usd=cost_usd,
        activities=list(activities)[-ACTIVITIES:],
        model=model,
        cache_read_tokens=cache_read_tokens,
        cache_write_tokens=cache_write_tokens,
        now=now_of(conn),
    )
    return bool(changed.rowcount == 1)


def check_run(conn: Connection, run: Attempt, *, or_killed: bool = False) -> None:
    """Raise `Fenced` unless this attempt still runs. For other writes of a run: in their transaction, it makes them as
    safe from a stale run as `progress` and `finish` are. `or_killed` lets one that was killed go on: it still writes how
    it was interrupted."""
    if (_WRITES if or_killed else _RUNS).number(conn, task_id=run.task_id, of_attempt=run.number) is None:
        raise Fenced(f"attempt {run.number} of task {run.task_id} does not run any more")


def annotate(
    conn: Connection,
    task_id: str,
    *,
    cwd: str | None = None,
    worktree: str | None = None,
    branch: str | None = None,
    output_file: str | None = None,
    model: str | None = None,
) -> None:
    """Add what becomes known of a task after it was created; None leaves a field as it is."""
    given = {"cwd": cwd, "worktree": worktree, "branch": branch, "output_file": output_file, "model": model}
    known = {name: value for name, value in given.items() if value is not None}
    if known:
        conn.execute(update(tasks).where(tasks.c.id == task_id).values(**known))


def find(conn: Connection, task_id: str) -> TaskRecord | None:
    row = conn.execute(_GET, {"task_id": task_id}).first()
    return None if row is None else TaskRecord.from_row(row)


def get(conn: Connection, task_id: str) -> TaskRecord:
    """Raises `NotFound`."""
    if (task := find(conn, task_id)) is None:
        raise NotFound(f"no task {task_id}")
    return task


def list_tasks(conn: Connection, wanted: TaskFilter = TaskFilter()) -> list[TaskRecord]:
    """The tasks that fit, oldest first."""
    long = {"prompt": "", "result": None} if not wanted.texts else {}
    columns: list[ColumnElement[Any]] = [
        _constant(column.name, long[column.name]) if column.name in long else column for column in tasks.c
    ]
    query = select(*columns).order_by(tasks.c.created_at, tasks.c.id)
    if wanted.session_id is not None:
        query = query.where(tasks.c.session_id == wanted.session_id)
    elif not wanted.ended_sessions:
        query = query.join(sessions, sessions.c.id == tasks.c.session_id).where(sessions.c.status == SessionStatus.OPEN)
    if wanted.agent_id is not None:
        query = query.where(tasks.c.agent_id == wanted.agent_id)
    if wanted.statuses:
        query = query.where(tasks.c.status.in_(wanted.statuses))
    return [TaskRecord.from_row(row) for row in conn.execute(query)]


def _constant(name: str, value: str | None) -> ColumnElement[Any]:
    return literal(value, Text).label(name)


def live(conn: Connection, session_id: str) -> list[TaskRecord]:
    """The tasks of a session that have not ended, oldest first."""
    return list_tasks(conn, TaskFilter(session_id=session_id, statuses=sorted(LIVE)))


def resolve(conn: Connection, ref: str, session_id: str | None = None) -> TaskRecord:
    """The task that `ref` means: its id, the name of its agent (then its newest), or the unique beginning of its id.
    Raises `NotFound`, `Ambiguous`."""
    if (task := find(conn, ref)) is not None and session_id in (None, task.session_id):
        return task
    if not conn.scalar(select(agents_table.c.id).where(agents_table.c.name == ref).limit(1)):
        begun = _that_begin(conn, ref, session_id)
        if len(begun) > 1:
            raise Ambiguous(ref, [task.id for task in begun])
        if begun:
            return begun[0]
    _, latest = agents.resolve(conn, session_id, ref)
    if latest is None:
        raise NotFound(f"no such task {ref!r}")
    return latest


def _that_begin(conn: Connection, ref: str, session_id: str | None) -> list[TaskRecord]:
    if not ref:
        return []
    query = select(tasks).where(func.substr(tasks.c.id, 1, len(ref)) == ref).order_by(tasks.c.id)
    if session_id is not None:
        query = query.where(tasks.c.session_id == session_id)
    return [TaskRecord.from_row(row) for row in conn.execute(query)]


def shown_status(task: TaskRecord, session_owner_gone: bool) -> str:
    """The status as a person sees it: the stored one, or `interrupted` for a live task whose owner is proven gone."""
    return INTERRUPTED if task.status in LIVE and session_owner_gone else str(task.status)
