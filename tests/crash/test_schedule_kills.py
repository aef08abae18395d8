"""Schedules under kill -9 of the store, the gateway and the scheduler: each occurrence occurs once, in order."""

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from duetime import AsyncPuller, AsyncSchedules, Message, NotFound
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel

from bench.processes import Processes
from tests.crash.killing import Breath, kill_one
from tests.crash.test_cluster_kills import ENVIRONMENT

# DUETIME_TEST_OCCURRENCES: the planned times that are checked.
OCCURRENCES = int(os.environ.get("DUETIME_TEST_OCCURRENCES", "20000"))
SCHEDULES = 400
TOPIC = "ticks"
KILLED = ("store", "gateway", "scheduler")
QUEUE_COUNT = 4


class Ticks:
    """Occurrences that a puller received, by schedule, in its order."""

    def __init__(self) -> None:
        self.planned: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        self.late_ms: list[int] = []
        self.enough = asyncio.Event()

    async def pull(self, address: str) -> None:
        async with AsyncPuller(address, TOPIC, start="earliest", timeout="60s") as puller:
            while not self.enough.is_set():
                for message in await puller.poll(max=1_000, wait="200ms"):
                    assert message.planned_at is not None
                    self.planned[message.schedule].append(round(message.planned_at.timestamp() * 1000))
                    self.late_ms.append(message.late_ms or 0)
                    self.count += 1
                if self.count >= OCCURRENCES:
                    self.enough.set()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path, ENVIRONMENT, impatient=True) as cluster:
        yield cluster


async def kill_until(cluster: Processes, ticks: Ticks, dice: random.Random) -> dict[str, int]:
    """Kills random processes until there are enough occurrences. Returns the number of kills of each."""
    killed = dict.fromkeys(KILLED, 0)
    breath = Breath(lambda: (ticks.count,))
    while not ticks.enough.is_set():
        await asyncio.sleep(dice.choice([0.0, dice.uniform(0.0, 1.0), dice.uniform(1.0, 4.0)]))
        name = dice.choice(KILLED)
        await kill_one(cluster, name)
        await breath.taken()
        killed[name] += 1
    return killed


async def put_all(address: str) -> dict[str, int]:
    """Returns the first planned time of each schedule."""
    async with make_channel(address) as channel:
        request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
        await gateway_pb2_grpc.GatewayStub(channel).CreateTopic(request, timeout=60, wait_for_ready=True)
    first = {}
    async with AsyncSchedules(address, timeout="60s") as schedules:
        for number in range(SCHEDULES):
            message = Message(TOPIC, str(number).encode())
            put = await schedules.put(f"s{number}", message, every=timedelta(seconds=1), missed="all")
            first[put.name] = round(put.next_at[0].timestamp() * 1000)
    return first


async def delete_all(address: str) -> None:
    """An answer may be lost with its process: then the schedule is gone."""
    async with AsyncSchedules(address, timeout="60s") as schedules:
        for number in range(SCHEDULES):
            with suppress(NotFound):
                await schedules.delete(TOPIC, f"s{number}")


@pytest.mark.proof
@pytest.mark.timeout(1_800)
async def test_each_occurrence_occurs_once_while_everything_is_killed(cluster: Processes, dice: random.Random) -> None:
    first = await put_all(cluster.address)
    ticks = Ticks()
    async with asyncio.TaskGroup() as group:
        group.create_task(ticks.pull(cluster.address))
        killed = await kill_until(cluster, ticks, dice)
    for name, planned in ticks.planned.items():
        expected = [first[name] + number * 1_000 for number in range(len(planned))]
        assert planned == expected, f"{name}: {planned[:5]}… is not {expected[:5]}…"
    assert ticks.planned.keys() == first.keys()
    await delete_all(cluster.address)
    assert await pending_count(cluster.address) == 0
    print(f"{ticks.count} occurrences of {SCHEDULES} schedules, killed {killed}, {max(ticks.late_ms)} ms late at most")
    assert all(killed.values())
    assert cluster.stop() == 0


async def pending_count(address: str) -> int:
    async with make_channel(address) as channel, asyncio.timeout(60):
        stub = gateway_pb2_grpc.GatewayStub(channel)
        while True:
            try:
                answer = await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=10)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
                continue
            if not answer.unreachable_shards:
                return sum(lane.pending_count for lane in answer.lanes)
            await asyncio.sleep(0.1)
