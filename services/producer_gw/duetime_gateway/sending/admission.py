"""What a message must be to be taken: every rule, and every breach of them at once. Pure.

The encoder has a cheap test for messages that are plainly right and asks here only about the others, so these
functions may take their time: they define what is right, and write what a person reads.
"""

import json
import re
from collections.abc import Iterator, Sequence

from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2
from duetime_core import retry_policy
from duetime_core.bounds import shown
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import limits, record
from duetime_format.levels import DelayLevels
from duetime_format.names import is_name, is_system_topic

_UNFIT_IN_WORD = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# Which field to use instead of a property that RocketMQ gives a meaning to.
FIELD_INSTEAD = {
    record.TAGS: "tags",
    record.KEYS: "keys",
    record.UNIQ_KEY: "id",
    record.DELAY: "delay_level",
    record.REAL_TOPIC: "topic",
    record.REAL_QID: "queue",
    record.SHARDING_KEY: "sharding_key",
    record.RETRY: "retry",
    "TIMER_DELAY_MS": "delay_ms",
    "TIMER_DELAY_SEC": "delay_ms",
    "TIMER_DELIVER_MS": "deliver_at_ms",
}


def is_word(text: str) -> bool:
    """Whether the text is not empty and holds neither blanks nor control characters."""
    return bool(text) and _UNFIT_IN_WORD.search(text) is None


def is_tag(text: str) -> bool:
    """Whether the text may stand in `tags`; the empty one may."""
    return not list(_tags(text))


def violations(
    message: message_pb2.Message, levels: DelayLevels, queue_count: int | None, body_bytes_min: int = 0
) -> list[Violation]:
    """All that is wrong with a message, in the order of its fields. `queue_count` None: the topic is not known."""
    found = [
        *topic_violations("topic", message.topic),
        *_body(message.body, body_bytes_min),
        *_properties(message),
        *_tags(message.tags),
        *_keys(message),
        *_sharding_key(message.sharding_key),
        *_queue(message, queue_count),
        *_due(message, levels),
        *_id(message.id),
    ]
    if message.born_at_ms < 0:
        found.append(Violation("born_at_ms", f"{message.born_at_ms} is below 0; it counts Unix milliseconds"))
    if message.HasField("retry"):
        found.extend(retry_policy.violations("retry", message.retry))
    return found


def topic_violations(field: str, topic: str, *, system: bool = False) -> Iterator[Violation]:
    """What is wrong with a topic's name. `system`: system topics are fine."""
    if not 1 <= len(topic) <= limits.TOPIC_CHARS_MAX:
        yield Violation(field, f"{shown(topic)} has {len(topic)} characters; a topic has 1 to {limits.TOPIC_CHARS_MAX}")
    if topic and not is_name(topic):
        yield Violation(field, f"{shown(topic)} holds characters other than [%|a-zA-Z0-9_-]")
    if not system and is_system_topic(topic):
        yield Violation(field, f"{shown(topic)} is a system topic; only DueTime itself writes to it")


def _body(body: bytes, least: int) -> Iterator[Violation]:
    if len(body) < least:
        yield Violation(
            "body", f"{len(body)} bytes are below the least, {least}: RocketMQ's brokers take no empty body"
        )
    if len(body) > limits.BODY_BYTES_MAX:
        yield Violation("body", f"{len(body)} bytes are above the most, {limits.BODY_BYTES_MAX}")


def _properties(message: message_pb2.Message) -> Iterator[Violation]:
    for name, value in message.properties.items():
        field = f"properties[{json.dumps(name, ensure_ascii=False)}]"
        if not name:
            yield Violation(field, "the name is empty")
        if not value:
            yield Violation(field, "the value is empty")
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            yield Violation(field, "U+0001 and U+0002 separate properties and may stand in neither name nor value")
        if name in record.RESERVED_PROPERTIES:
            instead = FIELD_INSTEAD.get(name)
            hint = f"use the field {instead}" if instead else "no field sets it"
            yield Violation(field, f"{name} is a system property; {hint}")
    size, added = properties_bytes(message), limits.DEFERRAL_BYTES_MAX if is_delayed(message) else limits.CHECKSUM_BYTES
    if size + added > limits.PROPERTIES_BYTES_MAX:
        kept = f"{size} bytes encoded and {added} that DueTime adds"
        yield Violation("properties", f"{kept} are above the most, {limits.PROPERTIES_BYTES_MAX}")


