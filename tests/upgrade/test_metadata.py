"""The release's metadata databases are migrated to this version's schema, and keep their contents."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from duetime_core.metadata import (
    Database,
    GroupTable,
    LaneLeaseModel,
    MetadataBase,
    TopicModel,
    TopicQueueModel,
    current_revision,
    head_revision,
    upgrade,
)
from duetime_core.metadata.engine import make_engine, parse_url
from duetime_core.testing import FakeClock
from google.protobuf.json_format import MessageToDict
from sqlalchemy import make_url, select
from sqlalchemy.orm import Session

from tests.upgrade.release import FIXTURES

# The release's last migration.
RELEASE_REVISION = "0004"


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.postgres)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, kind: str, unpack: Callable[[str], Path]) -> str:
    """The release's database, as it left it: that of a fixture's directory, or the one on PostgreSQL."""
    if kind != "postgresql":
        return f"sqlite:///{unpack(kind) / 'metadata.db'}"
    url = str(request.getfixturevalue("postgres_url"))
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute((FIXTURES / "postgresql.sql").read_bytes())
    return url


@pytest.mark.parametrize("kind", ["clean", "killed", POSTGRESQL])
def test_schema_becomes_this_versions(database_url: str) -> None:
    assert current_revision(database_url) == RELEASE_REVISION
    assert upgrade(database_url) == head_revision()
    engine = make_engine(parse_url(database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, MetadataBase.metadata) == []
    engine.dispose()


@pytest.mark.parametrize("kind", ["clean", POSTGRESQL])
async def test_topics_routes_groups_and_lanes_are_the_same(database_url: str, kind: str) -> None:
    stored = json.loads((FIXTURES / f"{kind}.json").read_text())
    answers: dict[str, Any] = stored["answers"] if kind == "clean" else stored
    upgrade(database_url)
    database = Database(database_url)
    try:
        groups = await GroupTable(database, FakeClock()).list()
    finally:
        await database.stop()
    assert [MessageToDict(group, preserving_proto_field_name=True) for group in groups] == answers["groups"]
    engine = make_engine(parse_url(database_url))
    with Session(engine) as session:
        topics = {row.name: row.queue_count for row in session.scalars(select(TopicModel))}
        routes = {(row.topic, row.queue, row.shard) for row in session.scalars(select(TopicQueueModel))}
        lanes = {(row.shard, row.level, row.paused) for row in session.scalars(select(LaneLeaseModel))}
    engine.dispose()
    descriptions = answers["topics"]
    assert topics == {name: each["topic"]["queue_count"] for name, each in descriptions.items()}
    assert routes == {
        (name, queue.get("queue", 0), queue.get("shard", 0))
        for name, each in descriptions.items()
        for queue in each["queues"]
    }
    assert lanes == {(lane["shard"], lane["level"], False) for lane in answers["lanes"]}
