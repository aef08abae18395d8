"""The audit log: admin calls and refusals."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table, indexed by time for reads and by kind for removals."""
    op.create_table(
        "audit_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("process", sa.String(64), nullable=False),
        sa.Column("is_refusal", sa.Boolean, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("peer", sa.String(255), nullable=False),
        sa.Column("method", sa.String(255), nullable=False),
        sa.Column("resource", sa.String(255), nullable=False),
        sa.Column("status", sa.String(64), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("left_out_count", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("key", name="audit_events_by_key"),
    )
    op.create_index("audit_events_by_time", "audit_events", ["at_ms", "id"])
    op.create_index("audit_events_by_kind", "audit_events", ["is_refusal", "id"])


def downgrade() -> None:
    """Drops it."""
    op.drop_table("audit_events")