def properties_bytes(message: message_pb2.Message) -> int:
    """Encoded size of all properties that the message will be stored with, before those that DueTime adds."""
    pairs = list(message.properties.items())
    pairs += [(record.TAGS, message.tags)] if message.tags else []
    pairs += [(record.KEYS, " ".join(message.keys))] if message.keys else []
    pairs += [(record.SHARDING_KEY, message.sharding_key)] if message.sharding_key else []
    pairs += [(record.RETRY, retry_policy.render(message.retry))] if message.HasField("retry") else []
    pairs.append((record.UNIQ_KEY, message.id or "0" * 32))
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs) - 1


def is_delayed(message: message_pb2.Message) -> bool:
    """Whether the message asks for a delay of any kind, right or wrong."""
    return message.delay_level > 0 or message.delay_ms != 0 or message.HasField("deliver_at_ms")


def _tags(tags: str) -> Iterator[Violation]:
    if "|" in tags:
        yield Violation("tags", f"{shown(tags)} holds |, which separates the tags of a filter")
    if tags != tags.strip():
        yield Violation("tags", f"{shown(tags)} begins or ends with a blank")
    if _CONTROL.search(tags):
        yield Violation("tags", f"{shown(tags)} holds a control character")


def _keys(message: message_pb2.Message) -> Iterator[Violation]:
    for index, key in enumerate(message.keys):
        if not key:
            yield Violation(f"keys[{index}]", "the key is empty")
        elif not is_word(key):
            yield Violation(f"keys[{index}]", f"{shown(key)} holds a blank or a control character")


def _sharding_key(key: str) -> Iterator[Violation]:
    if "\x01" in key or "\x02" in key:
        yield Violation("sharding_key", f"{shown(key)} holds U+0001 or U+0002, which separate properties")


def _queue(message: message_pb2.Message, queue_count: int | None) -> Iterator[Violation]:
    if not message.HasField("queue"):
        return
    if queue_count is not None and not 0 <= message.queue < queue_count:
        yield Violation("queue", f"{message.queue} is not within 0 and {queue_count - 1}, the topic's last")
    elif message.queue < 0:
        yield Violation("queue", f"{message.queue} is below 0")


def _due(message: message_pb2.Message, levels: DelayLevels) -> Iterator[Violation]:
    if message.delay_level < 0:
        yield Violation("delay_level", f"{message.delay_level} is below 0; levels are 1 to {levels.highest}, 0 is none")
    if message.delay_ms and levels.level_of(message.delay_ms) is None:
        yield Violation("delay_ms", f"{message.delay_ms} ms is none of the delay levels: {levels}")
    if message.HasField("deliver_at_ms"):
        yield Violation("deliver_at_ms", f"arbitrary due times are not supported yet; the delay levels are {levels}")


def _id(message_id: str) -> Iterator[Violation]:
    if len(message_id) > limits.ID_CHARS_MAX:
        yield Violation(
            "id", f"{shown(message_id)} has {len(message_id)} characters; the most is {limits.ID_CHARS_MAX}"
        )
    if message_id and not is_word(message_id):
        yield Violation("id", f"{shown(message_id)} holds a blank or a control character")


def check_send(count: int, size: int) -> None:
    """Judges a Send as a whole.

    Raises:
        InvalidArgument: no message, too many, or too many bytes.
    """
    if size > limits.REQUEST_BYTES_MAX:
        text = f"{size} bytes are above the most of one request, {limits.REQUEST_BYTES_MAX}"
        raise InvalidArgument([Violation("messages", text)])
    if not 1 <= count <= limits.SEND_COUNT_MAX:
        text = f"{count} messages; a request has 1 to {limits.SEND_COUNT_MAX}"
        raise InvalidArgument([Violation("messages", text)])


def check_pull(request: gateway_pb2.PullRequest) -> None:
    """Judges all fields of a Pull that can be judged without knowing the topic.

    Raises:
        InvalidArgument: with all that is wrong.
    """
    found = list(topic_violations("topic", request.topic, system=True))
    found += outside(*_place("", request), *_pull_bounds(request))
    found += filter_violations(request)
    if found:
        raise InvalidArgument(found)


def check_pull_queues(request: gateway_pb2.PullQueuesRequest) -> None:
    """As `check_pull`."""
    found = list(topic_violations("topic", request.topic, system=True))
    found += positions_violations(request.queues)
    found += outside(*_pull_bounds(request))
    found += filter_violations(request)
    if found:
        raise InvalidArgument(found)


