"""Bad input: a row of the table in docs/rocketmq.md each, with its code and a sentence about the fault."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from duetime.v1 import gateway_pb2
from duetime_format.limits import LITE_SUBSCRIPTIONS_MAX
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.rocketmq.raw import BILLING, ORDERS, Raw, message, now_ms
from tests.tidy.sources import PROJECT

MIB = 1024 * 1024
Row = Callable[[Raw], Awaitable[Any]]
# A call, its code, and a part of the sentence, by fault.
ROWS: list[tuple[str, Row, int, str]] = []


def row(what: str, code: int, part: str) -> Callable[[Row], Row]:
    def note(call: Row) -> Row:
        ROWS.append((what, call, code, part))
        return call

    return note


def sends(what: str, code: int, part: str, **fields: Any) -> None:
    async def send(raw: Raw) -> Any:
        return await raw.send(message(**fields))

    ROWS.append((what, send, code, part))


def receives(what: str, code: int, part: str, **fields: Any) -> None:
    async def receive(raw: Raw) -> Any:
        (frame,) = await raw.frames(**fields)
        return frame

    ROWS.append((what, receive, code, part))


def with_properties(what: str, code: int, part: str, properties: dict[str, str]) -> None:
    async def send(raw: Raw) -> Any:
        made = message()
        made.user_properties.update(properties)
        return await raw.send(made)

    ROWS.append((what, send, code, part))


def named(text: str) -> Any:
    return pb.Resource(name=text)


sends("topic, missing", pb.ILLEGAL_TOPIC, "has 0 characters", topic=None)
sends("topic, other characters", pb.ILLEGAL_TOPIC, "a b", topic=named("a b"))
sends("topic, too long", pb.ILLEGAL_TOPIC, "127", topic=named("x" * 128))
sends("topic, the system's", pb.ILLEGAL_TOPIC, "system topic", topic=named("DT_GROUPS"))
sends("topic, unknown", pb.TOPIC_NOT_FOUND, "nowhere", topic=named("nowhere"))
sends("tag, `|` or empty", pb.ILLEGAL_MESSAGE_TAG, "tag", tag="a|b")
sends("tag, `|` or empty", pb.ILLEGAL_MESSAGE_TAG, "tag: is empty", tag="")
sends("key, blank", pb.ILLEGAL_MESSAGE_KEY, "keys[0]", keys=["a b"])
sends("message group, empty or long", pb.ILLEGAL_MESSAGE_GROUP, "message_group", message_group="")
sends("message group, empty or long", pb.ILLEGAL_MESSAGE_GROUP, "64 bytes", message_group="x" * 64)
sends("key, blank", pb.ILLEGAL_MESSAGE_KEY, "keys[1]", keys=["a", ""])
sends("key, blank", pb.ILLEGAL_MESSAGE_KEY, "keys[0]", keys=["a\x02"])
with_properties("property, name or value", pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "TAGS", {"TAGS": "x"})
with_properties("property, name or value", pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "the value is empty", {"a": ""})
many = {f"p{number}": "x" for number in range(129)}
with_properties("properties, too many or large", pb.MESSAGE_PROPERTIES_TOO_LARGE, "128", many)
large = {"a": "x" * 33_000}
with_properties("properties, too many or large", pb.MESSAGE_PROPERTIES_TOO_LARGE, "32767", large)
sends("message id", pb.ILLEGAL_MESSAGE_ID, "message_id", number=0, message_id="")
sends("message id", pb.ILLEGAL_MESSAGE_ID, "255", message_id="x" * 256)
sends("message id", pb.ILLEGAL_MESSAGE_ID, "message_id", message_id="a b")
sends("body, empty", pb.MESSAGE_BODY_EMPTY, "4194304", body=b"")
sends("body, 4 MiB and more", pb.MESSAGE_BODY_TOO_LARGE, "4194304", body=b"x" * (4 * MIB + 1))
sends("body, not as its digest or encoding", pb.MESSAGE_CORRUPTED, "GZIP", body_encoding=pb.GZIP)
two = {"message_group": "g", "delivery_ms": 1}
sends("two types at once", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "cannot be combined", **two)
half_and_group = {"message_group": "g", "message_type": pb.TRANSACTION}
sends("two types at once", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "cannot be combined", **half_and_group)
# Milliseconds in the field of seconds, as users of one client have them.
sends("delivery time, out of range", pb.ILLEGAL_DELIVERY_TIME, "ten years", delivery_ms=now_ms() * 1_000)
sends("delivery time, out of range", pb.ILLEGAL_DELIVERY_TIME, "below 0", delivery_ms=-1_000)
sends("another type than the topic's", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "PRIORITY", priority=1)
sends("priority", pb.INTERNAL_SERVER_ERROR, "-1 is below 0", priority=-1)
receives("topic, missing", pb.ILLEGAL_TOPIC, "topic", topic=named(""))
receives("topic, unknown", pb.TOPIC_NOT_FOUND, "nowhere", topic=named("nowhere"))
receives("group, name", pb.ILLEGAL_CONSUMER_GROUP, "group", group=named(""))
receives("group, name", pb.ILLEGAL_CONSUMER_GROUP, "120", group=named("x" * 121))
receives("batch size", pb.BAD_REQUEST, "batch_size: 0", batch_size=0)
receives("invisible time", pb.ILLEGAL_INVISIBLE_TIME, "9 ms", invisible_ms=9)
receives("invisible time", pb.ILLEGAL_INVISIBLE_TIME, "43200001", invisible_ms=12 * 3_600_000 + 1)
receives("invisible time", pb.ILLEGAL_INVISIBLE_TIME, "is missing", invisible_ms=None)
receives("polling time", pb.ILLEGAL_POLLING_TIME, "-1 ms", wait_ms=-1)
sql = pb.FilterExpression(type=pb.SQL, expression="a = = 1")
receives("filter", pb.ILLEGAL_FILTER_EXPRESSION, "column 5", filter_expression=sql)


@row("body, not as its digest or encoding", pb.MESSAGE_CORRUPTED, "md5")
async def _(raw: Raw) -> Any:
    made = message()
    made.system_properties.body_digest.type = pb.MD5
    made.system_properties.body_digest.checksum = "0" * 32
    return await raw.send(made)


@row("recovery duration", pb.BAD_REQUEST, "orphaned_transaction_recovery_duration")
async def _(raw: Raw) -> Any:
    made = message(message_type=pb.TRANSACTION)
    made.system_properties.orphaned_transaction_recovery_duration.seconds = 3_601
    return await raw.send(made)


@row("messages: none, of several topics, a transaction among others", pb.BAD_REQUEST, "is empty")
async def _(raw: Raw) -> Any:
    return await raw.send()


@row("messages: none, of several topics, a transaction among others", pb.BAD_REQUEST, "2 topics")
async def _(raw: Raw) -> Any:
    return await raw.send(message(), message(topic=named("other")))


@row("messages: none, of several topics, a transaction among others", pb.BAD_REQUEST, "one message")
async def _(raw: Raw) -> Any:
    return await raw.send(message(message_type=pb.TRANSACTION), message(number=2))


@row("another type than the topic's", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "takes DELAY")
async def _(raw: Raw) -> Any:
    await raw.make_topic("later", message_type=pb.DELAY)
    return await raw.send(message(topic=named("later")))


@row("no client id", pb.CLIENT_ID_REQUIRED, "x-mq-client-id")
async def _(raw: Raw) -> Any:
    return await Raw(raw.channel, 1, client_id="").call("Heartbeat")


@row("client id, too long", pb.BAD_REQUEST, "255")
async def _(raw: Raw) -> Any:
    return await Raw(raw.channel, 1, client_id="x" * 256).call("Heartbeat")


@row("endpoints", pb.ILLEGAL_ACCESS_POINT, "no address")
async def _(raw: Raw) -> Any:
    return await raw.call("QueryRoute", topic=ORDERS)


@row("endpoints", pb.ILLEGAL_ACCESS_POINT, "65535")
async def _(raw: Raw) -> Any:
    typed = pb.Endpoints(addresses=[pb.Address(host="h", port=70_000)])
    return await raw.call("QueryRoute", topic=ORDERS, endpoints=typed)


@row("topic, unknown", pb.TOPIC_NOT_FOUND, "nowhere")
async def _(raw: Raw) -> Any:
    return await raw.call("QueryRoute", topic=named("nowhere"), endpoints=raw.endpoints)


@row("invisible time", pb.ILLEGAL_INVISIBLE_TIME, "43200001")
async def _(raw: Raw) -> Any:
    await raw.send_ok(message())
    (got,) = await raw.receive()
    return await raw.change(got.system_properties.receipt_handle, 12 * 3_600_000 + 1)


@row("receipt handle", pb.INVALID_RECEIPT_HANDLE, "was not returned by")
async def _(raw: Raw) -> Any:
    return await raw.change("nonsense", 1_000)


@row("receipt handle", pb.INVALID_RECEIPT_HANDLE, "no lease of this group")
async def _(raw: Raw) -> Any:
    await raw.send_ok(message())
    (got,) = await raw.receive()
    return await raw.change(got.system_properties.receipt_handle, 1_000, group=named("another"))


@row("receipt handle", pb.INVALID_RECEIPT_HANDLE, "has ended")
async def _(raw: Raw) -> Any:
    await raw.send_ok(message())
    (got,) = await raw.receive(auto_renew=True)
    await raw.call("NotifyClientTermination")
    return await raw.ack(got)


@row("filter", pb.ILLEGAL_FILTER_EXPRESSION, "differs")
async def _(raw: Raw) -> Any:
    tags = pb.FilterExpression(type=pb.TAG, expression="a")
    await Raw(raw.channel, 1, "other").receive(filter_expression=tags, wait_ms=0)
    (frame,) = await raw.frames(filter_expression=pb.FilterExpression(type=pb.TAG, expression="b"), wait_ms=0)
    return frame


@row("delivery time, out of range", pb.ILLEGAL_DELIVERY_TIME, "delivery_timestamp")
async def _(raw: Raw) -> Any:
    await raw.make_topic("soon", max_delay_ms=1_000)
    return await raw.send(message(topic=named("soon"), delivery_ms=now_ms() + 60_000))


@row("entries: none", pb.BAD_REQUEST, "entries")
async def _(raw: Raw) -> Any:
    return await raw.call("AckMessage", group=BILLING, topic=ORDERS)


@row("transaction id", pb.INVALID_TRANSACTION_ID, "transaction_id")
async def _(raw: Raw) -> Any:
    return await raw.call("EndTransaction", topic=ORDERS, transaction_id="nonsense", resolution=pb.COMMIT)


@row("transaction id", pb.INVALID_TRANSACTION_ID, "was not returned by SendMessage for topic orders")
async def _(raw: Raw) -> Any:
    (entry,) = await raw.send_ok(message())
    return await raw.call("EndTransaction", topic=ORDERS, transaction_id=entry.message_id, resolution=pb.COMMIT)


@row("transaction id", pb.INVALID_TRANSACTION_ID, "transaction_id: ''")
async def _(raw: Raw) -> Any:
    return await raw.call("EndTransaction", topic=ORDERS, resolution=pb.COMMIT)


@row("transaction that ended with the other outcome", pb.BAD_REQUEST, "ROLLED_BACK")
async def _(raw: Raw) -> Any:
    (entry,) = await raw.send_ok(message(message_type=pb.TRANSACTION))
    end = {"topic": ORDERS, "transaction_id": entry.transaction_id}
    await raw.call("EndTransaction", **end, resolution=pb.ROLLBACK)
    return await raw.call("EndTransaction", **end, resolution=pb.COMMIT)


@row("recall handle", pb.BAD_REQUEST, "recall_handle")
async def _(raw: Raw) -> Any:
    return await raw.call("RecallMessage", topic=ORDERS, recall_handle="nonsense")


@row("recall handle", pb.BAD_REQUEST, "topic other")
async def _(raw: Raw) -> Any:
    await raw.make_topic("other")
    (entry,) = await raw.send_ok(message(delivery_ms=now_ms() + 60_000))
    return await raw.call("RecallMessage", topic=named("other"), recall_handle=entry.recall_handle)


@row("settings: client type", pb.UNRECOGNIZED_CLIENT_TYPE, "client_type")
async def _(raw: Raw) -> Any:
    return await raw.telemetry().say(raw.consumer_settings(kind=pb.PULL_CONSUMER))


def lites(what: str, code: int, part: str, topic: str = "rooms", **fields: Any) -> None:
    async def sync(raw: Raw) -> Any:
        await raw.make_topic("rooms", message_type=gateway_pb2.TOPIC_TYPE_LITE)
        return await raw.call("SyncLiteSubscription", topic=named(topic), group=named("billing"), **fields)

    ROWS.append((what, sync, code, part))


@row("lite topic, name", pb.ILLEGAL_LITE_TOPIC, "lite_topic")
async def _(raw: Raw) -> Any:
    await raw.make_topic("rooms", message_type=gateway_pb2.TOPIC_TYPE_LITE)
    return await raw.send(message(topic=named("rooms"), lite_topic="a b"))


TOO_MANY = [f"room-{number}" for number in range(LITE_SUBSCRIPTIONS_MAX + 1)]
lites("lite topic, name", pb.ILLEGAL_LITE_TOPIC, "lite_topic", lite_topic_set=["x" * 65])
lites("lite subscription, of another topic", pb.ILLEGAL_TOPIC, "orders", topic="orders", lite_topic_set=["a"])
lites("lite subscriptions, too many", pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, "2001", lite_topic_set=TOO_MANY)
lites("lite subscription, offset option", pb.UNSUPPORTED, "offset_option", offset_option=pb.OffsetOption(tail_n=1))


@row("settings: neither publishing nor subscription", pb.BAD_REQUEST, "pub_sub")
async def _(raw: Raw) -> Any:
    return await raw.telemetry().say(pb.Settings(client_type=pb.PRODUCER))


@row("group, name", pb.ILLEGAL_CONSUMER_GROUP, "group")
async def _(raw: Raw) -> Any:
    return await raw.telemetry().say(raw.consumer_settings(group=""))


IDS = [f"{what}-{number}" for number, (what, *_) in enumerate(ROWS)]


@pytest.mark.parametrize(("what", "call", "code", "part"), ROWS, ids=IDS)
async def test_input_is_rejected_with_code_and_text(raw: Raw, what: str, call: Row, code: int, part: str) -> None:
    answer = await call(raw)
    assert pb.Code.Name(answer.status.code) == pb.Code.Name(code), answer.status
    assert part in answer.status.message


@pytest.mark.parametrize("what", sorted({row[0] for row in ROWS}))
def test_the_table_of_the_documents_has_it(what: str) -> None:
    codes = {pb.Code.Name(code) for name, _, code, _ in ROWS if name == what}
    start = f"| {what} |".replace("`|`", "`\\|`")
    lines = [line for line in (PROJECT / "docs/rocketmq.md").read_text().splitlines() if line.startswith(start)]
    assert len(lines) == 1, what
    assert set(re.findall(r"[A-Z]+(?:_[A-Z]+)+|FORBIDDEN|UNSUPPORTED", lines[0])) >= codes


def test_each_row_of_the_table_has_its_test() -> None:
    text = (PROJECT / "docs/rocketmq.md").read_text()
    section = text.partition("## Bad input")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = {line.replace("\\|", "`|`"[1]).split(" | ")[0].removeprefix("| ") for line in lines} - {"input"}
    assert len(rows) > 30
    assert rows == {what for what, *_ in ROWS}
