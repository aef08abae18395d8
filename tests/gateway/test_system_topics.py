"""System topics: nobody reads a half message by its topic's name, and lanes are for operators to read."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, leases_pb2, subscriptions_pb2, transactions_pb2
from duetime_format.names import CLOSED_TOPICS, HALF_TOPIC, SCHEDULE_TOPIC, SYSTEM_TOPICS, TIMER_TOPIC
from duetime_gateway.rocketmq.wire import messaging_pb2

from tests.gateway.conftest import Gateway, error_of, message, real_store
from tests.gateway.people import People, shown

ROUTES = "/apache.rocketmq.v2.MessagingService"
HEADERS = (("x-mq-client-id", "somebody"),)


def reads(topic: str) -> dict[str, Any]:
    """Each call that reads a topic by its name."""
    queue = gateway_pb2.QueuePosition(queue=0, offset=0)
    subscribed = subscriptions_pb2.SubscribedQueue(queue=0, offset=0)
    return {
        "Pull": gateway_pb2.PullRequest(topic=topic),
        "PullQueues": gateway_pb2.PullQueuesRequest(topic=topic, queues=[queue]),
        "SearchOffset": gateway_pb2.SearchOffsetRequest(topic=topic, earliest=True),
        "QueryMessages": gateway_pb2.QueryMessagesRequest(topic=topic, key="a"),
        "GetMessage": gateway_pb2.GetMessageRequest(topic=topic, id="a"),
        "Subscribe": subscriptions_pb2.SubscribeRequest(topic=topic, queues=[subscribed], credit_bytes=1024),
    }


def group_reads(topic: str) -> dict[str, Any]:
    """Each call by which a group receives from a topic, or keeps a place in it."""
    queue = gateway_pb2.QueuePosition(queue=0, offset=0)
    receive = consumer_pb2.ReceiveRequest(group="billing", topic=topic)
    takes = [leases_pb2.Take(number=1, max_count=1, max_bytes=1024)]
    return {
        "Receive": receive,
        "ReceiveStream": leases_pb2.ReceiveStreamRequest(subscription=receive, takes=takes),
        "CommitOffsets": gateway_pb2.CommitOffsetsRequest(group="billing", topic=topic, queues=[queue]),
        "ResetGroup": consumer_pb2.ResetGroupRequest(name="billing", topic=topic, earliest=True),
    }


async def refusal(gateway: Gateway, method: str, request: Any) -> str:
    call = getattr(gateway.stub, method)
    if method in ("Subscribe", "ReceiveStream"):
        return (await error_of(call(iter([request])).read())).code().name
    return (await error_of(call(request, timeout=60))).code().name


async def test_topic_of_a_shards_own_records_cannot_be_read(gateway: Gateway) -> None:
    await gateway.stub.Prepare(transactions_pb2.PrepareRequest(group="billing", messages=[message()]), timeout=60)
    for topic in sorted(CLOSED_TOPICS):
        for method, request in reads(topic).items():
            assert await refusal(gateway, method, request) == "INVALID_ARGUMENT", (topic, method)


async def test_no_group_receives_from_a_system_topic(gateway: Gateway) -> None:
    await gateway.stub.Prepare(transactions_pb2.PrepareRequest(group="billing", messages=[message()]), timeout=60)
    for topic in [*sorted(SYSTEM_TOPICS), TIMER_TOPIC]:
        for method, request in group_reads(topic).items():
            assert await refusal(gateway, method, request) == "INVALID_ARGUMENT", (topic, method)


async def rocketmq(gateway: Gateway, method: str, request: Any) -> Any:
    """The status of a call that RocketMQ's clients make."""
    kind = "unary_stream" if method == "ReceiveMessage" else "unary_unary"
    answer = getattr(messaging_pb2, f"{method}Response")
    call = getattr(gateway.channel, kind)(
        f"{ROUTES}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )(request, metadata=HEADERS, timeout=60)
    return (await (call.read() if method == "ReceiveMessage" else call)).status.code


@pytest.mark.parametrize("topic", [HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC])
async def test_rocketmqs_clients_find_no_system_topic(gateway: Gateway, topic: str) -> None:
    name, group = messaging_pb2.Resource(name=topic), messaging_pb2.Resource(name="billing")
    addresses = [messaging_pb2.Address(host="127.0.0.1", port=80)]
    asked: list[Any] = [
        messaging_pb2.QueryRouteRequest(topic=name, endpoints=messaging_pb2.Endpoints(addresses=addresses)),
        messaging_pb2.QueryAssignmentRequest(
            topic=name, group=group, endpoints=messaging_pb2.Endpoints(addresses=addresses)
        ),
        messaging_pb2.ReceiveMessageRequest(
            group=group, message_queue=messaging_pb2.MessageQueue(topic=name), batch_size=1, auto_renew=True
        ),
    ]
    for request in asked:
        method = type(request).__name__.removesuffix("Request")
        assert await rocketmq(gateway, method, request) == messaging_pb2.ILLEGAL_TOPIC, method


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Gateway, dict[str, Any]]]:
    """A gateway with users, and the credentials of each."""
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required") as gateway,
    ):
        grants = {
            "reader": ("receive topic *", "receive group *"),
            "operator": ("inspect topic *", "receive topic *"),
            "shop": ("send topic *", "send group *"),
        }
        yield gateway, {name: shown(await people.add(name, *rights)) for name, rights in grants.items()}


async def test_body_of_an_open_transaction_takes_the_right_to_inspect(
    guarded: tuple[Gateway, dict[str, Any]],
) -> None:
    gateway, users = guarded
    half = transactions_pb2.PrepareRequest(
        group="billing", messages=[message(b"secret", id="half-1", properties={"colour": "red"})]
    )
    await gateway.stub.Prepare(half, metadata=users["shop"], timeout=60)
    for user, body, names in (("reader", b"", {}), ("operator", b"secret", {"colour": "red"})):
        asked = gateway_pb2.GetMessageRequest(topic="orders", id="half-1")
        found = await gateway.stub.GetMessage(asked, metadata=users[user], timeout=60)
        assert (found.state, found.message.body) == (gateway_pb2.MESSAGE_STATE_PREPARED, body)
        assert dict(found.message.properties) == names


async def test_pending_bodies_in_a_lane_take_the_right_to_inspect(guarded: tuple[Gateway, dict[str, Any]]) -> None:
    gateway, users = guarded
    sent = gateway_pb2.SendRequest(messages=[message(b"later", delay_level=18)])
    await gateway.stub.Send(sent, metadata=users["shop"], timeout=60)
    asked = gateway_pb2.PullRequest(topic=SCHEDULE_TOPIC, queue=17)
    refused = await error_of(gateway.stub.Pull(asked, metadata=users["reader"], timeout=60))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    (found,) = (await gateway.stub.Pull(asked, metadata=users["operator"], timeout=60)).messages
    assert found.body == b"later"
    wanted = subscriptions_pb2.SubscribeRequest(topic=SCHEDULE_TOPIC, credit_bytes=1 << 20)
    wanted.queues.add(queue=17, offset=0)
    refused = await error_of(gateway.stub.Subscribe(iter([wanted]), metadata=users["reader"]).read())
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