def filter_violations(
    request: gateway_pb2.PullRequest | gateway_pb2.PullQueuesRequest | consumer_pb2.ReceiveRequest,
) -> Iterator[Violation]:
    """What is wrong with `tags` and `sql` at first sight: the store knows what they mean."""
    for field, text in (("tags", request.tags), ("sql", request.sql)):
        if len(text) > limits.FILTER_CHARS_MAX:
            yield Violation(field, f"has {len(text)} characters, more than {limits.FILTER_CHARS_MAX}")


def check_query(request: gateway_pb2.QueryMessagesRequest) -> None:
    """As `check_pull`."""
    found = list(topic_violations("topic", request.topic, system=True))
    found += _name_violations("key", request.key)
    latest_ms = (1 << 63) - 1
    found += outside(("from_ms", request.from_ms, latest_ms), ("to_ms", request.to_ms, latest_ms))
    found += outside(("max_count", request.max_count, limits.QUERY_COUNT_MAX))
    if found:
        raise InvalidArgument(found)


def check_get(request: gateway_pb2.GetMessageRequest | consumer_pb2.TraceMessageRequest) -> None:
    """As `check_pull`."""
    found = _name_violations("id", request.id)
    found += topic_violations("topic", request.topic, system=True) if request.topic else ()
    if found:
        raise InvalidArgument(found)


def check_search(request: gateway_pb2.SearchOffsetRequest) -> None:
    """As `check_pull`."""
    found = list(topic_violations("topic", request.topic, system=True))
    found += outside(("queue", request.queue, limits.QUEUE_COUNT_MAX - 1))
    if request.WhichOneof("at") is None:
        found.append(Violation("at_ms", "is not set, nor are earliest and latest"))
    if found:
        raise InvalidArgument(found)


def _name_violations(field: str, name: str) -> list[Violation]:
    """A key or an id: anything that properties can hold."""
    if not name:
        return [Violation(field, "is empty")]
    if len(name) > limits.PROPERTIES_BYTES_MAX:
        return [
            Violation(field, f"is {len(name)} characters long; properties hold {limits.PROPERTIES_BYTES_MAX} bytes")
        ]
    return []


def positions_violations(positions: Sequence[gateway_pb2.QueuePosition]) -> list[Violation]:
    """What is wrong with the queues that a request lists in `queues`."""
    if not 1 <= len(positions) <= limits.QUEUE_COUNT_MAX:
        return [Violation("queues", f"{len(positions)} queues; a request has 1 to {limits.QUEUE_COUNT_MAX}")]
    found = []
    seen: set[int] = set()
    for index, position in enumerate(positions):
        prefix = f"queues[{index}]."
        found += outside(*_place(prefix, position))
        if position.queue in seen:
            found.append(Violation(f"{prefix}queue", f"{position.queue} is named before"))
        seen.add(position.queue)
    return found


def _place(prefix: str, place: gateway_pb2.PullRequest | gateway_pb2.QueuePosition) -> Iterator[tuple[str, int, int]]:
    yield f"{prefix}queue", place.queue, limits.QUEUE_COUNT_MAX - 1
    yield f"{prefix}offset", place.offset, (1 << 63) - 1


def _pull_bounds(request: gateway_pb2.PullRequest | gateway_pb2.PullQueuesRequest) -> Iterator[tuple[str, int, int]]:
    yield "max_count", request.max_count, limits.PULL_COUNT_MAX
    yield "max_bytes", request.max_bytes, limits.PULL_BYTES_MAX
    yield "wait_ms", request.wait_ms, limits.WAIT_MS_MAX
    yield "encoding", request.encoding, max(gateway_pb2.PullEncoding.values())


def outside(*bounds: tuple[str, int, int]) -> list[Violation]:
    """The fields whose value is not within 0 and the highest one."""
    return [
        Violation(field, f"{value} is not within 0 and {highest}")
        for field, value, highest in bounds
        if not 0 <= value <= highest
    ]


def check_new_topic(name: str, queue_count: int) -> None:
    """Judges a CreateTopic.

    Raises:
        InvalidArgument: with all that is wrong.
    """
    found = list(topic_violations("name", name))
    if not 0 <= queue_count <= limits.QUEUE_COUNT_MAX:
        found.append(Violation("queue_count", f"{queue_count} is not within 0 and {limits.QUEUE_COUNT_MAX}"))
    if found:
        raise InvalidArgument(found)
