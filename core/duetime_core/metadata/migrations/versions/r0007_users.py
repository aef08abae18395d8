"""Users, their tokens, keys and permissions."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables. With authentication on, gateways let nobody in until there is a user."""
    op.create_table(
        "users",
        sa.Column("name", sa.String(120), primary_key=True),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "user_tokens",
        sa.Column("id", sa.String(12), primary_key=True),
        _user(),
        sa.Column("hashed", sa.String(255), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "user_keys",
        sa.Column("access_key", sa.String(24), primary_key=True),
        _user(),
        sa.Column("sealed", sa.String(255), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "user_grants",
        _user(primary_key=True),
        sa.Column("right", sa.String(16), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("pattern", sa.String(127), primary_key=True),
    )
    made = op.create_table(
        "users_version",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(made, [{"id": 1, "version": 0}])
    for table in ("user_tokens", "user_keys"):
        op.create_index(f"{table}_of_a_user", table, ["user_name"])


def _user(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(
        "user_name",
        sa.String(120),
        sa.ForeignKey("users.name", ondelete="CASCADE"),
        nullable=False,
        primary_key=primary_key,
    )


def downgrade() -> None:
    """Drops them."""
    for table in ("users_version", "user_grants", "user_keys", "user_tokens", "users"):
        op.drop_table(table)
