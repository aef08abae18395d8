"""The promises, on the whole cluster in one process and a fake clock."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncProducer, AsyncPuller, Message, ReceivedMessage
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, scheduler_pb2, scheduler_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_format import record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.properties import decode_properties

from tests.seeds import seed

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def stored(cluster: Cluster, topic: str, shard: int = 0) -> list[record.Record]:
    """Every record of a topic, queue by queue, straight from the shard's log."""
    store = cluster.stores[shard].store
    records = []
    for queue in sorted((q for q in store.queues.all() if q.topic == topic), key=lambda q: q.queue):
        offset = queue.min_offset
        while len(units := queue.read(offset, 4_096)):
            offset += len(units)
            records += [record.decode(store.read_record(*unit)) for unit in units[["position", "size"]].tolist()]
    return records


def entry(found: record.Record) -> tuple[int, int, int]:
    lane_entry = record.find_lane_entry(found.properties)
    assert lane_entry is not None
    return lane_entry


async def until(true: Callable[[], Any], cluster: Cluster) -> None:
    """Waits for the next publishes of the first shard until something holds."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.wait({cluster.stores[0].store.next_publish()}, timeout=0.05)


def assert_order(records: list[record.Record]) -> None:
    """Within a topic queue, the entries of each lane come by due time, then by lane position."""
    last: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, -1))
    for found in records:
        level, offset, due_at_ms = entry(found)
        assert last[found.queue, level] < (due_at_ms, offset)
        last[found.queue, level] = (due_at_ms, offset)


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.proof)])
async def test_messages_of_all_levels_are_restored_once_and_in_order(tmp_path: Path, rounds: int) -> None:
    dice = random.Random(seed())
    async with Cluster(tmp_path) as cluster, AsyncProducer(cluster.address) as producer:
        clock, store = cluster.clock, cluster.stores[0].store
        sent: dict[int, int] = Counter()
        due: dict[str, int] = {}
        for _ in range(rounds):
            messages = [Message("orders", b"%d" % n, level=dice.randint(1, LEVELS.highest)) for n in range(2_000)]
            for message, receipt in zip(messages, await producer.send_many(messages, errors="return"), strict=True):
                assert not isinstance(receipt, Exception)
                assert receipt.lane == message.level
                sent[receipt.lane] += 1
                due[receipt.message_id] = int(receipt.deliver_at.timestamp() * 1000)
            await cluster.advance(f"{dice.randint(1, 3_000)}ms")
            assert_counters(store, sent, due, clock.now_ms())
        for delay in ("10s", "1m", "10m", "30m", "2h"):
            await cluster.advance(delay)
            assert_counters(store, sent, due, clock.now_ms())
        records = stored(cluster, "orders")
        assert sorted(ids(records)) == sorted(due)
        assert {entry(found)[:2] for found in records} == {(n, o) for n, count in sent.items() for o in range(count)}
        for found in records:
            assert found.stored_at_ms >= entry(found)[2]
        assert_order(records)


def ids(records: list[record.Record]) -> list[str]:
    return [decode_properties(found.properties)["UNIQ_KEY"] for found in records]


def assert_counters(store: Any, sent: dict[int, int], due: dict[str, int], now_ms: int) -> None:
    """Pending and restored of all lanes add up to the sent messages, and to those due by the receipts."""
    for lane in store.lanes:
        assert lane.pending_count + lane.lateness.count == sent[lane.number]
    assert sum(lane.lateness.count for lane in store.lanes) == sum(at <= now_ms for at in due.values())


async def test_two_schedulers_forced_onto_one_lane_double_nothing(tmp_path: Path) -> None:
    # Each has a separate metadata database, so both hold every lane.
    async with (
        Cluster(tmp_path / "one", delay_levels="1s") as cluster,
        Cluster(tmp_path / "two", delay_levels="1s", clock=cluster.clock) as other,
        AsyncProducer(cluster.address) as producer,
    ):
        settings = {"database_url": other.database_url, "stores": cluster.store_addresses, "member_id": "rival"}
        rival = await cluster._start_node("scheduler", settings)
        for _ in range(20):
            await producer.send_many([Message("orders", b"x", level=1) for _ in range(500)], errors="return")
            await cluster.advance("1s")
        found = stored(cluster, "orders")
        assert [entry(one)[1] for one in sorted(found, key=lambda one: entry(one)[1])] == list(range(10_000))
        assert rival.port


async def test_lanes_are_shared_and_taken_over(tmp_path: Path) -> None:
    async with Cluster(tmp_path, schedulers=2) as cluster, AsyncProducer(cluster.address) as producer:
        channel = make_channel(f"127.0.0.1:{cluster.schedulers[1].port}")
        stub = scheduler_pb2_grpc.SchedulerStub(channel)

        async def owners() -> Counter[str]:
            answer = await stub.ListLaneLeases(scheduler_pb2.ListLaneLeasesRequest(), timeout=60)
            return Counter(lease.owner for lease in answer.leases)

        async with asyncio.timeout(60):
            while set((await owners()).values()) != {9, 10}:
                cluster.clock.move(500)
        await cluster.stop_node(cluster.schedulers[0])
        async with asyncio.timeout(60):
            while set((await owners()).values()) != {19}:
                cluster.clock.move(500)
        await producer.send("orders", b"x", level=1)
        await cluster.advance("1s")
        assert len(stored(cluster, "orders")) == 1
        await channel.close()


async def test_paused_lane_waits_and_resumes(tmp_path: Path) -> None:
    async with Cluster(tmp_path, delay_levels="1s 5s") as cluster, AsyncProducer(cluster.address) as producer:
        channel = make_channel(f"127.0.0.1:{cluster.schedulers[0].port}")
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        lane = scheduler_pb2.LaneRequest(shard=0, level=1)
        assert (await stub.PauseLane(lane, timeout=60)).paused
        cluster.clock.move(1_000)
        await producer.send("orders", b"slow", level=1)
        await producer.send("orders", b"fast", level=2)
        cluster.clock.move(6_000)
        await until(lambda: [found.body for found in stored(cluster, "orders")] == [b"fast"], cluster)
        assert not (await stub.ResumeLane(lane, timeout=60)).paused
        await cluster.settle()
        assert sorted(found.body for found in stored(cluster, "orders")) == [b"fast", b"slow"]
        await channel.close()


@pytest.mark.parametrize("within", [False, True], ids=["by sockets", "within a process"])
async def test_store_restart_keeps_pending_messages(tmp_path: Path, within: bool) -> None:
    async with Cluster(tmp_path, within=within) as cluster, AsyncProducer(cluster.address) as producer:
        receipt = await producer.send("orders", b"x", delay="2h")
        await cluster.stop_node(cluster.stores[0])
        await cluster.start_store(0)
        await cluster.advance("1h")
        assert [lane.pending_count for lane in await cluster.lanes() if lane.level == 18] == [1]
        await cluster.advance("1h")
        assert ids(stored(cluster, "orders")) == [receipt.message_id]


async def test_wall_clock_steps_hasten_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path, delay_levels="5s") as cluster, AsyncProducer(cluster.address) as producer:
        for step_ms in (-262_000, 262_000, -262_000, 131_000):
            await producer.send("orders", b"x", level=1)
            cluster.clock.step_wall(step_ms)
            await producer.send("orders", b"y", level=1)
            cluster.clock.move(2_000)
        await cluster.advance("10m")
        records = stored(cluster, "orders")
        assert len(records) == 8
        assert all(found.stored_at_ms >= entry(found)[2] for found in records)


async def test_entry_that_can_not_be_restored_does_not_stop_its_lane(tmp_path: Path) -> None:
    async with Cluster(tmp_path, delay_levels="5s") as cluster, AsyncProducer(cluster.address) as producer:
        for number in range(3):
            await producer.send("orders", b"body %d" % number, level=1, queue=0)
        store = cluster.stores[0].store
        position = int(store.lanes[1].queue.read(1, 1)["position"][0])
        with (tmp_path / "store-0/commitlog" / ("0" * 20)).open("r+b") as log:
            log.seek(position + 90)
            log.write(b"\xff")
        await cluster.advance("5s")
        assert [found.body for found in stored(cluster, "orders")] == [b"body 0", b"body 2"]
        [quarantined] = stored(cluster, QUARANTINE_TOPIC)
        assert entry(quarantined)[:2] == (1, 1)
        assert "CRC" in decode_properties(quarantined.properties)["DT_FAULT"]
        [lane, _] = await cluster.lanes()
        assert (lane.pending_count, lane.restored_count, lane.quarantined_count) == (0, 2, 1)


async def test_shards_each_keep_their_lanes(tmp_path: Path) -> None:
    async with Cluster(tmp_path, shards=2, delay_levels="1s") as cluster, AsyncProducer(cluster.address) as producer:
        sent = [Message("orders", b"%d" % n, level=1, id=f"id{n}") for n in range(400)]
        receipts = await producer.send_many(sent, errors="return")
        assert {receipt.shard for receipt in receipts} == {0, 1}
        await cluster.advance("1s")
        found = [*stored(cluster, "orders", 0), *stored(cluster, "orders", 1)]
        assert sorted(ids(found)) == sorted(receipt.message_id for receipt in receipts)
        async with AsyncPuller(cluster.address, "orders") as puller:
            read: list[ReceivedMessage] = []
            while len(read) < len(receipts):
                read += await puller.poll(64)
        assert sorted(message.id for message in read) == sorted(ids(found))
        offsets = defaultdict(list)
        for message in read:
            offsets[message.queue].append(message.offset)
        assert all(found == list(range(len(found))) for found in offsets.values())


@pytest.mark.parametrize("level", [0, 1])
async def test_repeated_send_returns_the_place_of_the_first(tmp_path: Path, level: int) -> None:
    async with Cluster(tmp_path, delay_levels="1s") as cluster:
        channel = make_channel(cluster.address)
        stub = gateway_pb2_grpc.GatewayStub(channel)
        messages = [message_pb2.Message(topic="orders", id=f"A{n}", delay_level=level) for n in range(3)]
        first = (await stub.Send(gateway_pb2.SendRequest(messages=messages), timeout=60)).results
        again = (await stub.Send(gateway_pb2.SendRequest(messages=messages[1:]), timeout=60)).results
        for before, after in zip(first[1:], again, strict=True):
            assert (after.duplicate, after.queue, after.offset) == (True, before.queue, before.offset)
            assert after.deliver_at_ms == before.deliver_at_ms
        others = [
            message_pb2.Message(topic="orders", id="A0", **delay)
            for delay in ({}, {"delay_level": 9}, {"delay_ms": 77_000})
        ]
        for other in others:
            (after,) = (await stub.Send(gateway_pb2.SendRequest(messages=[other]), timeout=60)).results
            after.duplicate = False
            assert after == first[0]
        await cluster.advance("1s")
        assert sorted(ids(stored(cluster, "orders"))) == ["A0", "A1", "A2"]
        await channel.close()
