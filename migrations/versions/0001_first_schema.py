"""The first schema. What the tables and columns mean stands in `tasks/models.py`."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    create_tables()
    for name, select in views(op.get_bind().dialect.name).items():
        op.execute(f"CREATE VIEW {name} AS {select}")


def views(dialect: str) -> dict[str, str]:
    """The documented views; times as ISO 8601 UTC text with milliseconds."""

    def iso(column: str) -> str:
        if dialect == "sqlite":
            return f"strftime('%Y-%m-%dT%H:%M:%fZ', {column}, 'unixepoch')"
        return f"to_char(to_timestamp({column}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"

    return {
        "v_sessions": f"""
            SELECT s.id, s.parent_id, s.title, s.goal, s.cwd, s.model, s.status, s.end_reason,
                   {iso("s.created_at")} AS created_at, {iso("s.updated_at")} AS updated_at,
                   {iso("s.ended_at")} AS ended_at, s.owner_pid, s.owner_host,
                   (SELECT count(*) FROM tasks t WHERE t.session_id = s.id) AS tasks,
                   (SELECT count(*) FROM tasks t WHERE t.session_id = s.id AND t.status IN ('pending', 'running'))
                       AS live_tasks,
                   (SELECT CASE WHEN count(*) = count(c.cost_usd) THEN coalesce(sum(c.cost_usd), 0) END
                    FROM model_calls c WHERE c.session_id = s.id) AS cost_usd
            FROM sessions s""",
        "v_tasks": f"""
            SELECT id, agent_id, session_id, parent_id, continues, type, status, description, name,
                   definition AS agent, model, {iso("created_at")} AS created_at, {iso("started_at")} AS started_at,
                   {iso("ended_at")} AS ended_at, CAST((ended_at - started_at) * 1000 AS INTEGER) AS duration_ms,
                   tool_uses, input_tokens, output_tokens, input_tokens + output_tokens AS total_tokens, cost_usd,
                   {iso("last_activity_at")} AS last_activity_at, attempt, end_reason, error, error_class, retryable,
                   worktree, branch, output_file, prompt, result
            FROM tasks""",
        "v_cost": f"""
            SELECT {iso("at")} AS at, substr({iso("at")}, 1, 10) AS day, session_id, agent_id, task_id, model, purpose,
                   input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, cache_read_tokens, output_tokens,
                   cost_usd, response_id
            FROM model_calls""",
        "v_events": f"SELECT id, {iso('at')} AS at, session_id, task_id, kind, data FROM events",
    }


def create_tables() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("goal", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("cwd", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("owner_pid", sa.Integer(), nullable=True),
        sa.Column("owner_started_at", sa.Double(), nullable=True),
        sa.Column("owner_host", sa.Text(), nullable=True),
        sa.Column("heartbeat_at", sa.Double(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.CheckConstraint("status IN ('open', 'ended')", name=op.f("ck_sessions_status")),
        sa.ForeignKeyConstraint(["parent_id"], ["sessions.id"], name=op.f("fk_sessions_parent_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_parent_id", "sessions", ["parent_id"], unique=False)
    op.create_index("ix_sessions_status", "sessions", ["status", "created_at"], unique=False)
    op.create_table(
        "agents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("definition", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("cwd", sa.Text(), nullable=True),
        sa.Column("is_coordinator", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("next_seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_agents_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("session_id", "name", name=op.f("uq_agents_session_id_name")),
    )
    op.create_table(
        "events",
        sa.Column("id", BIG, nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_events_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_session_id", "events", ["session_id", "id"], unique=False)
    op.create_index("ix_events_task_id", "events", ["task_id", "id"], unique=False)
    op.create_table(
        "model_calls",
        sa.Column("response_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("input_tokens", BIG, nullable=False),
        sa.Column("cache_write_5m_tokens", BIG, nullable=False),
        sa.Column("cache_write_1h_tokens", BIG, nullable=False),
        sa.Column("cache_read_tokens", BIG, nullable=False),
        sa.Column("output_tokens", BIG, nullable=False),
        sa.Column("cost_usd", sa.Double(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_model_calls_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("response_id", name=op.f("pk_model_calls")),
    )
    op.create_index("ix_model_calls_at", "model_calls", ["at"], unique=False)
    op.create_index("ix_model_calls_session_id", "model_calls", ["session_id", "agent_id"], unique=False)
    op.create_table(
        "processes",
        sa.Column("pid", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("marker", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=True),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_processes_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pid", "started_at", "host", name=op.f("pk_processes")),
    )
    op.create_index("ix_processes_session_id", "processes", ["session_id", "task_id"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("position", BIG, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("sender", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("consumed_seq", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double(), nullable=True),
        sa.CheckConstraint("kind IN ('notification', 'message')", name=op.f("ck_deliveries_kind")),
        sa.CheckConstraint("status IN ('waiting', 'consumed', 'undelivered')", name=op.f("ck_deliveries_status")),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_deliveries_agent_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_deliveries_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("id", name=op.f("uq_deliveries_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_agent_id", "deliveries", ["agent_id", "status", "position"], unique=False)
    op.create_index("ix_deliveries_session_id", "deliveries", ["session_id", "status"], unique=False)
    op.create_table(
        "messages",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("meta", sa.Boolean(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_messages_agent_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("agent_id", "seq", name=op.f("pk_messages")),
        sa.UniqueConstraint("agent_id", "id", name=op.f("uq_messages_agent_id_id")),
    )
    op.create_table(
        "steps",
        sa.Column("id", BIG, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('answer', 'result')", name=op.f("ck_steps_kind")),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_steps_agent_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_steps")),
        sa.UniqueConstraint("agent_id", "message_id", "kind", "part", name=op.f("uq_steps_agent_id_message_id_kind_part")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("continues", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("definition", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("cwd", sa.Text(), nullable=True),
        sa.Column("worktree", sa.Text(), nullable=True),
        sa.Column("branch", sa.Text(), nullable=True),
        sa.Column("isolation", sa.Text(), nullable=True),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("result_schema", sa.Text(), nullable=True),
        sa.Column("allowed_tools", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("retryable", sa.Boolean(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("output_file", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("notified", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=True),
        sa.Column("owner_pid", sa.Integer(), nullable=True),
        sa.Column("owner_started_at", sa.Double(), nullable=True),
        sa.Column("owner_host", sa.Text(), nullable=True),
        sa.Column("stop_requested_at", sa.Double(), nullable=True),
        sa.Column("stop_requested_by", sa.Text(), nullable=True),
        sa.Column("stop_wrap_up", sa.Double(), nullable=True),
        sa.Column("tool_uses", sa.Integer(), nullable=False),
        sa.Column("input_tokens", BIG, nullable=False),
        sa.Column("output_tokens", BIG, nullable=False),
        sa.Column("cache_read_tokens", BIG, nullable=False),
        sa.Column("cache_write_tokens", BIG, nullable=False),
        sa.Column("cost_usd", sa.Double(), nullable=True),
        sa.Column("activities", sa.Text(), nullable=False),
        sa.Column("last_activity_at", sa.Double(), nullable=True),
        sa.CheckConstraint("(ended_at IS NULL) = (status IN ('pending', 'running'))", name=op.f("ck_tasks_ended_at")),
        sa.CheckConstraint("status <> 'failed' OR error_class IS NOT NULL", name=op.f("ck_tasks_error_class")),
        sa.CheckConstraint("status IN ('pending', 'running', 'completed', 'failed', 'killed')", name=op.f("ck_tasks_status")),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_tasks_agent_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_tasks_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_index("ix_tasks_agent_id", "tasks", ["agent_id", "created_at"], unique=False)
    op.create_index("ix_tasks_session_id", "tasks", ["session_id", "status", "created_at"], unique=False)
    op.create_index("ix_tasks_status", "tasks", ["status"], unique=False)
