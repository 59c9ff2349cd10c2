"""What a task asks of the machine that runs it: `tasks.tags`. Older tasks ask for nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("tags", sa.Text(), nullable=True))
