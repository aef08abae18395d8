"""Converts records of the log into messages for clients. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from duetime_format import layout, priority, record
from duetime_format.properties import decode_properties, number_of
from duetime_format.record import Record, host_text
from duetime_format.view import View

from duetime_gateway.rocketmq.bodies import digest_of, given
from duetime_gateway.rocketmq.moments import put_ms
from duetime_gateway.rocketmq.names import LITE_PROPERTIES
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# Digits of a time in ten years and more.
_MS_DIGITS_MAX = 14
# Reserved properties that RocketMQ's clients look for among a message's own.
_SHOWN = (record.SHARDING_KEY, record.TRANSACTION_ID)


@dataclass(frozen=True, slots=True)
class DeliveryFields:
    """The fields specific to a delivery."""

    # Topic in the receiver's namespace.
    topic: pb.Resource
    # Queue of the topic, by its public number.
    queue: int
    handle: str
    # Delivery number, from 1.
    attempt: int
    invisible_ms: int


def received(data: bytes, delivery: DeliveryFields) -> pb.ReceiveMessageResponse:
    """A record delivered to a consumer."""
    view, response = View(data), pb.ReceiveMessageResponse()
    properties = view.all_properties
    _fill(response.message, properties, given(view.stored_body, view.sys_flag), delivery.topic)
    system = response.message.system_properties
    system.message_id = view.id
    system.queue_id = delivery.queue
    system.queue_offset = view.offset
    system.receipt_handle = delivery.handle
    system.delivery_attempt = delivery.attempt
    put_ms(system.invisible_duration, delivery.invisible_ms)
    put_ms(system.born_timestamp, view.born_at_ms)
    put_ms(system.store_timestamp, view.stored_at_ms)
    head = layout.head_of(data)
    assert head is not None, "a record is longer than its head"
    system.born_host = host_text(data[layout.BORN_HOST_AT : head.stored_at])
    system.store_host = host_text(data[head.store_host_at : head.tail_at])
    entry = view.lane_entry
    # The lane of a retry is not the message's own.
    if entry is not None and record.RETRY_TOPIC not in properties:
        # As requested: the entry of a time that was past on arrival has the time of the arrival.
        asked_ms = number_of(properties.get(record.TIMER_DELIVER_MS), _MS_DIGITS_MAX)
        put_ms(system.delivery_timestamp, entry[2] if asked_ms is None else asked_ms)
        if system.message_type == pb.NORMAL:
            system.message_type = pb.DELAY
    return response


def half(found: Record, topic: pb.Resource) -> pb.Message:
    """A half message, for a check by its producer."""
    properties, message = decode_properties(found.properties), pb.Message()
    _fill(message, properties, given(found.body, found.sys_flag), topic)
    system = message.system_properties
    system.message_id = properties.get(record.UNIQ_KEY, "")
    system.message_type = pb.TRANSACTION
    system.queue_offset = found.queue_offset
    system.delivery_attempt = 1
    put_ms(system.born_timestamp, found.born_at_ms)
    put_ms(system.store_timestamp, found.stored_at_ms)
    system.born_host = host_text(found.born_host)
    system.store_host = host_text(found.store_host)
    return message


def _fill(message: pb.Message, properties: Mapping[str, str], body: bytes, topic: pb.Resource) -> None:
    """Fills in the fields from a message's properties and body."""
    message.topic.CopyFrom(topic)
    message.body = body
    own, system = message.user_properties, message.system_properties
    reserved = record.RESERVED_PROPERTIES
    for name, value in properties.items():
        if (name not in reserved and name not in LITE_PROPERTIES) or name in _SHOWN:
            own[name] = value
    if lite_topic := properties.get(record.LITE_TOPIC):
        system.lite_topic = lite_topic
    if tag := properties.get(record.TAGS):
        system.tag = tag
    if keys := properties.get(record.KEYS):
        system.keys.extend(keys.split())
    if group := properties.get(record.SHARDING_KEY):
        system.message_group = group
    if dead_of := properties.get(record.DLQ_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = dead_of
        # Use the sender's id; RocketMQ puts its own id of the log position there.
        system.dead_letter_queue.message_id = properties.get(record.UNIQ_KEY, "")
    urgency = priority.of(properties)
    if urgency is not None:
        system.priority = urgency
    system.message_type = _type_of(properties, urgency)
    system.body_encoding = pb.IDENTITY
    system.body_digest.type = pb.MD5
    system.body_digest.checksum = digest_of(body)


def _type_of(properties: Mapping[str, str], urgency: int | None) -> "pb.MessageType":
    if record.TRANSACTION_ID in properties:
        return pb.TRANSACTION
    if record.LITE_TOPIC in properties:
        return pb.LITE
    if record.SHARDING_KEY in properties:
        return pb.FIFO
    return pb.NORMAL if urgency is None else pb.PRIORITY
