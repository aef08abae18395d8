"""Describing, resetting and deleting groups; limits; config/consumerOffset.json."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2
from duetime_core.rpc.calls import translate
from duetime_format.names import retry_topic
from duetime_store.groups.persistence import GroupKeeper

from tests.store.groups.running import EXPIRED, GROUP, INVISIBLE_MS, OK, TOPIC, UNKNOWN, Consuming, copy, names
from tests.store.groups.test_leases import lined_up


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store", leases_max=40) as running:
        yield running


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), translate(caught.value, "", "").reason


async def test_describe_reports_the_offsets_of_a_group(store: Consuming) -> None:
    await store.send("a", "b", "c", "d", "e")
    got = await store.receive(max_count=4, member="worker-1")
    await store.ack(got[0], got[2])
    await store.change(got[1])
    found = await store.describe()
    queue, retries = found.queues
    assert (queue.topic, queue.next_offset, queue.committed_offset, queue.max_offset) == (TOPIC, 4, 1, 5)
    assert (queue.lag, queue.in_flight, queue.waiting) == (3, 1, 1)
    assert queue.oldest_unacked_at_ms == store.clock.now_ms()
    assert (retries.topic, retries.lag) == (f"%RETRY%{GROUP}", 0)
    assert [(one.name, one.topic) for one in found.members] == [("worker-1", TOPIC)]
    assert (found.receives_per_s, found.acks_per_s) == (4 / 60, 2 / 60)
    await store.clock.advance(60_000)
    assert (await store.describe()).receives_per_s == 0


async def test_one_that_receives_several_topics_is_a_member_for_each(store: Consuming) -> None:
    for topic in (TOPIC, "other"):
        await store.send("a", topic=topic)
        await store.receive(topic=topic, member="worker-1")
    found = await store.describe()
    assert sorted((one.name, one.topic) for one in found.members) == sorted(
        [("worker-1", TOPIC), ("worker-1", "other")]
    )


async def test_a_group_starts_at_its_configured_offset(store: Consuming) -> None:
    await store.send("a")
    await store.clock.advance(1_000)
    await store.send("b")
    assert names(await store.receive(start_at_ms=store.clock.now_ms())) == ["b"]
    assert names(await store.receive(group="other")) == ["a", "b"]


async def test_committed_offsets_are_where_a_group_begins_and_then_refused(store: Consuming) -> None:
    await store.send("a", "b", "c")
    commit = gateway_pb2.CommitOffsetsRequest(
        group=GROUP, topic=TOPIC, queues=[gateway_pb2.QueuePosition(queue=0, shard_queue=0, offset=2)]
    )
    await store.stub.CommitOffsets(commit)
    assert names(await store.receive()) == ["c"]
    assert await refused(store.stub.CommitOffsets(commit)) == (grpc.StatusCode.FAILED_PRECONDITION, "GROUP_RECEIVES")


async def test_committed_offsets_are_in_rocketmqs_file_after_a_checkpoint(store: Consuming) -> None:
    await store.send("a", "b", "c")
    got = await store.receive()
    await store.put(copy("r"))
    await store.ack(got[0])
    await store.again()
    content = json.loads(
        (store.settings.data_dir / "config" / "consumerOffset.json").read_text().replace("{0:", '{"0":')
    )
    assert content["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 1}, f"%RETRY%{GROUP}@{GROUP}": {"0": 0}}


async def test_reset_goes_back_and_ends_leases(store: Consuming) -> None:
    await store.send("a", "b", "c")
    got = await store.receive(max_count=2)
    await store.ack(got[0])
    row = await store.reset(earliest=True, dry_run=True)
    assert (row.from_offset, row.to_offset, row.leases_ended) == (1, 0, 1)
    assert await store.ack(got[0]) == [OK]
    assert await store.reset(earliest=True) == row
    assert await store.ack(*got) == [UNKNOWN, UNKNOWN]
    await store.kill()
    assert names(await store.receive()) == ["a", "b", "c"]
    assert (await store.reset(latest=True)).to_offset == 3
    assert await store.receive() == []
    assert (await refused(store.reset(offset=4)))[0] == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_deleted_group_starts_over(store: Consuming) -> None:
    await store.send("a")
    got = await store.receive()
    delete = consumer_pb2.DeleteGroupRequest(name=GROUP)
    assert await refused(store.stub.DeleteGroup(delete)) == (grpc.StatusCode.FAILED_PRECONDITION, "GROUP_IN_USE")
    await store.clock.advance(60_000)
    await store.stub.DeleteGroup(delete)
    await store.stub.DeleteGroup(delete)
    assert await store.ack(*got) == [EXPIRED]
    assert not (await store.describe()).queues
    await store.kill()
    assert not (await store.describe()).queues
    assert names(await store.receive()) == ["a"]


async def test_outstanding_messages_of_a_group_are_bounded_by_its_share(store: Consuming) -> None:
    await store.send(*(f"{n}" for n in range(12)))
    got = await store.receive()
    assert len(got) == 10
    assert await refused(store.receive()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LEASES_EXHAUSTED")
    await store.clock.advance(INVISIBLE_MS)
    assert len(await store.receive()) == 10
    await store.reset(earliest=True)
    await store.ack(*(await store.receive()))
    assert names(await store.receive()) == ["10", "11"]


async def test_groups_that_hoard_leave_some_to_others(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "store", leases_max=400) as store:
        await store.send(*(f"{n}" for n in range(150)))
        assert len(await store.receive(max_count=150)) == 100
        assert await refused(store.receive()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LEASES_EXHAUSTED")
        assert len(await store.receive(max_count=150, group="hoarder")) == 80
        assert await refused(store.receive(group="hoarder")) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "LEASES_EXHAUSTED",
        )
        # The last tenth of a caller's share is for its groups that hold little.
        for number in range(3):
            assert len(await store.receive(max_count=150, group=f"small-{number}")) == 4


async def test_another_filter_is_refused_for_a_minute(store: Consuming) -> None:
    await store.receive(tags="a")
    assert await refused(store.receive(tags="b")) == (grpc.StatusCode.FAILED_PRECONDITION, "FILTER_CONFLICT")
    await store.clock.advance(60_000)
    await store.receive(tags="b")


async def test_filtered_messages_are_done(store: Consuming) -> None:
    await store.send("a", "b")
    assert await store.receive(tags="other") == []
    assert not await store.ready(tags="other")
    assert (await store.describe()).queues[0].lag == 0
    await store.clock.advance(60_000)
    await store.send("c")
    assert await store.ready(tags="paid")
    assert names(await store.receive(tags="paid")) == ["c"]
    await store.kill()
    assert await store.receive(tags="paid") == []


async def test_retries_of_other_topics_are_counted_once_and_end(store: Consuming) -> None:
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name="idle", queue_count=1))
    assert await store.receive(topic="idle") == []

    async def lag() -> list[tuple[int, int, int]]:
        rows = (await store.describe()).queues
        return [(row.lag, row.in_flight, row.committed_offset) for row in rows if row.topic == retry_topic(GROUP)]

    await store.put(copy("a"), copy("b", of_topic="idle"), copy("c"))
    got = await store.receive()
    assert names(got) == ["a", "c"]
    # The idle one is not known to be done until it was; no offset counts twice.
    assert await lag() == [(3, 2, 0)]
    await store.ack(*got)
    assert await lag() == [(2, 0, 1)]
    idle = await store.receive(topic="idle")
    assert names(idle) == ["b"]
    await store.ack(*idle)
    await store.put(copy("d"))
    await store.ack(*await store.receive())
    assert await lag() == [(0, 0, 4)]
    await store.kill()
    assert await lag() == [(0, 0, 4)]


async def test_retries_are_reset_as_a_queue_of_their_own(store: Consuming) -> None:
    await store.send("a")
    await store.put(copy("r"), copy("s"))
    got = await store.receive()
    assert names(got) == ["r", "s", "a"]
    planned = await store.reset(latest=True, dry_run=True, topic=retry_topic(GROUP))
    assert (planned.from_offset, planned.to_offset, planned.leases_ended) == (0, 2, 2)
    assert await store.reset(latest=True, topic=retry_topic(GROUP)) == planned
    assert await store.ack(*got) == [UNKNOWN, UNKNOWN, OK]
    commit = gateway_pb2.CommitOffsetsRequest(group=GROUP, topic=retry_topic(GROUP))
    commit.queues.add(queue=0, offset=0)
    assert await refused(store.stub.CommitOffsets(commit)) == (grpc.StatusCode.FAILED_PRECONDITION, "GROUP_RECEIVES")
    await store.kill()
    assert await store.receive() == []


async def test_a_group_after_a_deleted_one_does_not_get_its_retries(store: Consuming) -> None:
    await store.send("a")
    await store.put(copy("r"))
    await store.ack(*await store.receive())
    await store.again()
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP, force=True))
    await store.kill()
    await store.put(copy("s"))
    assert names(await store.receive()) == ["s", "a"]


async def test_receivers_that_wait_are_answered_when_their_group_is_deleted(store: Consuming) -> None:
    calls = [asyncio.ensure_future(store.receive(wait_ms=20_000)) for _ in range(3)]
    calls.append(asyncio.ensure_future(store.ready(wait_ms=20_000)))
    await lined_up(store, 4)
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP, force=True))
    assert await asyncio.wait_for(asyncio.gather(*calls), 60) == [[], [], [], False]
    await store.send("a")
    assert names(await store.receive()) == ["a"]


async def test_offsets_of_a_deleted_group_do_not_come_back_with_a_checkpoint(store: Consuming) -> None:
    await store.send("a")
    await store.ack(*await store.receive())
    (keeper,) = [one for one in store.node.parts.checkpointer._keepers if isinstance(one, GroupKeeper)]
    write = keeper.capture()
    assert write is not None
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP, force=True))
    await write()
    await store.again()
    assert names(await store.receive()) == ["a"]
