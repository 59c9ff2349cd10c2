"""A page of the newest tasks that ended in one way is read off an index, however many there are."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_tasks_status", "tasks")
    op.create_index("ix_tasks_status", "tasks", ["status", "created_at", "id"])
