"""Alembic's script for migrations: uses the connection and transaction that `schema.upgrade` gives it."""

from alembic import context

from duetime_core.metadata.models import MetadataBase

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=MetadataBase.metadata,
    compare_type=True,
    # SQLite alters tables by copying them.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
