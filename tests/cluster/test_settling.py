"""The kit's clock: pauses of a scheduler end while other messages arrive."""

import asyncio

import pytest
from duetime import AsyncProducer
from duetime_core.testing import Cluster
from duetime_scheduler import lane
from duetime_scheduler.batch import OutOfStep, make_batch

from tests.tap import WAIT_S


async def test_clock_moves_past_a_pause_beside_a_stream_of_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()

    def fail_once(*args: object) -> object:
        if failed.is_set():
            return make_batch(*args)  # type: ignore[arg-type]
        failed.set()
        raise OutOfStep("as the test wants")

    monkeypatch.setattr(lane, "make_batch", fail_once)
    async with asyncio.timeout(WAIT_S), Cluster() as cluster, AsyncProducer(cluster.address) as producer:
        await producer.send("orders", b"late", delay="1s")

        async def send_on() -> None:
            while True:
                await producer.send("orders", b"now")

        sending = asyncio.create_task(send_on())
        await cluster.advance("1s")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert failed.is_set()
        assert not any(lane.pending_count for lane in cluster.stores[0].store.lanes)
