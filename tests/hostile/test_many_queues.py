"""More queues than descriptors: a shard serves them, and starts again quickly after a stop and a kill.

Each of them has a message; after each start old and new queues are read.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc

from tests.hostile.rig import DESCRIPTORS, Node, told
from tests.store.conftest import sent

PER_TOPIC = 4
BATCH = 1_000
CALL_S = 120


class Shard:
    """A store alone, whose queues are named by number."""

    def __init__(self, directory: Path, **settings: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        own = {"data_dir": directory / "store", "shard": 0, "checkpoint_ms": 1_000}
        self.node = Node("store-0", directory, own | settings, DESCRIPTORS)

    def start(self, number: signal.Signals | None = None) -> tuple[float, float]:
        """Ends it before, if asked for; wall and processor time until it serves."""
        if number is not None:
            self.node.end(number)
        started = time.perf_counter()
        self.node.start()
        return time.perf_counter() - started, self.node.cpu_s

    async def fill(self, name: str, count: int) -> None:
        async with grpc.aio.insecure_channel(self.node.address) as channel:
            stub = store_pb2_grpc.StoreStub(channel)
            for first in range(0, count, BATCH):
                records = [self._record(name, number) for number in range(first, min(first + BATCH, count))]
                answer = await stub.Put(store_pb2.PutRequest(records=b"".join(records)), timeout=CALL_S)
                assert not answer.faults, dict(answer.faults)

    def _record(self, name: str, number: int) -> bytes:
        topic, queue = divmod(number, PER_TOPIC)
        return sent(f"{name}{number}", topic=f"topic-{topic}", queue=queue)

    async def ids(self, numbers: Iterator[int] | range) -> list[list[str]]:
        async with grpc.aio.insecure_channel(self.node.address) as channel:
            stub = store_pb2_grpc.StoreStub(channel)
            return [[one.id for one in (await self._pull(stub, number)).messages] for number in numbers]

    async def _pull(self, stub: store_pb2_grpc.StoreStub, number: int) -> gateway_pb2.PullResponse:
        topic, queue = divmod(number, PER_TOPIC)
        request = gateway_pb2.PullRequest(topic=f"topic-{topic}", queue=queue, max_count=10)
        return await stub.Pull(request, timeout=CALL_S)

    def metric(self, name: str) -> float:
        return self.node.metrics()[name]

    def settled(self, deadline_s: float = 900) -> float:
        """Waits until all units are in their files, and a checkpoint counts them; how long."""
        started = time.perf_counter()
        while self.metric("duetime_store_late_unit_bytes"):
            assert time.perf_counter() - started < deadline_s
            time.sleep(0.2)
        name = "duetime_store_checkpoint_seconds_count"
        count = self.metric(name)
        while self.metric(name) == count:
            assert time.perf_counter() - started < deadline_s
            asyncio.run(self.fill("tick", 1))
            time.sleep(0.2)
        return time.perf_counter() - started


def exercise(shard: Shard, count: int) -> dict[str, float]:
    """Fills queues, and starts again after a stop and a kill; figures."""
    figures: dict[str, float] = {}
    step = max(count // 50, 1)
    empty_s, empty_cpu_s = shard.start()
    base_mb = shard.node.rss_mb
    started = time.perf_counter()
    asyncio.run(shard.fill("a", count))
    figures["fill_s"] = time.perf_counter() - started
    figures["settled_s"] = shard.settled()
    assert shard.node.open_files < DESCRIPTORS
    assert shard.metric("duetime_store_queues") >= count
    assert shard.metric("duetime_store_queue_files_open") <= shard.metric("duetime_store_queue_files_max")
    assert shard.metric("duetime_store_read_only") == 0
    wall_s, cpu_s = shard.start(signal.SIGTERM)
    figures |= {"clean_s": wall_s - empty_s, "clean_cpu_s": cpu_s - empty_cpu_s}
    figures["bytes_per_queue"] = (shard.node.rss_mb - base_mb) * 2**20 / count
    found = asyncio.run(shard.ids(range(1, count, step)))
    assert found == [[f"a{number}"] for number in range(1, count, step)]
    asyncio.run(shard.fill("b", count // 10))
    wall_s, cpu_s = shard.start(signal.SIGKILL)
    figures |= {"killed_s": wall_s - empty_s, "killed_cpu_s": cpu_s - empty_cpu_s}
    found = asyncio.run(shard.ids(range(1, count, step)))
    assert [ids for ids in found if len(ids) == 1] == [[f"a{n}"] for n in range(1, count, step) if n >= count // 10]
    assert [ids for ids in found if len(ids) == 2] == [[f"a{n}", f"b{n}"] for n in range(1, count // 10, step)]
    asyncio.run(shard.fill("c", 10))
    assert asyncio.run(shard.ids(range(1, 10))) == [[f"a{n}", f"b{n}", f"c{n}"] for n in range(1, 10)]
    assert shard.node.open_files < DESCRIPTORS
    return figures


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Shard]]:
    made: list[Shard] = []

    def make(**settings: object) -> Shard:
        made.append(Shard(tmp_path / "shard", **settings))
        return made[-1]

    yield make
    for shard in made:
        shard.node.end(signal.SIGKILL)


@pytest.mark.proof
def test_three_times_more_queues_than_descriptors(make: Callable[..., Shard]) -> None:
    told(**exercise(make(), 3_000))


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_a_hundred_thousand_queues(make: Callable[..., Shard]) -> None:
    figures = exercise(make(), 100_000)
    told(**figures)
    # The machine may be busy: processor time measures the cost of a start.
    assert figures["clean_cpu_s"] < 5
    assert figures["killed_cpu_s"] < 15
    assert figures["bytes_per_queue"] < 2_000
