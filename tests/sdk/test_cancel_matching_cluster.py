"""Cancelling by filter, through the SDK and a cluster of two shards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from duetime import AsyncFinder, AsyncProducer, AsyncPuller, CancelResult, Message, Receipt, Unavailable
from duetime.client.sending.ending import CancelProgress
from duetime.v1 import gateway_pb2_grpc
from duetime.v1 import pending_pb2 as pb
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_gateway.pending import jobs, matching

COUNT = 1_000


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    # Two pages of each shard or more.
    monkeypatch.setattr(matching, "PENDING_COUNT_MAX", 200)
    async with Cluster(tmp_path, shards=2, gateway_settings={"queue_count_default": 4}) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(cluster.address) as producer:
        for topic in ("carts", "orders"):
            messages = [
                # Every third waits at a level, the others for any time.
                Message(
                    topic,
                    b"%d" % n,
                    delay="1h" if n % 3 == 0 else f"{3_600_001 + n}ms",
                    key="even" if n % 2 == 0 else "",
                    # Ids alone may send all of them to one shard.
                    queue=n // 2 % 4,
                )
                for n in range(COUNT)
            ]
            assert all(isinstance(one, Receipt) for one in await producer.send_many(messages))
        yield producer


async def last(told: AsyncIterator[CancelProgress]) -> CancelProgress:
    *_, found = [one async for one in told]
    assert found.done
    return found


async def pending(cluster: Cluster, topic: str) -> int:
    async with AsyncFinder(cluster.address) as finder:
        return (await finder.backlog(topic)).pending


async def test_only_matching_messages_are_cancelled(cluster: Cluster, producer: AsyncProducer) -> None:
    counted = await last(producer.cancel_matching("carts", key="even", dry_run=True))
    assert (counted.matched, counted.cancelled) == (COUNT // 2, 0)
    assert counted.seen >= counted.matched
    assert await pending(cluster, "carts") == COUNT
    done = await last(producer.cancel_matching("carts", key="even"))
    assert (done.matched, done.cancelled, done.already_fired) == (COUNT // 2, COUNT // 2, 0)
    assert await pending(cluster, "carts") == COUNT // 2
    assert await pending(cluster, "orders") == COUNT
    await cluster.advance("2h")
    async with AsyncPuller(cluster.address, "carts", start="earliest") as puller:
        bodies: list[int] = []
        while len(bodies) < COUNT // 2:
            bodies += [int(one.body) for one in await puller.poll(1_000)]
        assert sorted(bodies) == list(range(1, COUNT, 2))
        assert await puller.poll(1, wait="1ms") == []


async def test_two_at_once_cancel_each_message(cluster: Cluster, producer: AsyncProducer) -> None:
    ends = await asyncio.gather(*(last(producer.cancel_matching("carts")) for _ in range(2)))
    # A message that both meet counts as cancelled for both.
    assert all(one.matched == one.cancelled <= COUNT for one in ends)
    assert sum(one.cancelled for one in ends) >= COUNT
    assert await pending(cluster, "carts") == 0


async def test_an_abandoned_call_is_resumed(
    cluster: Cluster, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PROGRESS_MS", 0)
    async with aclosing(producer.cancel_matching("carts")) as told:
        first = await anext(told)
    assert 0 < first.cancelled < COUNT
    left = await pending(cluster, "carts")
    assert left <= COUNT - first.cancelled
    rest = await last(producer.cancel_matching("carts"))
    assert rest.cancelled <= left
    assert await pending(cluster, "carts") == 0


async def test_an_unavailable_shard_does_not_block_the_others(
    cluster: Cluster, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Progress comes when the other shard is done, followed by the error.
    monkeypatch.setattr(jobs, "PROGRESS_MS", 3_600_000)
    await cluster.stop_node(cluster.stores[1])
    told = producer.cancel_matching("carts")
    first = await anext(told)
    assert 0 < first.cancelled < COUNT
    assert not first.done
    with pytest.raises(Unavailable):
        await last(told)
    await cluster.start_store(1)
    assert await left_once_all_answer(cluster, "carts") == COUNT - first.cancelled
    rest = await last(producer.cancel_matching("carts"))
    assert (rest.cancelled, await pending(cluster, "carts")) == (COUNT - first.cancelled, 0)


async def left_once_all_answer(cluster: Cluster, topic: str) -> int:
    async with AsyncFinder(cluster.address) as finder, asyncio.timeout(60):
        while (found := await finder.backlog(topic)).unreachable_shards:
            continue
    return found.pending


async def test_ids_of_an_unreachable_shard_stay_unknown(cluster: Cluster, producer: AsyncProducer) -> None:
    sent = await producer.send_many([Message("bills", b"x", delay="1h", queue=n, id=f"bill-{n}") for n in range(4)])
    shards = [one.shard for one in sent if isinstance(one, Receipt)]
    assert set(shards) == {0, 1}
    ids = [f"bill-{n}" for n in range(4)]
    await cluster.stop_node(cluster.stores[1])
    async with make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        request = pb.CancelRequest(messages=[pb.PendingRef(message_id=one) for one in [*ids, "none"]])
        results = (await stub.Cancel(request, timeout=60)).results
    # Nor is it known that there is no such message.
    assert [one.status for one in results] == [0 if shard else pb.CANCEL_STATUS_CANCELLED for shard in [*shards, 1]]
    assert {one.fault.reason for one in results if not one.status} == {"SHARD_UNAVAILABLE"}
    await cluster.start_store(1)
    assert await producer.cancel([*ids, "none"]) == [CancelResult.CANCELLED] * 4 + [CancelResult.NOT_FOUND]
