"""Topics may take messages of one type only, from RocketMQ's clients."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; existing topics take messages of any type. The default serves older processes."""
    op.add_column("topics", sa.Column("message_type", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("topics", "message_type")
