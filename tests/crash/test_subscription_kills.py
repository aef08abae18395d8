"""Stores and gateways killed, and stopped, under a puller that subscribes: it reads every message once, in order."""

import asyncio
import os
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from duetime import AsyncProducer, AsyncPuller, Message, Receipt
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel

from tests.hostile.rig import Node, Rig

TOPIC, QUEUE_COUNT = "subscribed", 4
BATCH = 64
PAUSE_S = 0.01
# Longer than any outage here.
SEND_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 10.0
DRAIN_DEADLINE_S = 60.0


def kill_count() -> int:
    """DUETIME_TEST_SUBSCRIPTION_KILLS: how many processes the test ends."""
    return int(os.environ.get("DUETIME_TEST_SUBSCRIPTION_KILLS", "8"))


class Reading:
    """Offsets by queue as they were handed out."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.offsets: dict[int, list[int]] = defaultdict(list)

    async def until(self, counts: dict[int, int]) -> None:
        """Reads until every queue has `count` messages."""
        async with AsyncPuller(self._address, TOPIC) as puller:
            while any(len(self.offsets[queue]) < count for queue, count in counts.items()):
                for message in await puller.poll(1_024, wait="100ms"):
                    self.offsets[message.queue].append(message.offset)


class Sending:
    """Sends until it is stopped; `counts` has one more than the highest offset that was acknowledged, by queue."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.stopping = False
        self.acknowledged = 0
        self.counts: dict[int, int] = {}

    async def run(self) -> None:
        async with AsyncProducer(self._address, timeout=timedelta(seconds=SEND_TIMEOUT_S)) as producer:
            number = 0
            while not self.stopping:
                batch = [Message(TOPIC, b"%d" % n, queue=n % QUEUE_COUNT) for n in range(number, number + BATCH)]
                number += BATCH
                for outcome in await producer.send_many(batch, errors="return"):
                    if isinstance(outcome, Receipt):
                        self.acknowledged += 1
                        self.counts[outcome.queue] = max(self.counts.get(outcome.queue, 0), outcome.offset + 1)
                await asyncio.sleep(PAUSE_S)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    with Rig(tmp_path, {"store": {"segment_bytes": 4 << 20, "drain_ms": 5_000}}, stores=2) as rig:
        async with make_channel(rig.address) as channel:
            request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
            await gateway_pb2_grpc.GatewayStub(channel).CreateTopic(request, timeout=CALL_TIMEOUT_S)
        yield rig


async def end_many(victims: list[Node], count: int, dice: random.Random) -> None:
    """Ends random processes, by kill -9 or in good order, and starts them again on their ports."""
    for _ in range(count):
        await asyncio.sleep(dice.uniform(0.1, 1.5))
        number = dice.choice((signal.SIGKILL, signal.SIGTERM))
        await asyncio.to_thread(dice.choice(victims).restart, number)


async def until_subscribed(rig: Rig) -> None:
    """Waits until the puller reads both shards by subscription after the last kill."""
    async with asyncio.timeout(DRAIN_DEADLINE_S):
        while (await asyncio.to_thread(rig.gateways[0].metrics))["duetime_gateway_subscriptions"] != 2:
            pass


@pytest.mark.proof
@pytest.mark.timeout(400)
async def test_every_message_is_read_once_in_order_despite_kills(rig: Rig, dice: random.Random) -> None:
    sending, reading = Sending(rig.address), Reading(rig.address)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sending.run())
        # It reads on until it is told how far.
        counts = dict.fromkeys(range(QUEUE_COUNT), 1 << 62)
        pulling = tasks.create_task(reading.until(counts))
        await end_many([*rig.stores, *rig.gateways], kill_count(), dice)
        sending.stopping = True
        await running
        await until_subscribed(rig)
        counts |= sending.counts
        async with asyncio.timeout(DRAIN_DEADLINE_S):
            await pulling
    assert sending.counts.keys() == set(range(QUEUE_COUNT))
    for queue, offsets in reading.offsets.items():
        assert offsets == list(range(len(offsets))), f"queue {queue}: read twice, not at all, or out of order"
    print(f"{sending.acknowledged} acknowledged, {sum(map(len, reading.offsets.values()))} read, {kill_count()} ends")


@pytest.mark.proof
async def test_puller_survives_a_graceful_stop_of_its_gateway(rig: Rig) -> None:
    async with (
        AsyncProducer(rig.address, timeout=timedelta(seconds=SEND_TIMEOUT_S)) as producer,
        AsyncPuller(rig.address, TOPIC) as puller,
    ):
        for round_ in range(3):
            await producer.send(TOPIC, b"%d" % round_, queue=0)
            (message,) = await puller.poll(wait="30s")
            assert message.body == b"%d" % round_
            code = await asyncio.to_thread(rig.gateways[0].end)
            assert code == 0
            await asyncio.to_thread(rig.gateways[0].start)
