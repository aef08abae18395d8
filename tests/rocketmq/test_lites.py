"""Lite topics by RocketMQ's protocol: sends, subscriptions, receives, quotas, and the end of a topic."""

import asyncio
from pathlib import Path
from typing import Any

from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.testing import Cluster
from duetime_format.limits import LITE_CHARS_MAX, LITE_SUBSCRIPTIONS_MAX
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway, real_store
from tests.rocketmq.raw import BILLING, Raw, message, new_id, now_ms

ROOMS = pb.Resource(name="rooms")
LITE = gateway_pb2.TOPIC_TYPE_LITE


async def made(raw: Raw) -> Raw:
    """The client, and a topic of lite topics."""
    await raw.make_topic("rooms", message_type=LITE, queue_count=4)
    return raw


def another(raw: Raw, client_id: str) -> Raw:
    return Raw(raw.channel, raw.endpoints.addresses[0].port, client_id)


async def sync(raw: Raw, *names: str, action: int = pb.PARTIAL_ADD, **fields: Any) -> Any:
    values = {"topic": ROOMS, "group": BILLING, "lite_topic_set": names, "action": action, **fields}
    return await raw.call("SyncLiteSubscription", **values)


async def sync_ok(raw: Raw, *names: str, action: int = pb.PARTIAL_ADD) -> None:
    answer = await sync(raw, *names, action=action)
    assert answer.status.code == pb.OK, answer.status


def lite(name: str, number: int, **system: Any) -> Any:
    return message(f"{name}{number}".encode(), number, ROOMS, lite_topic=name, **system)


def bodies(messages: list[Any]) -> list[bytes]:
    return [one.body for one in messages]


async def test_members_receive_their_own_lite_topics(raw: Raw) -> None:
    await made(raw)
    other = another(raw, "other")
    await sync_ok(raw, "a", "b")
    await sync_ok(other, "c")
    await raw.send_ok(lite("a", 1), lite("b", 2), lite("c", 3), lite("a", 4))
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < 3:
            found += await raw.receive(topic=ROOMS)
    assert sorted(bodies(found)) == [b"a1", b"a4", b"b2"]
    assert bodies(await other.receive(topic=ROOMS)) == [b"c3"]
    first = next(one for one in found if one.body == b"a1").system_properties
    assert (first.lite_topic, first.message_type, first.delivery_attempt) == ("a", pb.LITE, 1)
    assert not found[0].user_properties
    answer = await raw.ack(*found)
    assert answer.status.code == pb.OK
    assert await raw.receive(topic=ROOMS, wait_ms=0) == []


async def test_a_waiting_receive_follows_the_subscriptions(raw: Raw) -> None:
    await made(raw)
    waiting = asyncio.create_task(raw.receive(topic=ROOMS, wait_ms=30_000))
    await raw.send_ok(lite("a", 1))
    await sync_ok(raw, "b")
    await sync_ok(raw, "a")
    assert bodies(await waiting) == [b"a1"]
    waiting = asyncio.create_task(raw.receive(topic=ROOMS, wait_ms=30_000))
    await sync_ok(raw, "c", action=pb.COMPLETE_ADD)
    await raw.send_ok(lite("b", 2), lite("c", 3))
    assert bodies(await waiting) == [b"c3"]
    await sync_ok(raw, "c", action=pb.PARTIAL_REMOVE)
    await raw.send_ok(lite("c", 4))
    assert await raw.receive(topic=ROOMS, wait_ms=0) == []
    await sync_ok(raw, "c")
    await sync_ok(raw, action=pb.COMPLETE_REMOVE)
    assert await raw.receive(topic=ROOMS, wait_ms=0) == []


async def test_members_of_a_group_share_a_lite_topic_in_order(raw: Raw) -> None:
    await made(raw)
    other = another(raw, "other")
    for client in (raw, other):
        await sync_ok(client, "a")
    await raw.send_ok(lite("a", 1), lite("a", 2))
    (first,) = await raw.receive(topic=ROOMS, batch_size=1)
    waiting = asyncio.create_task(other.receive(topic=ROOMS, wait_ms=30_000))
    assert await raw.receive(topic=ROOMS, wait_ms=0) == []
    await raw.ack(first)
    assert bodies(await waiting) == [b"a2"]


async def test_lite_topics_of_two_shards_are_received_together(cluster: Cluster, whole: Raw) -> None:
    await made(whole)
    names = [f"room-{number}" for number in range(12)]
    await sync_ok(whole, *names)
    await whole.send_ok(*(lite(name, number) for number, name in enumerate(names)))
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while len(found) < len(names):
            got = await whole.receive(topic=ROOMS, batch_size=32)
            found += bodies(got)
            await whole.ack(*got)
    assert sorted(found) == sorted(f"{name}{number}".encode() for number, name in enumerate(names))
    counts = [len(store.parts.lites.lites) for store in cluster.stores]
    assert sum(counts) == len(names)
    assert all(counts)


