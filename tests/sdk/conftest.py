"""A fake gateway on port 0, for each test; and a whole cluster on a fake clock, for each file."""

from collections.abc import AsyncIterator, Iterator

import pytest
from duetime import Finder, Producer
from duetime.client import connection
from duetime_core.testing import LocalCluster

from tests.sdk.fake_gateway import FakeGateway
from tests.sdk.fake_groups import FakeGroups
from tests.sdk.threaded import served


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway()
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
def threaded_gateway() -> Iterator[FakeGroups]:
    """The same on an event loop in a thread of its own, for tests of what blocks."""
    gateway = FakeGroups()
    with served(gateway):
        yield gateway


@pytest.fixture(params=[True, False], ids=["stream", "calls"])
async def groups(request: pytest.FixtureRequest) -> AsyncIterator[FakeGroups]:
    """One that knows of ReceiveStream, and one that does not."""
    gateway = FakeGroups(has_streams=request.param)
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that try again at once."""
    monkeypatch.setattr(connection, "BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(connection, "BACKOFF_S_MAX", 0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.address) as producer:
        yield producer


@pytest.fixture
def finder(cluster: LocalCluster) -> Iterator[Finder]:
    with Finder(cluster.address) as finder:
        yield finder
