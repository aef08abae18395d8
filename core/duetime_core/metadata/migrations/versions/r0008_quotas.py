"""Quotas, and the gateways that share them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "quotas",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("limits", sa.Text, nullable=False),
    )
    op.create_table(
        "gateways",
        sa.Column("member_id", sa.String(255), primary_key=True),
        sa.Column("heartbeat", sa.BigInteger, nullable=False),
        sa.Column("use", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drops them."""
    op.drop_table("gateways")
    op.drop_table("quotas")
