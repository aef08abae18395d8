"""Groups may have limits, such as a rate of deliveries."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; existing groups have no limits. The default serves older processes."""
    op.add_column("groups", sa.Column("limits", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("groups", "limits")
