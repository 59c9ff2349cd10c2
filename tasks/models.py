"""The tables, each with a sentence. The schema in a file is only ever made by Alembic (`migrations/`); a test compares.

1. Times are seconds since the epoch, UTC, as doubles; the views give ISO 8601 UTC text.
2. Text columns clean what they store (`text.py`), JSON columns hold compact JSON text: both the same on SQLite and
   PostgreSQL.
3. Booleans about ends are constraints, not habits: a task has an end time exactly if its status is terminal, and a
   failed one has an error class.

Read-only views for people and other tools (`coordinator db sql "SELECT …"`), stable where tables are not; a test holds
this list. A task's `status` is the stored one: whether a live task is interrupted takes a look at the process table,
which SQL cannot take. `cost_usd` is NULL where a price is unknown.

    v_sessions: id, parent_id, title, goal, cwd, model, status, end_reason, created_at, updated_at, ended_at, owner_pid,
        owner_host, tasks, live_tasks, cost_usd
    v_tasks: id, agent_id, session_id, parent_id, continues, type, status, description, name, agent, model, created_at,
        started_at, ended_at, duration_ms, tool_uses, input_tokens, output_tokens, total_tokens, cost_usd,
        last_activity_at, attempt, end_reason, error, error_class, retryable, worktree, branch, output_file, prompt,
        result
    v_cost: at, day, session_id, agent_id, task_id, model, purpose, input_tokens, cache_write_5m_tokens,
        cache_write_1h_tokens, cache_read_tokens, output_tokens, cost_usd, response_id
    v_events: id, at, session_id, task_id, kind, data
"""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from tasks.text import clean, dump_json


