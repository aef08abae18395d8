"""Real nodes on a fake clock, with a tap in front of them for each test; and a cluster for each file."""

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from duetime import Finder, Producer
from duetime.client import connection
from duetime.client.wire import GRPCIO, VARIABLE
from duetime_core.testing import FakeClock, LocalCluster

from tests.sdk.gateway import NO_STREAM, Gateway
from tests.sdk.groups import Groups

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are not repeated because a machine is slow."""
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 60.0)


@pytest.fixture(autouse=True)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The channel of blocking calls; see tests.blocking."""
    kind = getattr(request, "param", None)
    if kind is not None:
        monkeypatch.setenv(VARIABLE, kind)
    return kind or os.environ.get(VARIABLE) or GRPCIO


@pytest.fixture(scope="session")
def nodes() -> Iterator[LocalCluster]:
    """A cluster shared by all tests, each with its own names; it ends open transactions after ten minutes."""
    with LocalCluster(clock=FakeClock(), within=True, store_settings={"transaction_keep_ms": 600_000}) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def two_shards() -> Iterator[LocalCluster]:
    with LocalCluster(clock=FakeClock(), within=True, shards=2) as nodes:
        yield nodes


@pytest.fixture
async def tap(nodes: LocalCluster) -> AsyncIterator[Gateway]:
    async with Gateway(nodes) as tap:
        yield tap


@pytest.fixture
def threaded_tap(nodes: LocalCluster) -> Iterator[Gateway]:
    """The same on the nodes' event loop, for tests of clients that block."""
    tap = Gateway(nodes)
    nodes.run(tap.start())
    yield tap
    nodes.run(tap.stop())


@pytest.fixture
def threaded_groups(nodes: LocalCluster) -> Iterator[Groups]:
    groups = Groups(nodes)
    nodes.run(groups.start())
    yield groups
    nodes.run(groups.stop())


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"orders-{next(_numbers)}"


@pytest.fixture
def group() -> str:
    return f"billing-{next(_numbers)}"


@pytest.fixture(params=[True, False], ids=["stream", "calls"])
async def groups(nodes: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[Groups]:
    """One with streams for receivers, and one whose streams have run out."""
    async with Groups(nodes) as groups:
        if not request.param:
            groups.closed["ReceiveStream"] = NO_STREAM
        yield groups


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that retry immediately."""
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
