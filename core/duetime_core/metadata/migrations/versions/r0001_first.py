"""Topics and routes, scheduler members, lane leases, the published offset table."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "topics",
        sa.Column("name", sa.String(127), primary_key=True),
        sa.Column("queue_count", sa.Integer, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "topic_queues",
        sa.Column(
            "topic",
            sa.String(127),
            sa.ForeignKey("topics.name", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
            primary_key=True,
        ),
        sa.Column("queue", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("shard", sa.Integer, nullable=False),
    )
    op.create_table(
        "schedulers",
        sa.Column("member_id", sa.String(255), primary_key=True),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("heartbeat", sa.BigInteger, nullable=False),
        sa.Column("started_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "lane_leases",
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
    )
    op.create_table(
        "delay_offsets",
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("min_offset", sa.BigInteger, nullable=False),
        sa.Column("max_offset", sa.BigInteger, nullable=False),
        sa.Column("published_at_ms", sa.BigInteger, nullable=False),
        sa.Column("published_by", sa.String(255), nullable=False),
    )


def downgrade() -> None:
    """Drops them."""
    for table in ("delay_offsets", "lane_leases", "schedulers", "topic_queues", "topics"):
        op.drop_table(table)
