"""A cluster for all tests of a file; for each test a database with an outbox and a table of the user's."""

from collections.abc import Iterator

import pytest
from duetime_core.testing import LocalCluster
from sqlalchemy import Engine, create_engine

from tests.outbox.shop import Shop


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    engine = create_engine(empty_database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def shop(engine: Engine) -> Shop:
    return Shop.of(engine)
