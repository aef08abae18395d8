"""What the SDK does for applications is counted once, and all of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import clients
from bench.consume import stock
from bench.peers.duetime import DueTime


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DueTime]:
    cluster = DueTime("sync", 2)
    cluster.start(tmp_path)
    try:
        cluster.make_topic("orders")
        yield cluster
    finally:
        cluster.stop()


async def test_each_way_has_a_rate(cluster: DueTime) -> None:
    address = cluster.cluster.address
    await stock(address, "orders", 500)
    assert await clients.handle(address, "orders", count=500) > 0
    assert await clients.one_by_one(address, "orders", tasks=8, seconds=0.2) > 0


def test_threads_have_a_rate(cluster: DueTime) -> None:
    assert clients.from_threads(cluster.cluster.address, "orders", threads=4, seconds=0.2) > 0


async def test_a_message_that_does_not_come_is_no_rate(cluster: DueTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SILENCE_S", 0.5)
    await stock(cluster.cluster.address, "orders", 10)
    with pytest.raises(RuntimeError, match="10 came, 10 different ones, 10 acknowledged"):
        await clients.handle(cluster.cluster.address, "orders", count=11)
