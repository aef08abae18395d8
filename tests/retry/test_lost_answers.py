"""Nothing twice: where a retry service dies, or does not hear, between a store's step and its answer, by several."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, retry_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing.cluster import Cluster
from duetime_retry.copies import history_of
from duetime_retry.exhausted import TAKEN_MS

from tests.cluster.test_promises import ids
from tests.retry.cluster_group import Group, Leased, started
from tests.retry.relay import Relay, relay_to

OK, EXPIRED = consumer_pb2.RECEIPT_STATUS_OK, consumer_pb2.RECEIPT_STATUS_EXPIRED
DLQ = "%DLQ%billing"
# The lane of the policy "10s".
LANE = {"topic": "SCHEDULE_TOPIC_XXXX", "queue": 2}


class Deaf:
    """A second retry service that misses some of the store's answers."""

    def __init__(self, node: Any, relay: Relay, stub: Any) -> None:
        self.node = node
        self.relay = relay
        self._stub = stub

    async def nack(self, *leased: Leased, **options: Any) -> list[consumer_pb2.NackResult]:
        nacks = [consumer_pb2.Nack(receipt=one.receipt, **options) for one in leased]
        return list((await self._stub.Nack(consumer_pb2.NackRequest(group="billing", nacks=nacks), timeout=60)).results)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async for one in started(Cluster(tmp_path, gateway_settings={"queue_count_default": 1})):
        yield one


@pytest.fixture
async def deaf(group: Group) -> AsyncIterator[Deaf]:
    cluster = group.cluster
    async with relay_to(f"127.0.0.1:{cluster.stores[0].port}") as relay:
        node = await cluster._start_node(
            "retry", {"database_url": cluster.database_url, "stores": f"0={relay.address}"}
        )
        channel = make_channel(f"127.0.0.1:{node.port}")
        yield Deaf(node, relay, retry_pb2_grpc.RetryStub(channel))
        await channel.close()
        if node in cluster._started:
            await cluster.stop_node(node)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.to_thread(int)


@pytest.mark.parametrize("how", ["killed", "alive"])
@pytest.mark.parametrize("kind", ["copy", "dead letter", "in place"])
async def test_repeated_nack_after_a_lost_answer_changes_nothing(group: Group, deaf: Deaf, kind: str, how: str) -> None:
    await group.create("10s", ordered=kind == "in place")
    await group.send("A")
    leased = await group.receive()
    deaf.relay.loses = {"Settle", "Defer"}
    (result,) = await deaf.nack(*leased, reject=kind == "dead letter")
    assert (result.fault.reason, result.fault.retriable) == ("SHARD_UNAVAILABLE", True)
    assert deaf.relay.lost == {"Defer" if kind == "in place" else "Settle": 1}
    deaf.relay.loses = set()
    if how == "killed":
        await group.cluster.stop_node(deaf.node)
        (again,) = await group.nack(*leased, reject=kind == "dead letter")
    else:
        (again,) = await deaf.nack(*leased, reject=kind == "dead letter")
    assert (again.status, again.HasField("fault")) == (EXPIRED, False)
    assert len(group.stored(**LANE)) == (kind == "copy")
    assert len(group.stored(DLQ)) == (kind == "dead letter")
    await group.cluster.advance("10s")
    if kind != "dead letter":
        (leased_again,) = await group.receive()
        assert leased_again.attempt == 2
    assert await group.is_empty()


async def test_nacks_of_the_same_leases_by_two_services_at_once(group: Group, deaf: Deaf) -> None:
    await group.create("10s")
    sent = [f"id{number:03}" for number in range(300)]
    for first in range(0, 300, 100):
        await group.send(*sent[first : first + 100])
    leased = await group.receive(300, max_count=300)
    both = await asyncio.gather(group.nack(*leased), deaf.nack(*reversed(leased)))
    both[1].reverse()
    assert all({one.status, other.status} == {OK, EXPIRED} for one, other in zip(*both, strict=True))
    assert sorted(ids(group.stored(**LANE))) == sent


@pytest.mark.parametrize("loses", ["TakeExhausted", "Settle"])
async def test_taker_that_dies_doubles_no_dead_letter_and_loses_none(group: Group, deaf: Deaf, loses: str) -> None:
    """It dies before it has the taken messages, or after the dead letters are stored."""
    cluster, relay = group.cluster, deaf.relay
    await cluster.stop_node(cluster.retry)
    sent = [f"id{number}" for number in range(50)]
    await group.send(*sent)
    await group.receive(50, max_attempts=1, invisible_ms=1_000, max_count=50)
    relay.loses = {loses}
    await cluster.advance("1s")
    await until(lambda: relay.lost[loses])
    await cluster.stop_node(deaf.node)
    await cluster.start_retry()
    await cluster.advance(f"{TAKEN_MS}ms")
    dead = await group.until_stored(50, DLQ)
    await cluster.advance(f"{TAKEN_MS * 2}ms")
    assert Counter(ids(group.stored(DLQ))) == Counter(sent)
    assert {tuple(one.type for one in history_of(letter).attempts) for letter in dead} == {("LeaseExpired",)}
    assert await group.is_empty()