async def test_a_topic_of_lite_topics_takes_nothing_else(raw: Raw) -> None:
    await made(raw)
    route = await raw.call("QueryRoute", topic=ROOMS, endpoints=raw.endpoints)
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(pb.LITE,)}
    conflict = pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    for wrong in (
        message(topic=ROOMS),
        message(lite_topic="a"),
        lite("a", 1, delivery_ms=now_ms() + 60_000),
        lite("a", 1, message_group="g"),
    ):
        assert (await raw.send(wrong)).status.code == conflict
    for name in ("x" * (LITE_CHARS_MAX + 1), "", "a b", "$"):
        assert (await raw.send(lite(name, 1))).status.code == pb.ILLEGAL_LITE_TOPIC, name
    named = lite("a", 1)
    named.user_properties["__LITE_TOPIC"] = "b"
    assert (await raw.send(named)).status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_bad_subscriptions_have_their_codes(raw: Raw) -> None:
    await made(raw)
    orders = pb.Resource(name="orders")
    assert (await sync(raw, "a", topic=orders)).status.code == pb.ILLEGAL_TOPIC
    assert (await sync(raw, "a", topic=pb.Resource(name="nothing"))).status.code == pb.TOPIC_NOT_FOUND
    assert (await sync(raw, "a", group=pb.Resource(name="a b"))).status.code == pb.ILLEGAL_CONSUMER_GROUP
    assert (await sync(raw, "x" * 65)).status.code == pb.ILLEGAL_LITE_TOPIC
    latest = pb.OffsetOption(policy=pb.OffsetOption.MAX)
    assert (await sync(raw, "a", offset_option=latest)).status.code == pb.UNSUPPORTED
    assert (await sync(raw, "a", offset_option=pb.OffsetOption(policy=pb.OffsetOption.LAST))).status.code == pb.OK
    too_many = [f"n{number}" for number in range(LITE_SUBSCRIPTIONS_MAX)]
    assert (await sync(raw, *too_many)).status.code == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    await sync_ok(raw, *too_many, action=pb.COMPLETE_ADD)
    frames = await raw.frames(topic=ROOMS, filter_expression=pb.FilterExpression(type=pb.TAG, expression="x"))
    assert frames[0].status.code == pb.ILLEGAL_FILTER_EXPRESSION


async def test_stores_and_gateways_have_a_maximum_of_lite_topics(tmp_path: Path) -> None:
    limit = {"rocketmq_lite_subscriptions_max": 8}
    async with (
        real_store(tmp_path, lite_topics_max=4) as store,
        Gateway(tmp_path, {0: store.port}, **limit) as gateway,
    ):
        raw = await made(Raw(gateway.channel, gateway.node.port))
        answer = await raw.send(lite("a", 1), lite("b", 2), lite("c", 3), lite("a", 4))
        found = [entry.status.code for entry in answer.entries]
        assert found == [pb.OK, pb.OK, pb.LITE_TOPIC_QUOTA_EXCEEDED, pb.OK]
        await sync_ok(raw, *"abcd")
        assert (await sync(raw, "e")).status.code == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        # A client's end returns its seats.
        await raw.call("NotifyClientTermination", group=BILLING)
        await sync_ok(another(raw, "other"), *"abcd")


async def test_lite_clients_get_settings_and_learn_of_the_end_of_their_topic(raw: Raw) -> None:
    await made(raw)
    stream = raw.telemetry()
    answer = await stream.say(raw.consumer_settings(kind=pb.LITE_PUSH_CONSUMER))
    subscription = answer.settings.subscription
    assert answer.status.code == pb.OK
    assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (2_000, 64)
    assert subscription.fifo
    await sync_ok(raw, "a")
    stub = gateway_pb2_grpc.GatewayStub(raw.channel)
    await stub.DeleteTopic(gateway_pb2.DeleteTopicRequest(name="rooms", force=True), timeout=60)
    async with asyncio.timeout(60):
        while (await raw.frames(topic=ROOMS, wait_ms=0))[0].status.code != pb.TOPIC_NOT_FOUND:
            pass
    while (command := await stream.read()).WhichOneof("command") != "notify_unsubscribe_lite_command":
        pass
    assert command.notify_unsubscribe_lite_command.lite_topic == "a"


async def test_a_repeated_send_is_one_message(raw: Raw) -> None:
    await made(raw)
    await sync_ok(raw, "a")
    for _ in range(2):
        (entry,) = await raw.send_ok(lite("a", 1))
        assert entry.message_id == new_id(1)
    assert len(await raw.receive(topic=ROOMS)) == 1
