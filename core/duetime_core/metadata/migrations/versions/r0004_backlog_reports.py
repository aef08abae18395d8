"""Reports of analysis jobs, which gateways read."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table; a job has one report of a snapshot."""
    op.create_table(
        "backlog_reports",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("snapshot_id", sa.String(128), nullable=False),
        sa.Column("snapshot_at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("sources", sa.Text, nullable=False),
        sa.Column("snapshots", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.UniqueConstraint("job", "snapshot_id", name="backlog_reports_of_a_snapshot"),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("backlog_reports")
