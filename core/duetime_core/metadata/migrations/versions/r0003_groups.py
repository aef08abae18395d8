"""Consumer groups and their settings."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table; groups that only committed offsets so far are not in it."""
    op.create_table(
        "groups",
        sa.Column("name", sa.String(120), primary_key=True),
        sa.Column("start", sa.Integer, nullable=False),
        sa.Column("start_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ordered", sa.Boolean, nullable=False),
        sa.Column("retry", sa.String(1024), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("groups")
