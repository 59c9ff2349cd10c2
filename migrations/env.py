"""How Alembic runs a revision: always inside a transaction that `tasks/upgrade.py` began and will end."""

from alembic import context

from tasks.models import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("revisions run when a database is opened; see `coordinator db upgrade`")
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
context.run_migrations()
