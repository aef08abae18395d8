"""Groups of producers that prepare transactions."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "producer_groups",
        sa.Column("name", sa.String(120), primary_key=True),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("producer_groups")
