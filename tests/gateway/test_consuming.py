"""Consuming through the gateway from real stores: nothing twice, nothing lost, nobody waits for nothing."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2
from duetime.v1.consumer_pb2 import GROUP_START_LATEST, Group, LeasedMessage

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.test_adoption import two_with_one_topic
from tests.gateway.test_consumer_groups import create, delete, describe, names, reset
from tests.gateway.test_leases import ack, receive


async def take(gateway: Gateway, **fields: Any) -> list[LeasedMessage]:
    return list((await receive(gateway, **fields)).messages)


def bodies(leased: list[LeasedMessage]) -> list[bytes]:
    return sorted(one.message.body for one in leased)


async def test_receivers_share_messages_of_several_shards(two_shards: Gateway) -> None:
    sent = [b"%03d" % n for n in range(200)]
    await two_shards.send(*map(message, sent))
    got: Counter[bytes] = Counter()

    async def work() -> None:
        while leased := await take(two_shards, max_count=7):
            assert not (await ack(two_shards, *(one.receipt for one in leased))).statuses
            got.update(one.message.body for one in leased)

    await asyncio.gather(*(work() for _ in range(4)))
    assert got == Counter(sent)
    described = await describe(two_shards)
    assert [(one.queue, one.lag, one.in_flight) for one in described.queues if one.topic == "orders"] == [
        (queue, 0, 0) for queue in range(4)
    ]
    assert len({one.shard for one in described.queues}) == 2


async def test_waiting_receivers_get_arrivals(two_shards: Gateway) -> None:
    await two_shards.send(message(b"first"))
    assert bodies(await take(two_shards)) == [b"first"]
    calls = [asyncio.ensure_future(take(two_shards, max_count=1, wait_ms=20_000)) for _ in range(3)]
    await asyncio.wait(calls, timeout=0.1)
    await two_shards.send(*(message(b"%d" % n) for n in range(3)))
    assert bodies([one for leased in await asyncio.gather(*calls) for one in leased]) == [b"0", b"1", b"2"]


async def test_public_queue_numbers_are_those_of_the_topic(tmp_path: Path) -> None:
    async with two_with_one_topic(tmp_path) as gateway:
        leased = await take(gateway)
        found = sorted((one.message.id, one.message.queue) for one in leased)
        assert found == [("a0", 0), ("a1", 1), ("b0", 2), ("b1", 3), ("b2", 4)]
        assert not (await ack(gateway, *(one.receipt for one in leased))).statuses
        described = [one for one in (await describe(gateway)).queues if one.topic == "orders"]
        assert [(one.queue, one.shard) for one in described] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]
        moved = (await reset(gateway, earliest=True)).queues
        assert [(one.queue, one.shard, one.from_offset) for one in moved] == [
            (queue, shard, 1) for queue, shard in enumerate([0, 0, 1, 1, 1])
        ]


async def test_abandoned_receive_loses_no_message(two_shards: Gateway) -> None:
    await two_shards.send(message())
    await take(two_shards)
    calls = [asyncio.ensure_future(take(two_shards, wait_ms=20_000)) for _ in range(3)]
    await asyncio.wait(calls, timeout=0.1)
    for call in calls:
        call.cancel()
    await two_shards.send(message(b"later"))
    (leased,) = await take(two_shards, wait_ms=5_000)
    assert (leased.message.body, leased.attempt) == (b"later", 1)


async def test_group_starts_where_it_was_created_to(gateway: Gateway) -> None:
    await gateway.send(message(b"old", queue=0))
    await create(gateway, "late", start=GROUP_START_LATEST)
    await gateway.send(message(b"new", queue=0))
    assert bodies(await take(gateway, group="late")) == [b"new"]
    assert bodies(await take(gateway, group="early")) == [b"new", b"old"]


async def test_group_and_its_progress_survive_the_restart_of_everything(tmp_path: Path) -> None:
    for expected in ([b"a"], [b"b"]):
        async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
            if expected == [b"a"]:
                await create(gateway, ordered=True)
                await gateway.send(message(b"a", queue=0), message(b"b", queue=0))
            leased = await take(gateway, max_count=1)
            assert bodies(leased) == expected
            await ack(gateway, leased[0].receipt)


@pytest.mark.parametrize("earliest", [True, False])
async def test_reset_group_starts_at_its_offset(two_shards: Gateway, earliest: bool) -> None:
    await two_shards.send(*(message(b"%d" % n) for n in range(8)))
    leased = await take(two_shards, max_count=5)
    await ack(two_shards, *(one.receipt for one in leased))
    to = {"earliest": True} if earliest else {"latest": True}
    planned = await reset(two_shards, dry_run=True, **to)
    assert await reset(two_shards, **to) == planned
    assert [one.queue for one in planned.queues] == [0, 1, 2, 3]
    assert len(await take(two_shards)) == (8 if earliest else 0)


async def test_deleted_group_starts_over_and_is_not_adopted_again(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store:
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            await gateway.send(message(b"a"))
            leased = await take(gateway)
            await ack(gateway, leased[0].receipt)
            assert await names(gateway) == ["billing"]
            await delete(gateway, force=True)
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            assert await names(gateway) == []
            assert bodies(await take(gateway)) == [b"a"]


async def test_group_s_description_shows_its_offsets(gateway: Gateway) -> None:
    await gateway.send(*(message(b"%d" % n, queue=0) for n in range(5)))
    leased = await take(gateway, max_count=3, member="worker-1")
    await ack(gateway, leased[0].receipt)
    described = await describe(gateway)
    assert described.group == Group.FromString((await create(gateway)).SerializeToString())
    (queue,) = [one for one in described.queues if one.queue == 0 and one.topic == "orders"]
    assert (queue.committed_offset, queue.next_offset, queue.max_offset) == (1, 3, 5)
    assert (queue.lag, queue.in_flight, queue.waiting) == (4, 2, 0)
    assert queue.oldest_unacked_at_ms == leased[1].message.stored_at_ms
    assert [(one.name, one.topic) for one in described.members] == [("worker-1", "orders")]


async def test_records_are_returned_as_stored_in_the_log(two_shards: Gateway) -> None:
    await two_shards.send(*(message(b"%d" % n, id=f"id{n}") for n in range(8)))
    answer = await receive(two_shards, encoding=consumer_pb2.RECEIVE_ENCODING_RECORDS)
    assert sum(len(run.receipts) for run in answer.runs) == 8
    assert sorted({run.queue for run in answer.runs}) == [0, 1, 2, 3]
    assert not (await ack(two_shards, *(name for run in answer.runs for name in run.receipts))).statuses
