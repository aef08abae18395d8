"""Spark's backlog of a store that runs is the store's own, to the minute: of levels and for any time, with messages
cancelled, rescheduled and replaced."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from duetime import AsyncProducer, Message, Receipt
from duetime.v1 import gateway_pb2_grpc, pending_pb2
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_spark.moment import take_moment
from duetime_spark.running import JobOptions, run
from pyspark.sql import SparkSession

MINUTE_MS = 60_000
DELAYS = ("1m", "10m", "1h", "7s", "90s", "31m", "5h")


class Life:
    """Sends, cancels, reschedules and replaces at random."""

    def __init__(self, producer: AsyncProducer, seed: int) -> None:
        self._producer = producer
        self._dice = random.Random(seed)
        self._receipts: list[Receipt] = []

    async def live(self) -> None:
        dice, producer = self._dice, self._producer
        sent = [Message(f"t{dice.randrange(3)}", b"x", delay=dice.choice(DELAYS)) for _ in range(20)]
        self._receipts += [one for one in await producer.send_many(sent, errors="return") if isinstance(one, Receipt)]
        await producer.cancel([self._some() for _ in range(3)])
        for _ in range(2):
            await producer.reschedule(self._some(), delay=dice.choice(DELAYS))
        await producer.send("t0", b"x", delay=dice.choice(DELAYS), key=f"k{dice.randrange(2)}", replace=True)

    def _some(self) -> Receipt:
        return self._dice.choice(self._receipts)


@pytest.mark.parametrize("way", [pytest.param("directory", marks=pytest.mark.proof), "export"])
async def test_backlog_by_minute_is_the_stores(spark: SparkSession, tmp_path: Path, way: str) -> None:
    async with (
        Cluster(tmp_path, store_settings={"timer_lanes": 2}) as cluster,
        AsyncProducer(cluster.address) as producer,
        make_channel(cluster.address) as channel,
    ):
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        source = str(tmp_path / "store-0") if way == "directory" else f"grpc://{cluster.address}"
        life = Life(producer, seed=7)
        for _ in range(2):
            await life.live()
            await cluster.advance("65s")
            request = pending_pb2.BacklogRequest()
            told = await stub.Backlog(request, timeout=60)
            order = JobOptions("backlog", now_ms=cluster.clock.now_ms())
            found = await asyncio.to_thread(lambda order=order: run(spark, order, take_moment([source])).to_dict())
            by_topic: Counter[tuple[int, str]] = Counter()
            by_minute: Counter[tuple[int, int]] = Counter()
            for bucket in told.buckets:
                assert bucket.width_ms == MINUTE_MS
                by_topic[bucket.lane, bucket.topic] += bucket.count
                by_minute[bucket.lane, bucket.due_from_ms] += bucket.count
            assert Counter({(row["level"], row["topic"]): row["count"] for row in found["pending"]}) == by_topic
            assert Counter({(row["level"], row["at_ms"]): row["count"] for row in found["due_minutes"]}) == by_minute
            assert told.pending_count == by_topic.total() > 0
