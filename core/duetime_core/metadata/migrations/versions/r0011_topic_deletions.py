"""Topics can be deleted: each has a generation, and the table holds the next one."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Existing topics get generation 0. The defaults serve older processes."""
    op.add_column("topics", sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("topics", sa.Column("is_deleting", sa.Integer, nullable=False, server_default="0"))
    made = op.create_table(
        "topic_generation",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(made, [{"id": 1, "generation": 0}])


def downgrade() -> None:
    """Drops the columns and tables; topics that are being deleted are there again."""
    op.drop_table("topic_generation")
    op.drop_column("topics", "is_deleting")
    op.drop_column("topics", "generation")
