"""KEDA's count of a group's work, on two shards."""

from pathlib import Path
from typing import cast

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import Unavailable
from duetime_core.rpc.serving import make_channel
from duetime_core.testing.cluster import Cluster

from tests.gateway.conftest import Gateway, TappedStore, WallClock, error_of
from tests.gateway.keda import Keda
from tests.retry.cluster_group import Group, Leased, started

IDS = [f"id{number:02}" for number in range(20)]


@pytest.fixture
def group(tapped: Gateway) -> Group:
    """Of stores and a gateway alone: nothing falls due, and nothing is retried."""
    return Group(cast(Cluster, None), tapped.stub)


@pytest.fixture
def keda(group: Group, tapped: Gateway) -> Keda:
    return Keda(tapped.channel, group=group.name, target="10")


async def ack(group: Group, *leased: Leased) -> None:
    request = consumer_pb2.AckRequest(group=group.name, receipts=[one.receipt for one in leased])
    await group.stub.Ack(request, timeout=60)


async def test_group_is_active_until_its_last_message_is_acknowledged(tmp_path: Path) -> None:
    async for group in started(Cluster(tmp_path, shards=2)):
        async with make_channel(group.cluster.address) as channel:
            keda = Keda(channel, group=group.name, target="10")
            await group.create()
            assert (await keda.count(), await keda.active()) == (0, False)
            await group.send(*IDS)
            leased = await group.receive(20)
            assert (await keda.count(), await keda.active()) == (20, True)
            await group.nack(leased[0], delay_ms=600_000)
            await ack(group, *leased[1:])
            assert (await keda.count(), await keda.active()) == (1, True)
            await group.cluster.advance("10m")
            assert (await keda.count(), await keda.active()) == (1, True)
            (again,) = await group.receive(wait_ms=20_000)
            assert (await keda.count(), await keda.active()) == (1, True)
            await ack(group, again)
            assert (await keda.count(), await keda.active()) == (0, False)


async def test_messages_of_a_paused_group_count_after_the_pause(group: Group, keda: Keda) -> None:
    await group.create()
    await group.send(*IDS[:10])
    for topic in ("", "orders"):
        assert await keda.count(topics="orders") == 10
        pause = consumer_pb2.PauseGroupRequest(name=group.name, topic=topic)
        await group.stub.PauseGroup(pause, timeout=60)
        assert (await keda.count(topics="orders"), await keda.active(topics="orders")) == (0, False)
        resume = consumer_pb2.ResumeGroupRequest(name=group.name)
        await group.stub.ResumeGroup(resume, timeout=60)
    leased = await group.receive(1, max_count=1)
    for topic in ("", "orders"):
        pause = consumer_pb2.PauseGroupRequest(name=group.name, topic=topic)
        await group.stub.PauseGroup(pause, timeout=60)
        assert await keda.count(topics="orders") == len(leased)
        await group.stub.ResumeGroup(consumer_pb2.ResumeGroupRequest(name=group.name), timeout=60)
    assert await keda.count() == 10


async def test_messages_of_a_paused_topic_count_after_the_pause(group: Group, keda: Keda) -> None:
    await group.create()
    await group.send(*IDS[:10])
    pause, resume = gateway_pb2.PauseTopicRequest(name="orders"), gateway_pb2.ResumeTopicRequest(name="orders")
    await group.stub.PauseTopic(pause, timeout=60)
    assert await keda.count(topics="orders") == 0
    await group.stub.ResumeTopic(resume, timeout=60)
    leased = await group.receive(1, max_count=1)
    await group.stub.PauseTopic(pause, timeout=60)
    assert await keda.count(topics="orders") == len(leased)
    await group.stub.ResumeTopic(resume, timeout=60)
    assert await keda.count() == 10


async def test_unread_messages_count_on_shards_from_which_the_group_has_not_received(group: Group, keda: Keda) -> None:
    await group.create()
    await group.send(*IDS)
    assert await group.receive(1, max_count=1)
    assert (await keda.count(), await keda.active()) == (20, True)


async def test_topics_count_before_the_group_first_receives(group: Group, keda: Keda, clock: WallClock) -> None:
    await group.send(*IDS[:5])
    clock.move(1_000)
    await group.create(start=consumer_pb2.GROUP_START_LATEST)
    clock.move(1_000)
    assert await keda.count(topics="orders") == 0
    await group.send(*IDS[5:])
    assert (await keda.count(), await keda.active()) == (0, False)
    assert (await keda.count(topics="orders"), await keda.active(topics="orders")) == (15, True)
    await ack(group, *await group.receive(15))
    assert (await keda.count(topics="orders"), await keda.active(topics="orders")) == (0, False)


async def test_topics_count_from_the_offsets_that_a_group_commits(group: Group, keda: Keda) -> None:
    await group.create()
    await group.send(*IDS)
    described = await group.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="orders"), timeout=60)
    queue = max(described.queues, key=lambda one: one.max_offset)
    request = gateway_pb2.CommitOffsetsRequest(group=group.name, topic="orders")
    request.queues.add(queue=queue.queue, offset=queue.max_offset)
    await group.stub.CommitOffsets(request, timeout=60)
    assert 0 < await keda.count(topics="orders") == 20 - queue.max_offset


async def test_trigger_with_both_reports_the_greater_count(group: Group, keda: Keda) -> None:
    await group.create()
    await group.send(*IDS[:3], delay_ms=60_000)
    await group.send(*IDS[3:5])
    assert await group.receive(2)
    assert [await keda.count(within=within) for within in ("5s", "2m")] == [2, 3]
    assert (await keda.metric()).metricName == "duetime-group"
    assert (await keda.metric(within="5s")).metricName == "duetime-due"


async def test_unknown_group_or_topic_is_not_found(group: Group, keda: Keda) -> None:
    assert (await error_of(keda.active())).code() is grpc.StatusCode.NOT_FOUND
    await group.create()
    assert (await error_of(keda.active(topics="missing"))).code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("is_counting", [False, True])
async def test_group_without_all_shards_is_active_or_unknown(
    group: Group, keda: Keda, taps: list[TappedStore], is_counting: bool
) -> None:
    await group.create()
    await group.send(*IDS)
    assert await group.receive(20)
    if is_counting:
        # As a store answers that counts its pending messages after a start.
        taps[1].after["DescribeGroup"] = lambda _, answer: answer.counting_shards.append(1)
    else:
        taps[1].refuse(Unavailable("the shard restarts"), "DescribeGroup")
    assert await keda.active(topics="orders")
    for asked in (keda.count(topics="orders"), keda.active(activation="20")):
        assert (await error_of(asked)).code() is grpc.StatusCode.UNAVAILABLE
