"""Groups of producers count for the caller that registered them."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; the callers of existing groups are unknown. The default serves older processes."""
    op.add_column("producer_groups", sa.Column("owner", sa.String(160), nullable=False, server_default=""))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("producer_groups", "owner")
