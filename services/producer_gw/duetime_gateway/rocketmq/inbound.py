"""Converts messages sent by clients into the gateway's own. Pure."""

from duetime.v1 import gateway_pb2
from duetime_format.limits import CHECK_IMMUNITY_S_MAX

from duetime_gateway.rocketmq.bodies import checked
from duetime_gateway.rocketmq.codes import RocketMQError
from duetime_gateway.rocketmq.moments import duration_ms, timestamp_ms, within_int64
from duetime_gateway.rocketmq.names import LITE_PROPERTIES, check_lite_topic
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# RocketMQ's own limits, lower than DueTime's.
MESSAGE_GROUP_BYTES_MAX = 63
USER_PROPERTIES_MAX = 128
# RocketMQ's limit of orphaned_transaction_recovery_duration.
RECOVERY_S_MAX = 3_600
assert RECOVERY_S_MAX <= CHECK_IMMUNITY_S_MAX


def type_of(message: pb.Message) -> "pb.MessageType":
    """The type of a message, by its fields. A priority gives way to the other types.

    Raises:
        RocketMQError: the fields of two types are set, or the priority is negative.
    """
    system = message.system_properties
    if system.priority < 0:
        # The code of RocketMQ's proxy.
        raise RocketMQError(pb.INTERNAL_SERVER_ERROR, f"priority: {system.priority} is below 0")
    asked = [
        (pb.FIFO, "message_group", system.HasField("message_group")),
        (pb.DELAY, "delivery_timestamp", system.HasField("delivery_timestamp")),
        (pb.TRANSACTION, "type TRANSACTION", system.message_type == pb.TRANSACTION),
        (pb.LITE, "lite_topic", system.HasField("lite_topic")),
    ]
    found = [(kind, name) for kind, name, is_asked in asked if is_asked]
    if len(found) > 1:
        text = f"{found[1][1]}: cannot be combined with {found[0][1]}"
        raise RocketMQError(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    return found[0][0] if found else pb.PRIORITY if system.HasField("priority") else pb.NORMAL


def add(request: gateway_pb2.SendRequest, topic: str, message: pb.Message, *, keeps_priority: bool) -> None:
    """Adds a message to send; the sender checks the other rules. `keeps_priority`: its topic has priorities.

    Raises:
        RocketMQError: a rule specific to RocketMQ is broken; nothing is added.
    """
    system = message.system_properties
    _check(message, system)
    found = request.messages.add(
        topic=topic,
        body=checked(message.body, system),
        properties=message.user_properties,
        tags=system.tag,
        keys=system.keys,
        sharding_key=system.message_group,
        id=system.message_id,
        born_at_ms=max(within_int64(timestamp_ms(system.born_timestamp)), 0),
    )
    if keeps_priority and system.HasField("priority"):
        found.priority = system.priority
    if system.HasField("lite_topic"):
        found.lite_topic = system.lite_topic
    if system.HasField("delivery_timestamp"):
        found.deliver_at_ms = within_int64(timestamp_ms(system.delivery_timestamp))


def _check(message: pb.Message, system: pb.SystemProperties) -> None:
    if not message.HasField("topic"):
        raise RocketMQError(pb.ILLEGAL_TOPIC, "topic: is missing")
    if not system.message_id:
        raise RocketMQError(pb.ILLEGAL_MESSAGE_ID, "message_id: is empty: the client sets it, the same in each retry")
    if system.HasField("tag") and not system.tag:
        raise RocketMQError(pb.ILLEGAL_MESSAGE_TAG, "tag: is empty; leave it out")
    if system.HasField("message_group"):
        size = len(system.message_group.encode())
        if not 1 <= size <= MESSAGE_GROUP_BYTES_MAX or not system.message_group.isprintable():
            text = f"message_group: {size} bytes; it has 1 to {MESSAGE_GROUP_BYTES_MAX}, without control characters"
            raise RocketMQError(pb.ILLEGAL_MESSAGE_GROUP, text)
    count = len(message.user_properties)
    if count > USER_PROPERTIES_MAX:
        text = f"user_properties: {count} properties; the limit is {USER_PROPERTIES_MAX}"
        raise RocketMQError(pb.MESSAGE_PROPERTIES_TOO_LARGE, text)
    if system.HasField("lite_topic"):
        check_lite_topic(system.lite_topic)
    if own := LITE_PROPERTIES & message.user_properties.keys():
        text = f"user_properties: {min(own)} is a name of RocketMQ's; use lite_topic"
        raise RocketMQError(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def recovery_s(system: pb.SystemProperties) -> int:
    """Seconds without checks of the transaction; 0: the shard's timeout.

    Raises:
        RocketMQError: out of range.
    """
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    asked_ms = duration_ms(system.orphaned_transaction_recovery_duration)
    if not 0 <= asked_ms <= 1_000 * RECOVERY_S_MAX:
        text = f"orphaned_transaction_recovery_duration: {asked_ms} ms are not within 0 and {RECOVERY_S_MAX} s"
        raise RocketMQError(pb.BAD_REQUEST, text)
    return -(-asked_ms // 1_000)
