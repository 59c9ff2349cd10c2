"""What a task's agent was refused: `tasks.denied`, so that its notification can name it. Older tasks have none."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("denied", sa.Text(), nullable=True))
