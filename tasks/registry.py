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
from functools import cache
from typing import Any

from msgspec import Struct

from tasks import agents, events, leases, outbox
from tasks.connection import Connection, among
from tasks.db import now_of
from tasks.errors import Ambiguous, Fenced, IllegalMove, NotFound
from tasks.ids import new_id
from tasks.records import AgentRecord, Attempt, Delivery, Ended, NewTask, Owner, SessionStatus, TaskRecord
from tasks.rows import TASK
from tasks.states import INTERRUPTED, LIVE, TaskStatus, sources

ACTIVITIES = 5  # kept
_AS_ASKED = (
    "session_id", "type", "description", "prompt", "parent_id", "continues", "definition", "cwd", "worktree", "branch",
    "isolation", "background", "result_schema", "allowed_tools", "output_file", "fence", "tags",
)  # fmt: skip
_OF_AN_END = ("result", "error", "error_class", "retryable", "end_reason")

_GET = f"SELECT {TASK.columns} FROM tasks WHERE id = :task_id"
_KNOWN = "SELECT attempt FROM tasks WHERE id = :task_id"
_UNFENCED = "(tasks.fence IS NULL OR tasks.fence = (SELECT s.fence FROM sessions s WHERE s.id = tasks.session_id))"
_OF_ATTEMPT = f"tasks.id = :task_id AND tasks.attempt = :of_attempt AND {_UNFENCED}"
_STILL_RUNS = f"{_OF_ATTEMPT} AND tasks.status = '{TaskStatus.RUNNING}'"
_RUNS = f"SELECT tasks.attempt FROM tasks WHERE {_STILL_RUNS}"
# A condition for statements of other tables, with the parameters `task_id` and `of_attempt`: as `check_run(or_killed=True)`,
# without a statement of its own.
MAY_WRITE = (
    f"SELECT tasks.attempt FROM tasks WHERE {_OF_ATTEMPT} AND tasks.status IN ('{TaskStatus.RUNNING}', '{TaskStatus.KILLED}')"
)
_PROGRESS = f"""
    UPDATE tasks SET
        tool_uses = :tool_uses, input_tokens = :input_tokens, output_tokens = :output_tokens,
        cache_read_tokens = coalesce(:cache_read_tokens, cache_read_tokens),
        cache_write_tokens = coalesce(:cache_write_tokens, cache_write_tokens),
        cost_usd = :cost_usd, activities = :activities, model = coalesce(:model, model), last_activity_at = :now
    WHERE {_STILL_RUNS}"""


class KillOutcome(Struct, frozen=True):
    """`changed`: this call ended it. `status_before` and `status` are equal if it had ended already. `undelivered` are
    the messages that went back."""

    changed: bool
    status_before: TaskStatus
    status: TaskStatus
    undelivered: tuple[Delivery, ...] = ()


class TaskFilter(Struct, frozen=True, kw_only=True):
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
    if new.id is not None and conn.row(_KNOWN, task_id=new.id) is not None:
        return get(conn, new.id)
    id = new.id or _unused_id(conn, new)
    agent = _agent_for(conn, new, id)
    asked = {name: getattr(new, name) for name in _AS_ASKED}
    conn.insert("tasks", _BLANK | asked | _of_agent(agent, new) | {"id": id, "created_at": now_of(conn)})
    data = {"type": new.type, "description": new.description, "asked_by": new.asked_by}
    events.add(conn, new.session_id, id, "task_created", data)
    return get(conn, id)


def asked_by(conn: Connection, session_id: str, call_id: str) -> TaskRecord | None:
    """The task that the tool call `call_id` of the session's own agent created; None if it created none. Reads the
    session's events: for what follows a crash, not for every turn."""
    created = events.of_kind(conn, session_id, "task_created")
    id = next((event.task_id for event in created if event.data.get("asked_by") == call_id), None)
    return None if id is None else find(conn, id)


