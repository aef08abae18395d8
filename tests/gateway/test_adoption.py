"""Topics that shards have and the metadata database lacks: broker directories, several shards, odd names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from duetime import AsyncPuller
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format import record
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.properties import value_of
from duetime_gateway.routing import adoption
from duetime_gateway.routing.adoption import adoptable
from duetime_store.node import StoreNode
from structlog.testing import capture_logs

from tests.format import golden
from tests.gateway.conftest import MIB, Gateway, TappedStore, error_of, message, real_store
from tests.store.conftest import sent


async def fill(node: StoreNode, *records: bytes) -> None:
    """As if a broker had written them: no database knows of their topics."""
    node.store.put(b"".join(records))
    node.parts.flusher.wake()
    durable = node.store.when_durable()
    assert durable is not None
    await durable


@asynccontextmanager
async def two_with_one_topic(root: Path) -> AsyncIterator[Gateway]:
    """Shard 0 has 2 queues of `orders`, shard 1 has 3, all numbered from 0."""
    async with real_store(root, 0) as first, real_store(root, 1) as second:
        await fill(first, *(sent(f"a{queue}", queue=queue) for queue in range(2)))
        await fill(second, *(sent(f"b{queue}", queue=queue) for queue in range(3)))
        async with Gateway(root, {0: first.port, 1: second.port}) as gateway:
            yield gateway


async def bodies(gateway: Gateway, topic: str, queue: int) -> list[str]:
    return [one.id for one in (await gateway.pull(topic, queue, max_count=1_000)).messages]


def stored(*topics: tuple[str, int], perm: int = 6) -> list[store_pb2.StoredTopic]:
    return [
        store_pb2.StoredTopic(name=name, read_queue_count=count, write_queue_count=count, perm=perm)
        for name, count in topics
    ]


@pytest.mark.parametrize("name", golden.NAMES)
async def test_topics_of_a_broker_s_directory_are_served(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    summary = golden.summary(name)
    async with (
        # The directory's open transactions are older than a store keeps them.
        real_store(tmp_path, data_dir=directory, segment_bytes=MIB, transaction_keep_ms=DELAY_MS_MAX) as store,
        Gateway(tmp_path, {0: store.port}) as gateway,
    ):
        listed = (await gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest())).topics
        names = {topic.name for topic in listed}
        assert set(summary["queues"]) - {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"} <= names
        assert not names & adoption.NOT_ADOPTED
        for topic, queues in summary["queues"].items():
            described = await gateway.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name=topic))
            found = {one.queue: (one.min_offset, one.max_offset) for one in described.queues if one.max_offset}
            assert found == {int(queue): (bounds["min"], bounds["max"]) for queue, bounds in queues.items()}
        retries = next(topic for topic in summary["queues"] if topic.startswith("%RETRY%"))
        count = sum(bounds["max"] for bounds in summary["queues"][retries].values())
        async with AsyncPuller(f"127.0.0.1:{gateway.node.port}", retries) as puller:
            read = 0
            while read < count:
                read += len(await puller.poll(1_000))
        topic = next(topic for topic in summary["queues"] if topic.endswith("Orders"))
        (result,) = await gateway.send(message(topic=topic, queue=1))
        assert result.offset == summary["queues"][topic]["1"]["max"]


async def test_queues_of_several_shards_follow_each_other(tmp_path: Path) -> None:
    async with two_with_one_topic(tmp_path) as gateway:
        route = await gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
        assert [(one.queue, one.shard) for one in route.queues] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]
        assert [await bodies(gateway, "orders", queue) for queue in range(5)] == [
            ["a0"],
            ["a1"],
            ["b0"],
            ["b1"],
            ["b2"],
        ]
        assert (await gateway.pull("orders", 3)).messages[0].queue == 3
        positions = [gateway_pb2.QueuePosition(queue=queue) for queue in (4, 2)]
        request = gateway_pb2.PullQueuesRequest(topic="orders", queues=positions)
        pulled = (await gateway.stub.PullQueues(request)).queues
        assert [(one.queue, one.pull.messages[0].queue, one.pull.messages[0].id) for one in pulled] == [
            (4, 4, "b2"),
            (2, 2, "b0"),
        ]
        async with AsyncPuller(f"127.0.0.1:{gateway.node.port}", "orders") as puller:
            read: dict[str, int] = {}
            while len(read) < 5:
                read |= {one.id: one.queue for one in await puller.poll()}
        assert read == {"a0": 0, "a1": 1, "b0": 2, "b1": 3, "b2": 4}


@pytest.mark.parametrize("level", [0, 1])
async def test_messages_go_to_the_queue_by_its_number_on_the_shard(tmp_path: Path, level: int) -> None:
    async with two_with_one_topic(tmp_path) as gateway:
        (first,) = await gateway.send(message(b"new", id="N", queue=3, delay_level=level))
        assert (first.shard, first.queue) == (1, 3)
        (again,) = await gateway.send(message(b"new", id="N", queue=3, delay_level=level))
        assert (again.duplicate, again.shard, again.queue, again.offset) == (True, 1, 3, first.offset)
        if level:
            (lane,) = (await gateway.pull("SCHEDULE_TOPIC_XXXX", 18, encoding=gateway_pb2.PULL_ENCODING_RECORDS),)
            found = record.decode(lane.records)
            assert value_of(found.properties, b"REAL_QID") == b"1"
        else:
            assert await bodies(gateway, "orders", 3) == ["b1", "N"]


async def test_shard_that_comes_later_adds_its_queues(tmp_path: Path) -> None:
    async with real_store(tmp_path, 0) as first, real_store(tmp_path, 1) as second:
        await fill(first, sent("a0"))
        await fill(second, sent("b0"), sent("b1", queue=1))
        async with Gateway(tmp_path, {0: first.port}) as alone:
            assert await bodies(alone, "orders", 0) == ["a0"]
        async with Gateway(tmp_path, {0: first.port, 1: second.port}) as both:
            assert [await bodies(both, "orders", queue) for queue in range(3)] == [["a0"], ["b0"], ["b1"]]
        # And not once more.
        async with Gateway(tmp_path, {0: first.port, 1: second.port}) as again:
            assert len((await again.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))).queues) == 3


async def test_topic_that_is_not_found_makes_the_gateway_ask_the_shards_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "INTERVAL_MS", 0)
    async with real_store(tmp_path, 0) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await fill(store, sent("late", topic="late", queue=5))
        assert await bodies(gateway, "late", 5) == ["late"]
        await fill(store, sent("later", topic="later", queue=5))
        (result,) = await gateway.send(message(topic="later", queue=5))
        assert result.offset == 1


async def test_shards_are_asked_for_the_topic_that_is_not_found(tapped: Gateway, taps: list[TappedStore]) -> None:
    await fill(taps[0].store, sent("k", topic="known"))
    looks = taps[0].requests["ListTopics"]
    looks.clear()
    for name in "abc":
        assert (await error_of(tapped.pull(name))).code() is grpc.StatusCode.NOT_FOUND
    assert [list(look.names) for look in looks] == [["a"], ["b"], ["c"]]


async def test_concurrent_callers_share_one_lookup_of_a_topic(tapped: Gateway, taps: list[TappedStore]) -> None:
    await fill(taps[0].store, sent("a", queue=1))
    looks = taps[0].requests["ListTopics"]
    looks.clear()
    assert await asyncio.gather(*(bodies(tapped, "orders", 1) for _ in range(3))) == [["a"]] * 3
    # Look up this topic, then all.
    assert [list(look.names) for look in looks] == [["orders"], []]


async def test_system_topic_that_was_read_can_still_not_be_written(tmp_path: Path) -> None:
    async with real_store(tmp_path, 0) as store:
        await fill(store, sent("r", topic="%RETRY%billing"), sent("d", topic="%DLQ%billing"))
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            for topic, found in (("%RETRY%billing", ["r"]), ("%DLQ%billing", ["d"])):
                assert await bodies(gateway, topic, 0) == found
                (result,) = await gateway.send(message(topic=topic))
                assert "is a system topic" in result.fault.message


async def test_odd_topics_are_left_out_and_logged() -> None:
    with capture_logs() as logs:
        found = await adoptable(stored(("orders", 4), ("a b", 1), ("x" * 128, 1), ("wide", 1_025), ("none", 0)), 0)
        found |= await adoptable(stored(("SCHEDULE_TOPIC_XXXX", 18), ("DT_QUARANTINE", 1), ("TBW102", 8)), 0)
        found |= await adoptable(stored(("rmq_sys_SYNC_BROKER_MEMBER_a", 1), perm=1), 0)
    assert found == {"orders": (4, 0)}
    assert [entry["topic"] for entry in logs] == ["a b", "x" * 128, "wide"]


async def test_reads_count_where_more_queues_are_read_than_written() -> None:
    topic = store_pb2.StoredTopic(name="orders", read_queue_count=6, write_queue_count=2, perm=6)
    assert await adoptable([topic], 0) == {"orders": (6, 0)}
