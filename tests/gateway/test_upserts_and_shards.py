"""One pending message for each topic and key in the whole cluster: through any gateway, while shards come and go."""

import asyncio
from pathlib import Path

from duetime.v1 import message_pb2, pending_pb2
from duetime_gateway.shards.route import Route

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.test_adoption import fill
from tests.store.conftest import sent

KEYS = [f"k{number}" for number in range(24)]
DELAY_MS = 3_600_000


def upserts(name: str) -> list[message_pb2.Message]:
    return [message(id=f"{name}-{key}", keys=[key], delay_ms=DELAY_MS, replace=True) for key in KEYS]


async def pending(gateway: Gateway) -> list[str]:
    """The ids of all pending messages, by key."""
    request = pending_pb2.ListPendingRequest(filter=pending_pb2.PendingFilter(topic="orders"), max_count=1_000)
    found: list[pending_pb2.PendingMessage] = []
    while True:
        page = await gateway.stub.ListPending(request, timeout=60)
        found += page.messages
        request.page_token = page.next_page_token
        if not request.page_token:
            break
    return [one.message.id for one in sorted(found, key=lambda one: KEYS.index(one.message.keys[0]))]


def test_key_keeps_its_queue_when_the_route_grows() -> None:
    made = [(0, 0), (1, 1), (0, 2)]
    longer = [*made, (2, 0), (2, 1), (3, 0)]
    for places in (made, longer):
        route = Route("orders", *zip(*places, strict=True))
        assert {route.choose_for_key(key) for key in KEYS} == {0, 1, 2}
        assert [route.choose_for_key(key) for key in KEYS] == [
            Route("o", (0, 1, 0)).choose_for_key(key) for key in KEYS
        ]


async def test_a_shard_that_brings_queues_of_the_topic_moves_no_key(tmp_path: Path) -> None:
    async with real_store(tmp_path, 0) as first, real_store(tmp_path, 1) as second:
        await fill(second, *(sent(f"b{queue}", queue=queue) for queue in range(3)))
        async with Gateway(tmp_path, {0: first.port}) as old:
            assert not any(one.replaced_id for one in await old.send(*upserts("a")))
            # The one gateway knows of the new shard, the other does not yet.
            async with Gateway(tmp_path, {0: first.port, 1: second.port}) as new:
                await new.pull("orders", 5)
                assert [one.replaced_id for one in await new.send(*upserts("b"))] == [f"a-{key}" for key in KEYS]
                assert [one.replaced_id for one in await old.send(*upserts("c"))] == [f"b-{key}" for key in KEYS]
                assert await pending(new) == [f"c-{key}" for key in KEYS]


async def test_two_gateways_at_once_leave_one_message_of_each_key(tmp_path: Path) -> None:
    async with real_store(tmp_path, 0) as first, real_store(tmp_path, 1) as second:
        ports = {0: first.port, 1: second.port}
        # The 480 replacements wait for each other.
        gateways = [Gateway(tmp_path, ports, store_timeout_ms=60_000) for _ in range(2)]
        async with gateways[0] as one, gateways[1] as other:
            # The first sender creates the topic.
            rounds = [gateway.send(*upserts(f"{n}{at}")) for n in range(10) for at, gateway in enumerate((one, other))]
            answers = [result for answer in await asyncio.gather(*rounds) for result in answer]
            assert [result.fault for result in answers if result.HasField("fault")] == []
            assert {result.shard for result in answers} == {0, 1}
            left = {result.message_id for result in answers} - {result.replaced_id for result in answers}
            found = await pending(one)
            assert [name.partition("-")[2] for name in found] == KEYS
            assert sorted(found) == sorted(left)


async def test_key_of_a_shard_that_is_down_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    async with real_store(tmp_path, 0) as first:
        async with real_store(tmp_path, 1) as second:
            port = second.port
            async with Gateway(tmp_path, {0: first.port, 1: port}) as gateway:
                places = [result.shard for result in await gateway.send(*upserts("a"))]
        async with Gateway(tmp_path, {0: first.port, 1: port}) as gateway:
            answers = await gateway.send(*upserts("b"))
            faults = {shard: answer.fault.reason for shard, answer in zip(places, answers, strict=True)}
            assert faults == {0: "", 1: "SHARD_UNAVAILABLE"}
            async with real_store(tmp_path, 1, port=port):
                # Retry until the gateway reaches the shard again; the first answer to each key names the replaced
                # message.
                replaced: dict[str, str] = {}
                while len(replaced) < len(KEYS):
                    for key, one in zip(KEYS, await gateway.send(*upserts("c")), strict=True):
                        if not one.HasField("fault"):
                            replaced.setdefault(key, one.replaced_id)
                wanted = {key: f"{'a' if shard else 'b'}-{key}" for key, shard in zip(KEYS, places, strict=True)}
                assert replaced == wanted
                assert await pending(gateway) == [f"c-{key}" for key in KEYS]
