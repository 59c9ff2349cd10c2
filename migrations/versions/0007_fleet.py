"""What machines share beside tasks: a session's budget in shares, the limits of an account, files that all agents see."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "budget_shares",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.Column("busy", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_budget_shares_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "holder", name=op.f("pk_budget_shares")),
    )
    op.create_table(
        "account_limits",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("blocked_until", sa.Double(), nullable=False),
        sa.Column("minute", BIG, nullable=False),
        sa.Column("requests", BIG, nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_account_limits")),
    )
    op.create_table(
        "shared_files",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_shared_files_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "path", name=op.f("pk_shared_files")),
    )
