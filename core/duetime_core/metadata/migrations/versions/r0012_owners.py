"""Topics and groups count for the caller that made them."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns; the makers of existing topics and groups are unknown. The default serves older processes."""
    for table in ("topics", "groups"):
        op.add_column(table, sa.Column("owner", sa.String(160), nullable=False, server_default=""))


def downgrade() -> None:
    """Drops them."""
    for table in ("topics", "groups"):
        op.drop_column(table, "owner")
