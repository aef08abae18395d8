"""The SDK's work for applications is counted completely, and once."""

from collections.abc import Iterator

import pytest

from bench import clients
from bench.consume import stock
from bench.peers.duetime import DueTime


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DueTime]:
    cluster = DueTime("sync", 2, together=True)
    cluster.start(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


async def test_handled_messages_have_a_rate(cluster: DueTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SILENCE_S", 60.0)
    cluster.make_topic("handled")
    await stock(cluster.cluster.address, "handled", 500)
    assert await clients.handle(cluster.cluster.address, "handled", count=500) > 0


async def test_run_tasks_have_a_rate(cluster: DueTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SILENCE_S", 60.0)
    cluster.make_topic("run")
    assert await clients.run_tasks(cluster.cluster.address, "run", count=5_000) > 0


@pytest.mark.proof
async def test_single_sends_have_a_rate(cluster: DueTime) -> None:
    cluster.make_topic("singles")
    assert await clients.one_by_one(cluster.cluster.address, "singles", tasks=8, seconds=0.2) > 0


@pytest.mark.proof
def test_threads_have_a_rate(cluster: DueTime) -> None:
    cluster.make_topic("threads")
    assert clients.from_threads(cluster.cluster.address, "threads", threads=4, seconds=0.2) > 0


@pytest.mark.proof
async def test_a_message_that_does_not_come_is_no_rate(cluster: DueTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SILENCE_S", 3.0)
    cluster.make_topic("missing")
    await stock(cluster.cluster.address, "missing", 10)
    with pytest.raises(RuntimeError, match="10 came, 10 different ones, 10 acknowledged"):
        await clients.handle(cluster.cluster.address, "missing", count=11)
