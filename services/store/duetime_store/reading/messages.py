"""Records as StoredMessage, for readers that do not decode records themselves."""

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

from duetime.v1 import gateway_pb2, message_pb2
from duetime_format import expiry, priority, record
from duetime_format.compiled import twin
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties
from duetime_format.schedules import has_pause, schedule_of

HIDDEN = record.RESERVED_PROPERTIES

_compiled = twin("duetime_store.reading._messages")
_host_text = lru_cache(1_024)(record.host_text)


def add_messages(response: gateway_pb2.PullResponse, records: bytes, sizes: list[int]) -> None:
    """Adds the messages of the records, back to back."""
    if _compiled is None:
        response.messages.extend(stored_messages(records, sizes))
        return
    parts: list[bytes] = []
    index = 0
    while index < len(sizes):
        wire, count = _compiled.write(records, sizes, index)
        parts.append(wire)
        index += count
        if index < len(sizes):
            at = sum(sizes[:index])
            unusual = stored_messages(records[at : at + sizes[index]], sizes[index : index + 1])
            parts.append(gateway_pb2.PullResponse(messages=unusual).SerializeToString())
            index += 1
    response.MergeFromString(b"".join(parts))


def stored_messages(records: bytes, sizes: list[int]) -> list[message_pb2.StoredMessage]:
    """As `add_messages`, in Python."""
    messages = []
    at = 0
    for size in sizes:
        with suppress(DamagedBytes):
            messages.append(stored_message(record.decode(records, at, check_crc=False)))
        at += size
    return messages


def stored_message(found: record.Record) -> message_pb2.StoredMessage:
    properties = decode_properties(found.properties)
    entry = record.find_lane_entry(found.properties)
    return message_pb2.StoredMessage(
        topic=found.topic,
        queue=found.queue,
        offset=found.queue_offset,
        body=found.body,
        properties={name: value for name, value in properties.items() if name not in HIDDEN},
        tags=properties.get(record.TAGS, ""),
        keys=properties.get(record.KEYS, "").split(),
        id=properties.get(record.UNIQ_KEY, ""),
        flag=found.flag,
        born_at_ms=found.born_at_ms,
        stored_at_ms=found.stored_at_ms,
        due_at_ms=entry[2] if entry else 0,
        delay_level=entry[0] if entry else 0,
        attempt=found.reconsume_times,
        born_host=_host_text(found.born_host),
        sys_flag=found.sys_flag,
        priority=priority.of(properties),
        expires_at_ms=expiry.of(properties, entry[2] if entry else found.stored_at_ms),
    )


def planned_ms(properties: bytes) -> int:
    """The time for which a schedule planned an occurrence, Unix ms; 0: it is none, or an additional one, or paused."""
    schedule = schedule_of(properties)
    return 0 if schedule is None or schedule.extra else schedule.planned


def set_due(message: message_pb2.StoredMessage, properties: Mapping[str, str], due_at_ms: int) -> None:
    """Completes the message of a lane's entry, which knows its due time."""
    message.due_at_ms, message.paused = due_at_ms, has_pause(properties.get(record.SCHEDULE, ""))
    message.expires_at_ms = 0 if message.paused else expiry.of(properties, due_at_ms)
