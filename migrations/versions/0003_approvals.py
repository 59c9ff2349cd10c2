"""Calls that wait for a person's word: `approvals`. An older file has none."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("tool_use_id", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("suggested_rule", sa.Text(), nullable=True),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.Column("answered_by", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status IN ('waiting', 'approved', 'denied', 'taken', 'withdrawn')", name=op.f("ck_approvals_status")
        ),
        sa.CheckConstraint(
            "(answered_at IS NULL) = (status IN ('waiting', 'withdrawn'))", name=op.f("ck_approvals_answered_at")
        ),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_approvals_agent_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_approvals_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index("ix_approvals_session_id", "approvals", ["session_id", "agent_id"], unique=False)
    op.create_index("ix_approvals_status", "approvals", ["status", "asked_at"], unique=False)
