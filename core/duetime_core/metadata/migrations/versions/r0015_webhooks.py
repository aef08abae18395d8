"""Webhooks, and the reports of the workers that serve them."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "webhooks",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("topic", sa.String(127), nullable=False),
        sa.Column("consumer_group", sa.String(120), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("timeout_ms", sa.Integer, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("pause_reason", sa.String(255), nullable=False),
        sa.Column("sealed", sa.String(255), nullable=False),
        sa.Column("old_sealed", sa.String(255), nullable=False),
        sa.Column("old_ends_at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("test_number", sa.BigInteger, nullable=False),
        sa.Column("test_taken", sa.BigInteger, nullable=False),
        sa.Column("test_result", sa.Text, nullable=False),
        sa.Column("worker_seen_at_ms", sa.BigInteger, nullable=False),
        sa.Column("delivered_at_ms", sa.BigInteger, nullable=False),
        sa.Column("failed_at_ms", sa.BigInteger, nullable=False),
        sa.Column("failure", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("webhooks")
