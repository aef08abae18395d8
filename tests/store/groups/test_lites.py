"""Lite topics: each in order for the members that name it, at the group's offset, through restarts, until forgotten."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import limits
from duetime_format.levels import DELAY_MS_MAX

from tests.format import golden55
from tests.store.conftest import sent
from tests.store.groups.running import EXPIRED, GROUP, INVISIBLE_MS, OK, TOPIC, Consuming, names, told
from tests.store.running import Running

LITE = 5


class Liting(Consuming):
    """A store with a parent topic of lite topics."""

    async def __aenter__(self) -> "Liting":
        await super().__aenter__()
        await self.stub.PutTopic(store_pb2.PutTopicRequest(name=TOPIC, queue_count=self.queues, message_type=LITE))
        return self

    async def write(self, lite: str, *ids: str, queue: int = 0, **more: str) -> None:
        await self.put(*(sent(one, queue=queue, __LITE_TOPIC=lite, **more) for one in ids))

    async def read(self, *lites: str, **options: Any) -> list[consumer_pb2.LeasedMessage]:
        return await self.receive(lite_topics=lites, **options)

    async def both(self) -> list[consumer_pb2.LeasedMessage]:
        """All messages of two lite topics: a slow machine ends the step of a receive between them."""
        return [*await self.read("a"), *await self.read("b"), *await self.read("a", "b")]

    async def open(self, *lites: str) -> store_pb2.OpenLiteTopicsResponse:
        return await self.stub.OpenLiteTopics(store_pb2.OpenLiteTopicsRequest(topic=TOPIC, lite_topics=lites))

    async def waits(self, count: int) -> None:
        """Returns once receives wait for this number of lite topics."""
        async with asyncio.timeout(60):
            while len(self.node.parts.groups._lines.lites._waiters) != count:
                await self.stub.Describe(store_pb2.DescribeRequest())

    @property
    def count(self) -> int:
        return len(self.node.parts.lites.lites)

    async def forgotten(self, count: int) -> None:
        """Returns once this number of lite topics is left; time passes meanwhile."""
        async with asyncio.timeout(60):
            while self.count != count:
                await self.clock.advance(self.settings.lite_keep_ms // 8)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Liting]:
    async with Liting(tmp_path / "store", queues=2) as running:
        yield running


@pytest.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[Liting]:
    """Forgets lite topics after eight seconds."""
    async with Liting(tmp_path / "store", lite_keep_ms=8_000) as running:
        yield running


async def test_a_receive_gets_messages_of_its_lite_topics_alone(store: Liting) -> None:
    await store.write("a", "a1", "a2")
    await store.write("b", "b1", queue=1)
    await store.send("plain")
    assert await store.read("c") == []
    got = await store.both()
    assert names(got) == ["a1", "a2", "b1"]
    assert [one.message.topic for one in got] == [TOPIC] * 3
    assert await store.ack(*got) == [OK] * 3
    assert await store.read("a", "b") == []


async def test_a_lite_topic_has_one_lease_at_a_time(store: Liting) -> None:
    await store.write("a", "a1", "a2", "a3")
    await store.write("b", "b1")
    (first,) = await store.read("a", max_count=1)
    assert names(await store.both()) == ["b1"]
    await store.clock.advance(INVISIBLE_MS)
    again = await store.read("a", max_count=2)
    assert told(again) == [("a1", 2)]
    assert await store.ack(first, *again) == [EXPIRED, OK]
    assert names(await store.read("a")) == ["a2", "a3"]


async def test_a_failed_message_keeps_its_place(store: Liting) -> None:
    await store.write("a", "a1", "a2")
    (first,) = await store.read("a", max_count=1)
    statuses, _ = await store.defer(first, ms=5_000)
    assert statuses == [OK]
    assert await store.read("a") == []
    await store.clock.advance(5_000)
    (again,) = await store.read("a")
    assert told([again]) == [("a1", 2)]
    assert (await store.leased(again))[0].ordered
    await store.ack(again)
    assert names(await store.read("a")) == ["a2"]


async def test_groups_read_a_lite_topic_each_from_its_start(store: Liting) -> None:
    await store.write("a", "a1")
    for group in ("g1", "g2"):
        assert names(await store.read("a", group=group)) == ["a1"]


async def test_a_message_wakes_the_member_that_names_its_lite_topic(store: Liting) -> None:
    waiting = [asyncio.create_task(store.read(one, wait_ms=30_000)) for one in ("a", "b")]
    await store.waits(2)
    await store.write("b", "b1")
    assert names(await waiting[1]) == ["b1"]
    assert not waiting[0].done()
    await store.write("a", "a1")
    assert names(await waiting[0]) == ["a1"]


async def test_an_end_of_a_lease_wakes_the_next_member(store: Liting) -> None:
    await store.write("a", "a1", "a2")
    (first,) = await store.read("a", max_count=1)
    next_one = asyncio.create_task(store.read("a", wait_ms=30_000))
    await store.waits(1)
    await store.ack(first)
    assert names(await next_one) == ["a2"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_groups_resume_at_their_offsets_after_a_restart(store: Liting, is_killed: bool) -> None:
    await store.write("a", "a1", "a2")
    await store.write("b", "b1")
    first, _ = await store.read("a")
    await store.ack(first)
    await (store.kill() if is_killed else store.again())
    await store.write("a", "a3")
    await store.clock.advance(INVISIBLE_MS)
    got = await store.both()
    assert told(got) == [("a2", 2), ("b1", 1)]
    await store.ack(*got)
    assert names(await store.read("a", "b")) == ["a3"]


async def test_a_broker_s_lite_topic_in_several_queues_keeps_its_order(store: Liting) -> None:
    for number, one in enumerate(["a1", "a2", "a3", "a4"]):
        await store.write("a", one, queue=number % 2)
    found = []
    for _ in range(4):
        got = await store.read("a")
        found += names(got)
        assert await store.read("a") == []
        await store.ack(*got)
    assert found == ["a1", "a2", "a3", "a4"]


async def test_groups_of_a_broker_resume_at_their_offsets_in_lite_topics(tmp_path: Path) -> None:
    root = golden55.unpack("f-lite", tmp_path)
    path = root / "config" / "lmqConsumerOffset.json"
    read = {"%LMQ%$Df_Lite$lite0@g": 1, "%LMQ%$Df_Lite$lite1@g": 2}
    path.write_text(path.read_text().replace('"lmqOffsetTable":{}', f'"lmqOffsetTable":{json.dumps(read)}'))
    lines = [line for line in golden55.manifest("f-lite") if line["kind"] == "lite"]
    lites = sorted({line["lite"] for line in lines})
    wanted = {lite: [line["key"] for line in lines if line["lite"] == lite] for lite in lites}
    levels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    async with Running(root, delay_levels=levels, transaction_keep_ms=DELAY_MS_MAX) as store:
        for group, skipped in (("g", {"lite0": 1, "lite1": 2}), ("new", {})):
            for lite in lites:
                assert await keys_of(store, group, lite) == wanted[lite][skipped.get(lite, 0) :]


async def keys_of(store: Running, group: str, lite: str) -> list[str]:
    """The keys of the messages that a group receives from a lite topic of the broker's directory, in order."""
    numbers = [consumer_pb2.QueueNumber(queue=number, shard_queue=number) for number in range(2)]
    request = consumer_pb2.ReceiveRequest(group=group, topic="Df_Lite", queues=numbers, lite_topics=[lite])
    found: list[str] = []
    while messages := (await store.stub.Receive(request, timeout=60)).messages:
        found += [one.message.keys[0] for one in messages]
        await store.stub.Ack(consumer_pb2.AckRequest(group=group, receipts=[one.receipt for one in messages]))
    return found


