"""What a writing transaction leaves, so that one whose answer was lost can be told from one that never was. A server's only: a
file does not go away."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "commit_marks",
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("connection", name=op.f("pk_commit_marks")),
    )