_BLANK: dict[str, object] = dict.fromkeys(TASK.names) | {
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
    if task.status is TaskStatus.PENDING:
        run["activities"] = []  # what it waited for (`say_waiting`) is there
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
    return conn.changed(statement, task_id=task_id, target=target, **run, **values) == 1


@cache
def _move_from(from_states: tuple[TaskStatus, ...], of_attempt: bool, names: tuple[str, ...]) -> str:
    """The statement of `_move` that sets the columns `names` besides the status."""
    states = ", ".join(f"'{state}'" for state in from_states)
    guard = _OF_ATTEMPT if of_attempt else "tasks.id = :task_id"
    also = "".join(f", {name} = :{name}" for name in names)
    return f"UPDATE tasks SET status = :target{also} WHERE {guard} AND tasks.status IN ({states})"


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
    lives, states = among("status", sorted(LIVE))
    if not conn.set("tasks", wish, f"id = :task_id AND {lives}", task_id=task_id, **states):
        return False
    events.add(conn, task.session_id, task_id, "task_stop_requested", {"by": by, "wrap_up": wrap_up})
    return True


def attach_partial(conn: Connection, task_id: str, result: str) -> bool:
    """Add what a killed task had written so far; only once, and only to a killed one."""
    killed = f"id = :task_id AND status = '{TaskStatus.KILLED}' AND result IS NULL"
    return conn.set("tasks", {"result": result}, killed, task_id=task_id) == 1


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
    changed = conn.changed(
        _PROGRESS,
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
    return changed == 1


def check_run(conn: Connection, run: Attempt, *, or_killed: bool = False) -> None:
    """Raise `Fenced` unless this attempt still runs. For other writes of a run: in their transaction, it makes them as
    safe from a stale run as `progress` and `finish` are. `or_killed` lets one that was killed go on: it still writes how
    it was interrupted."""
    statement = f"{MAY_WRITE if or_killed else _RUNS}{conn.sharing}"
    if conn.row(statement, task_id=run.task_id, of_attempt=run.number) is None:
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
        conn.set("tasks", dict(known), "id = :task_id", task_id=task_id)


def say_waiting(conn: Connection, task_id: str, for_what: str) -> bool:
    """Show of a pending task what it waits for, in the place of its activities. False if it is not pending."""
    return conn.set("tasks", {"activities": [for_what]}, f"id = :of AND status = '{TaskStatus.PENDING}'", of=task_id) == 1


def find(conn: Connection, task_id: str) -> TaskRecord | None:
    row = conn.row(_GET, task_id=task_id)
    return None if row is None else TASK(row)


def get(conn: Connection, task_id: str) -> TaskRecord:
    """Raises `NotFound`."""
    if (task := find(conn, task_id)) is None:
        raise NotFound(f"no task {task_id}")
    return task


def list_tasks(conn: Connection, wanted: TaskFilter = TaskFilter()) -> list[TaskRecord]:
    """The tasks that fit, oldest first."""
    query, known = _selection(wanted)
    return [TASK(row) for row in conn.rows(f"{query} ORDER BY tasks.created_at, tasks.id", **known)]


def newest(conn: Connection, wanted: TaskFilter, count: int) -> list[TaskRecord]:
    """Of the tasks that fit the newest `count`, oldest first: a page of what may be many."""
    query, known = _selection(wanted)
    page = conn.rows(f"{query} ORDER BY tasks.created_at DESC, tasks.id DESC LIMIT :count", **known, count=count)
    return [TASK(row) for row in reversed(page)]


def _selection(wanted: TaskFilter) -> tuple[str, dict[str, Any]]:
    """The statement without its order, and its parameters."""
    columns = _ALL if wanted.texts else _SHORT
    fits: list[str] = []
    known: dict[str, Any] = {}
    within = ""
    if wanted.session_id is not None:
        fits, known = ["tasks.session_id = :session_id"], {"session_id": wanted.session_id}
    elif not wanted.ended_sessions:
        within = " JOIN sessions ON sessions.id = tasks.session_id"
        fits = [f"sessions.status = '{SessionStatus.OPEN}'"]
    if wanted.agent_id is not None:
        fits, known = [*fits, "tasks.agent_id = :agent_id"], known | {"agent_id": wanted.agent_id}
    if wanted.statuses:
        stored, states = among("tasks.status", wanted.statuses)
        fits, known = [*fits, stored], known | states
    return f"SELECT {columns} FROM tasks{within} WHERE {' AND '.join(fits) or '1 = 1'}", known


_ALL = TASK.of("tasks")
_SHORT = _ALL.replace("tasks.prompt", "''").replace("tasks.result,", "NULL,")


def live(conn: Connection, session_id: str) -> list[TaskRecord]:
    """The tasks of a session that have not ended, oldest first."""
    return list_tasks(conn, TaskFilter(session_id=session_id, statuses=sorted(LIVE)))


def resolve(conn: Connection, ref: str, session_id: str | None = None) -> TaskRecord:
    """The task that `ref` means: its id, the name of its agent (then its newest), or the unique beginning of its id.
    Raises `NotFound`, `Ambiguous`."""
    if (task := find(conn, ref)) is not None and session_id in (None, task.session_id):
        return task
    if conn.row("SELECT id FROM agents WHERE name = :name LIMIT 1", name=ref) is None:
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
    within, known = (" AND session_id = :session_id", {"session_id": session_id}) if session_id is not None else ("", {})
    query = f"SELECT {TASK.columns} FROM tasks WHERE {conn.begins('id')}{within} ORDER BY id"
    return [TASK(row) for row in conn.rows(query, ref=ref, **known)]


def shown_status(task: TaskRecord, session_owner_gone: bool) -> str:
    """The status as a person sees it: the stored one, or `interrupted` for a live task whose owner is proven gone."""
    return INTERRUPTED if task.status in LIVE and session_owner_gone else str(task.status)