async def test_lite_topics_are_forgotten_after_their_last_use(forgetful: Liting) -> None:
    store = forgetful
    await store.write("a", "a1")
    await store.write("b", "b1")
    got = await store.read("a")
    await store.ack(*got)
    for _ in range(16):
        await store.clock.advance(store.settings.lite_keep_ms // 8)
        await store.read("a")
    await store.forgotten(1)
    assert store.node.parts.groups.progress.lite_seats.used == 1
    await store.forgotten(0)
    assert not store.node.parts.groups.progress.places
    # Messages that the group has read stay read, also after a restart.
    assert await store.read("a") == []
    await store.again()
    assert await store.read("a") == []
    await store.write("a", "a2")
    assert names(await store.read("a")) == ["a2"]


async def test_an_outstanding_message_keeps_its_lite_topic(forgetful: Liting) -> None:
    store = forgetful
    await store.write("a", "a1")
    (one,) = await store.read("a", invisible_ms=limits.INVISIBLE_MS_MAX)
    for _ in range(16):
        await store.change(one, ms=limits.INVISIBLE_MS_MAX)
        await store.clock.advance(store.settings.lite_keep_ms // 8)
    assert store.count == 1
    await store.ack(one)


async def test_lite_topics_have_a_maximum_and_callers_a_share(tmp_path: Path) -> None:
    async with Liting(tmp_path / "store", lite_topics_max=4) as store:
        answer = await store.open("a", "b", "c", "a", "bad name")
        assert {index: fault.reason for index, fault in answer.faults.items()} == {
            2: "LITE_TOPICS_EXHAUSTED",
            4: "INVALID_ARGUMENT",
        }
        # Messages of others are taken up to the maximum; beyond, they are in their topic alone.
        for lite in "cde":
            await store.write(lite, f"{lite}1")
        assert [names(await store.read(lite)) for lite in "cde"] == [["c1"], ["d1"], []]
        assert len((await store.pull()).messages) == 3


async def test_a_deleted_topic_takes_its_lite_topics_along(store: Liting) -> None:
    await store.write("a", "a1")
    await store.read("a")
    waiting = asyncio.create_task(store.read("z", wait_ms=30_000))
    await store.waits(1)
    for stage in (store_pb2.DELETION_STAGE_CLOSE, store_pb2.DELETION_STAGE_DELETE):
        request = store_pb2.DeleteStoredTopicRequest(name=TOPIC, stage=stage, generation=1)
        answer = await store.stub.DeleteTopic(request, timeout=60)
    with pytest.raises(grpc.aio.AioRpcError, match="not known"):
        await waiting
    assert not answer.groups
    assert (store.count, len(store.node.parts.groups.progress.places)) == (0, 0)


async def test_a_description_counts_unread_messages_of_lite_topics(store: Liting) -> None:
    await store.write("a", "a1", "a2", "a3")
    await store.write("b", *(f"b{number}" for number in range(50)))
    await store.read("a", max_count=1)
    (row,) = (await store.describe()).queues
    assert (row.topic, row.lag, row.in_flight) == (TOPIC, 3, 1)


async def test_bad_lite_topics_are_rejected(store: Liting) -> None:
    for options in ({"lite_topics": ["a b"]}, {"lite_topics": ["a"], "tags": "x"}, {"lite_topics": ["x" * 65]}):
        with pytest.raises(grpc.aio.AioRpcError, match="lite_topics"):
            await store.receive(**options)
    assert GROUP not in store.node.parts.groups.activity
