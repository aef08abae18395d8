"""RocketMQ's calls are measured alike at a cluster and at the echo, and failed calls count in no rate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import idle, rocketmq
from bench.load import RefusedError
from bench.peers.duetime import DueTime
from bench.rocketmq_tables import rocketmq_tables


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DueTime]:
    cluster = DueTime("sync", 2)
    cluster.start(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.proof
def test_rates_stand_beside_the_echo_s(cluster: DueTime) -> None:
    found = rocketmq.compare(cluster, turns=1, seconds=0.5, late_seconds=0.2)
    assert all(rate > 0 for name in ("sent", "received") for pair in found[name] for rate in pair)
    assert 0 <= found["late"]["p50"] <= found["late"]["p99"]
    assert [len(table.rows) for table in rocketmq_tables(found)] == [2, 2]


@pytest.mark.proof
async def test_a_message_that_is_refused_or_does_not_come_is_no_rate(cluster: DueTime) -> None:
    address = cluster.cluster.address
    with pytest.raises(ExceptionGroup) as caught:
        await rocketmq.sent(address, 0.1)
    assert caught.group_contains(RefusedError, match="TOPIC_NOT_FOUND")
    cluster.make_topic(rocketmq.TOPIC.name)
    with pytest.raises(ExceptionGroup) as caught:
        await rocketmq.received(address, 0.1)
    assert caught.group_contains(RefusedError, match="0 messages came instead of 32")


@pytest.mark.proof
def test_idle_consumers_have_a_row_for_each_process(cluster: DueTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "SETTLED_S", 0.1)
    monkeypatch.setattr(idle, "MEASURED_S", 0.3)
    cluster.make_topic("idle")
    (table,) = rocketmq_tables({"idle": idle.idle(cluster.cluster, 3)})
    assert [row[0] for row in table.rows] == [f"{name}, 3 consumers" for name in idle.NAMES]


def test_targets_are_judged_by_the_median_of_the_turns() -> None:
    found = {"sent": [[60.0, 100.0], [50.0, 100.0], [10.0, 100.0]], "received": [[39.0, 100.0]]}
    (table,) = rocketmq_tables({**found})
    assert [row[-1] for row in table.rows] == [">= 0.50 met", ">= 0.40 MISSED"]
    assert table.rows[0][3:5] == ["0.50", "0.10 to 0.60"]