class CleanText(TypeDecorator[str]):
    """Text that can always be stored."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else clean(value)


class JsonText(TypeDecorator[Any]):
    """Compact JSON as text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else dump_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else orjson.loads(value)


Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite gives automatic ids to INTEGER keys only

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# One coordinator conversation with its tasks.
sessions = Table(
    "sessions",
    metadata,
    Column("id", CleanText, primary_key=True),
    # A fork names where it came from; the origin may be removed.
    Column("parent_id", CleanText, ForeignKey("sessions.id", ondelete="SET NULL")),
    Column("goal", CleanText, nullable=False),
    Column("title", CleanText),
    Column("cwd", CleanText, nullable=False),
    Column("model", CleanText),
    Column("status", CleanText, nullable=False),
    Column("end_reason", CleanText),
    Column("options", JsonText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("ended_at", Double),
    # Ownership: who drives it, until when without a further heartbeat, and the token that every write shows.
    Column("owner_pid", Integer),
    Column("owner_started_at", Double),
    Column("owner_host", CleanText),
    Column("heartbeat_at", Double),
    Column("lease_expires_at", Double),
    Column("fence", Integer, nullable=False),
    CheckConstraint("status IN ('open', 'ended')", name="status"),
    Index("ix_sessions_status", "status", "created_at"),  # the default lists: open sessions, newest first
    Index("ix_sessions_parent_id", "parent_id"),  # removing a session looks for its forks
)

# An agent: a conversation that outlives its runs. Its id is that of its first task, the coordinator's the session's.
agents = Table(
    "agents",
    metadata,
    Column("id", CleanText, primary_key=True),
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("name", CleanText),  # unique in its session, so that a message cannot go to the wrong one
    Column("definition", CleanText),
    Column("model", CleanText),
    Column("cwd", CleanText),
    Column("is_coordinator", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    # The seq of the next message: raising it locks the row, so that two writers never draw the same.
    Column("next_seq", Integer, nullable=False),
    UniqueConstraint("session_id", "name"),
)

# One run of an agent, or one background command.
tasks = Table(
    "tasks",
    metadata,
    Column("id", CleanText, primary_key=True),
    Column("agent_id", CleanText, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("parent_id", CleanText),  # the task whose agent asked for it, or the session for the coordinator
    Column("continues", CleanText),  # the earlier task of the same conversation
    Column("type", CleanText, nullable=False),
    Column("status", CleanText, nullable=False),
    # What was asked for.
    Column("description", CleanText, nullable=False),
    Column("name", CleanText),
    Column("definition", CleanText),
    Column("model", CleanText),  # the model really used
    Column("prompt", CleanText, nullable=False),
    Column("cwd", CleanText),
    Column("worktree", CleanText),
    Column("branch", CleanText),
    Column("isolation", CleanText),
    Column("background", Boolean, nullable=False),
    Column("result_schema", JsonText),
    Column("allowed_tools", JsonText),
    # When.
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    # How it ended.
    Column("result", CleanText),
    Column("error", CleanText),
    Column("error_class", CleanText),
    Column("retryable", Boolean),
    Column("end_reason", CleanText),
    Column("output_file", CleanText),
    Column("exit_code", Integer),  # of a `local_bash`
    Column("notified", Boolean, nullable=False),  # whoever asked knows of the end
    # Who runs it: attempt and fence guard every write of a run.
    Column("attempt", Integer, nullable=False),
    Column("fence", Integer),
    Column("owner_pid", Integer),
    Column("owner_started_at", Double),
    Column("owner_host", CleanText),
    # A wish of another process that it ends; `stop_wrap_up` are the seconds it has for a last report, NULL for none.
    Column("stop_requested_at", Double),
    Column("stop_requested_by", CleanText),
    Column("stop_wrap_up", Double),
    # Progress: input tokens are the latest figure, output tokens are summed, cost is NULL when a price is unknown.
    Column("tool_uses", Integer, nullable=False),
    Column("input_tokens", Big, nullable=False),
    Column("output_tokens", Big, nullable=False),
    Column("cache_read_tokens", Big, nullable=False),
    Column("cache_write_tokens", Big, nullable=False),
    Column("cost_usd", Double),
    Column("activities", JsonText, nullable=False),
    Column("last_activity_at", Double),
    Column("denied", JsonText),  # the calls that were refused to it, one line each; NULL for none
    Column("tags", JsonText),  # that a node must have to run it; NULL for none
    CheckConstraint("status IN ('pending', 'running', 'completed', 'failed', 'killed')", name="status"),
    CheckConstraint("(ended_at IS NULL) = (status IN ('pending', 'running'))", name="ended_at"),
    CheckConstraint("status <> 'failed' OR error_class IS NOT NULL", name="error_class"),
    Index("ix_tasks_session_id", "session_id", "status", "created_at"),  # lists and `live` of one session
    Index("ix_tasks_agent_id", "agent_id", "created_at"),  # the latest run of an agent
    # Viewers ask for live tasks over all sessions while thousands of ended ones lie around.
    # And for the newest of those that ended in one way: a page of them is in the order of this index.
    Index("ix_tasks_status", "status", "created_at", "id"),
)

# The transcript: append-only, in order, never rewritten. `content` is the canonical JSON that also went over the wire.
messages = Table(
    "messages",
    metadata,
    Column("agent_id", CleanText, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("id", CleanText, nullable=False),
    Column("task_id", CleanText),
    Column("role", CleanText, nullable=False),
    Column("kind", CleanText, nullable=False),
    Column("meta", Boolean, nullable=False),
    Column("content", CleanText, nullable=False),
    Column("extra", JsonText, nullable=False),  # usage, stop_reason, model, response_id, data
    Column("at", Double, nullable=False),
    UniqueConstraint("agent_id", "id"),  # storing a message twice is storing it once; a fork keeps the ids
)

# Parts of an unfinished turn, each on disk before what it causes is done; gone when the whole message is stored.
steps = Table(
    "steps",
    metadata,
    Column("id", Big, primary_key=True),
    Column("agent_id", CleanText, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", CleanText, nullable=False),
    Column("kind", CleanText, nullable=False),
    Column("part", CleanText, nullable=False),  # "" for the answer so far, the tool_use id for a result
    Column("content", CleanText, nullable=False),
    Column("model", CleanText),
    Column("at", Double, nullable=False),
    UniqueConstraint("agent_id", "message_id", "kind", "part"),  # a later state of a part replaces the earlier
    CheckConstraint("kind IN ('answer', 'result')", name="kind"),
    sqlite_autoincrement=True,
)

# What happened, in order; the source of live views.
events = Table(
    "events",
    metadata,
    Column("id", Big, primary_key=True),
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", CleanText),
    Column("kind", CleanText, nullable=False),
    Column("data", JsonText, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_events_session_id", "session_id", "id"),  # following one session
    Index("ix_events_task_id", "task_id", "id"),  # following one task
    sqlite_autoincrement=True,  # an id is never used twice, so that "since" cannot miss one
)

# The outbox: what an agent must still read. Consumed in the transaction that stores the message holding it.
deliveries = Table(
    "deliveries",
    metadata,
    Column("position", Big, primary_key=True),
    Column("id", CleanText, nullable=False),  # a notification's id is made of its task's: one each, by constraint
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("agent_id", CleanText, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("kind", CleanText, nullable=False),
    Column("task_id", CleanText),  # whose end a notification tells
    Column("sender", CleanText),
    Column("body", CleanText),  # of a message; a notification's is made from its task when read
    Column("status", CleanText, nullable=False),
    Column("why", CleanText),  # it could not be delivered
    Column("consumed_seq", Integer),  # the message of the recipient's transcript that holds it
    Column("created_at", Double, nullable=False),
    Column("settled_at", Double),
    UniqueConstraint("id"),
    CheckConstraint("kind IN ('notification', 'message')", name="kind"),
    CheckConstraint("status IN ('waiting', 'consumed', 'undelivered')", name="status"),
    Index("ix_deliveries_agent_id", "agent_id", "status", "position"),  # every agent asks for its own at every turn
    Index("ix_deliveries_session_id", "session_id", "status"),  # does a notification wait in this session?
    sqlite_autoincrement=True,
)

# The ledger: one row a model response, so that nothing is counted twice by replay, resume or several blocks.
model_calls = Table(
    "model_calls",
    metadata,
    Column("response_id", CleanText, primary_key=True),
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("agent_id", CleanText, nullable=False),
    Column("task_id", CleanText),
    Column("model", CleanText, nullable=False),
    Column("purpose", CleanText, nullable=False),  # turn, or what else a model was asked for
    Column("input_tokens", Big, nullable=False),
    Column("cache_write_5m_tokens", Big, nullable=False),
    Column("cache_write_1h_tokens", Big, nullable=False),
    Column("cache_read_tokens", Big, nullable=False),
    Column("output_tokens", Big, nullable=False),
    Column("cost_usd", Double),
    Column("at", Double, nullable=False),
    Index("ix_model_calls_session_id", "session_id", "agent_id"),  # sums of a session and of its agents
    Index("ix_model_calls_at", "at"),  # cost by day
)

# Process trees begun by a session or one of its tasks, so that another process can end them when the owner is gone.
processes = Table(
    "processes",
    metadata,
    Column("pid", Integer, primary_key=True, autoincrement=False),
    Column("started_at", Double, primary_key=True),
    Column("host", CleanText, primary_key=True),
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", CleanText),
    Column("marker", CleanText, nullable=False),  # value of the environment variable that its processes carry
    Column("command", CleanText),
    Column("added_at", Double, nullable=False),
    Index("ix_processes_session_id", "session_id", "task_id"),  # what a kill must end
)

# Calls that wait, or waited, for a person's word. A row outlives its answer: "always" is a rule of the session.
approvals = Table(
    "approvals",
    metadata,
    Column("id", CleanText, primary_key=True),
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("agent_id", CleanText, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", CleanText),  # NULL for the session's own agent
    Column("fence", Integer, nullable=False),  # of the run that asks: a later one asks again
    Column("tool_use_id", CleanText, nullable=False),
    Column("tool", CleanText, nullable=False),
    Column("input", JsonText, nullable=False),  # without secrets
    Column("digest", CleanText, nullable=False),  # of the input as it is, secrets included
    Column("shown", CleanText, nullable=False),  # the call for a person: command, diff, address
    Column("reason", CleanText, nullable=False),
    Column("suggested_rule", CleanText),
    Column("asked_at", Double, nullable=False),
    Column("status", CleanText, nullable=False),
    Column("answered_at", Double),
    Column("answered_by", CleanText),
    Column("note", CleanText),  # what a denial tells the model
    Column("rule", CleanText),  # allowed from now on, in this session
    CheckConstraint("status IN ('waiting', 'approved', 'denied', 'taken', 'withdrawn')", name="status"),
    CheckConstraint("(answered_at IS NULL) = (status IN ('waiting', 'withdrawn'))", name="answered_at"),
    Index("ix_approvals_status", "status", "asked_at"),  # the inbox: what waits, oldest first
    Index("ix_approvals_session_id", "session_id", "agent_id"),  # a session's own: its rules, and what a run asked before
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", CleanText, primary_key=True),
    Column("holder", CleanText, nullable=False),  # drawn by the process that goes by the name: a later one ends its right to
    Column("host", CleanText, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", CleanText, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("tags", JsonText, nullable=False),
    Column("running", JsonText, nullable=False),  # ids of the tasks that it runs
    Column("draining", Boolean, nullable=False),
    Column("load", Double),  # of the last minute
    Column("memory", Big),  # bytes that its process holds
    Column("started_at", Double, nullable=False),  # by the database's clock, as all times here: machines' clocks differ
    Column("heartbeat_at", Double, nullable=False),
)

# Of a session's budget what a process may spend without asking: it was set apart from what others may.
budget_shares = Table(
    "budget_shares",
    metadata,
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("holder", CleanText, primary_key=True),  # a node's, or "" for the session's own process
    Column("usd", Double, nullable=False),  # not spent yet
    Column("tokens", Big, nullable=False),
    Column("busy", Boolean, nullable=False),  # some of it may come back
)

# What a machine learned of an account's limits, for all of them. Times are the database's.
account_limits = Table(
    "account_limits",
    metadata,
    Column("account", CleanText, primary_key=True),  # a digest of credential and address
    Column("blocked_until", Double, nullable=False),
    Column("minute", Big, nullable=False),  # since the epoch: that of the next two
    Column("requests", Big, nullable=False),  # given out
    Column("tokens", Big, nullable=False),
)

# Small files of a session that every machine has: the scratchpad.
shared_files = Table(
    "shared_files",
    metadata,
    Column("session_id", CleanText, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("path", CleanText, primary_key=True),  # relative
    Column("version", Big, nullable=False),  # counts up in its session
    Column("digest", CleanText, nullable=False),
    Column("content", CleanText),  # base64; NULL: it was removed
)

# The last writing transaction of each connection to a server, by its number among them (`outage.py`).
commit_marks = Table(
    "commit_marks",
    metadata,
    Column("connection", CleanText, primary_key=True),
    Column("number", Big, nullable=False),
    Column("at", Double, nullable=False),  # by the server's clock
)
