"""Messages sent twice are stored once: through any gateway, marked or not, also when a topic has grown between."""

import random
from pathlib import Path

import pytest
from duetime.v1 import gateway_pb2, message_pb2, pending_pb2

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.test_adoption import fill
from tests.store.conftest import sent


def messages(count: int) -> list[message_pb2.Message]:
    """Some with a sharding key, some delayed by a level or by another time."""
    kinds = [{}, {"sharding_key": "k"}, {"delay_level": 3}, {"delay_ms": 7_777}]
    return [message(id=f"id{n}", **kinds[n % 4] | ({"sharding_key": f"k{n}"} if n % 3 else {})) for n in range(count)]


def places(results: list[message_pb2.SendResult]) -> list[tuple[str, int, int, int, int]]:
    return [(one.message_id, one.shard, one.queue, one.offset, one.deliver_at_ms) for one in results]


@pytest.mark.parametrize("old_first", [True, False])
async def test_gateways_with_different_routes_find_the_same_first(tmp_path: Path, old_first: bool) -> None:
    async with real_store(tmp_path, 0) as one, real_store(tmp_path, 1) as other:
        await fill(one, sent("a0"), sent("a1", queue=1))
        async with Gateway(tmp_path, {0: one.port}) as old:
            await old.send(message())
            await fill(other, *(sent(f"b{queue}", queue=queue) for queue in range(3)))
            async with Gateway(tmp_path, {0: one.port, 1: other.port}) as new:
                described = await new.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
                assert [queue.shard for queue in described.queues] == [0, 0, 1, 1, 1]
                first, second = (old, new) if old_first else (new, old)
                stored = await first.send(*messages(60))
                again = await second.send(*messages(60))
                assert [result.duplicate for result in stored + again] == [False] * 60 + [True] * 60
                assert places(again) == places(stored)


async def test_cancelled_id_is_refused_by_any_gateway_after_a_restart(tmp_path: Path) -> None:
    one = message(id="A", delay_ms=3_600_000)
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await gateway.send(one)
        ref = pending_pb2.PendingRef(message_id="A", topic="orders")
        await gateway.stub.Cancel(pending_pb2.CancelRequest(messages=[ref]))
    async with real_store(tmp_path) as store:
        for _ in range(2):
            async with Gateway(tmp_path, {0: store.port}) as gateway:
                (result,) = await gateway.send(one)
                assert (result.fault.reason, result.fault.metadata["end"]) == ("MESSAGE_CANCELLED", "CANCELLED")
                await gateway.stub.Send(gateway_pb2.SendRequest(messages=[message(id="B")]))


async def test_any_gateway_and_any_restart_between(tmp_path: Path) -> None:
    """Sends of 200 ids, each several times, by two gateways, while stores are stopped and opened again."""
    chance = random.Random(1)
    told: dict[str, tuple[int, int, int]] = {}
    stored = 0
    for _ in range(3):
        async with real_store(tmp_path, 0) as one, real_store(tmp_path, 1) as other:
            stores = {0: one.port, 1: other.port}
            async with Gateway(tmp_path, stores) as left, Gateway(tmp_path, stores) as right:
                for _ in range(30):
                    ids = chance.sample(range(200), 20)
                    sends = [messages(200)[number] for number in ids]
                    results = await chance.choice([left, right]).send(*sends)
                    for result in results:
                        place = result.shard, result.queue, result.offset
                        assert told.setdefault(result.message_id, place) == place
                        stored += not result.duplicate
    assert stored == len(told)
