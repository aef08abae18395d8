"""Messages of RocketMQ's clients with a priority, as beside its proxy of 5.5."""

from typing import Any

import pytest
from duetime.v1 import gateway_pb2
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway
from tests.gateway.conftest import message as native
from tests.rocketmq.raw import Raw, message, new_id, now_ms

ALERTS = pb.Resource(name="alerts")


@pytest.fixture
async def typed(raw: Raw) -> Raw:
    """Beside `orders`, topics for priorities, for delays and for order."""
    await raw.make_topic("alerts", queue_count=4, message_type=gateway_pb2.TOPIC_TYPE_PRIORITY)
    await raw.make_topic("later", message_type=gateway_pb2.TOPIC_TYPE_DELAY)
    await raw.make_topic("events", message_type=gateway_pb2.TOPIC_TYPE_FIFO)
    return raw


async def test_the_route_of_priorities_has_their_type(typed: Raw) -> None:
    route = await typed.call("QueryRoute", topic=ALERTS, endpoints=typed.endpoints)
    assert [(one.id, list(one.accept_message_types)) for one in route.message_queues] == [
        (queue, [pb.PRIORITY]) for queue in range(4)
    ]


async def test_higher_priorities_are_received_first(typed: Raw) -> None:
    for number, urgency in enumerate([0, 99, 2, 1], 1):
        await typed.send_ok(message(b"%d" % urgency, number, topic=ALERTS, priority=urgency))
    got = await typed.receive(topic=ALERTS)
    assert [(int(one.body), one.system_properties.priority) for one in got] == [(n, n) for n in (99, 2, 1, 0)]
    assert [one.system_properties.queue_id for one in got] == [3, 2, 1, 0]
    for one in got:
        assert one.system_properties.HasField("priority")
        assert (one.system_properties.message_type, dict(one.user_properties)) == (pb.PRIORITY, {})


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("orders", {"priority": 1}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("alerts", {}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("alerts", {"message_group": "g"}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("alerts", {"priority": 1, "message_group": "g"}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("alerts", {"delivery_ms": 1}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("alerts", {"priority": -1}, pb.INTERNAL_SERVER_ERROR),
        ("orders", {"priority": -1}, pb.INTERNAL_SERVER_ERROR),
        ("events", {"priority": 1, "message_group": "g"}, pb.OK),
        ("later", {"priority": 1, "delivery_ms": 1}, pb.OK),
        ("alerts", {"priority": 1, "delivery_ms": 1}, pb.OK),
    ],
)
async def test_types_and_priorities_go_together_as_at_a_proxy(
    typed: Raw, topic: str, fields: dict[str, Any], code: int
) -> None:
    answer = await typed.send(message(topic=pb.Resource(name=topic), **fields))
    assert answer.status.code == code, answer.status


async def test_a_delay_keeps_the_priority_and_other_topics_drop_it(typed: Raw, gateway: Gateway) -> None:
    due_ms = now_ms() + 3_600_000
    for number, topic in enumerate(("alerts", "later"), 1):
        sent = message(b"x", number, topic=pb.Resource(name=topic), priority=2, delivery_ms=due_ms)
        await typed.send_ok(sent)
    kept, dropped = [
        (await gateway.stub.GetMessage(gateway_pb2.GetMessageRequest(id=new_id(number)), timeout=60)).message
        for number in (1, 2)
    ]
    assert (kept.priority, kept.queue, kept.due_at_ms) == (2, 2, due_ms)
    assert not dropped.HasField("priority")


async def test_priorities_of_duetime_s_own_clients_are_those_of_rocketmq_s(typed: Raw, gateway: Gateway) -> None:
    await gateway.send(native(b"ours", topic="alerts", priority=3, id="ours"))
    await typed.send_ok(message(b"theirs", topic=ALERTS, priority=1))
    got = await typed.receive(topic=ALERTS)
    assert [(one.body, one.system_properties.priority) for one in got] == [(b"ours", 3), (b"theirs", 1)]
