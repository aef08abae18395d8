"""Queues may have another number on their shard than in their topic."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; existing rows have equal numbers."""
    op.add_column("topic_queues", sa.Column("shard_queue", sa.Integer, nullable=True))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("topic_queues", "shard_queue")
