"""Topics may limit the delay of their messages."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; existing topics have no limit of their own. The default serves older processes."""
    op.add_column("topics", sa.Column("max_delay_ms", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("topics", "max_delay_ms")
