"""Which drafts are accepted: every rule, and every breach of them at once. Pure.

The encoder has a cheap test for drafts that are plainly right and asks here only about the others, so these functions
may take their time: they define what is right, and word what a person reads.
"""

import json
import re
from collections.abc import Iterator

from duetime_core import retry_policy
from duetime_core.bounds import shown
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import limits, record
from duetime_format.levels import DelayLevels

from duetime_gateway.rules import topic_violations
from duetime_gateway.sending.drafts import Draft

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


def violations(draft: Draft, levels: DelayLevels, queue_count: int | None, body_bytes_min: int = 0) -> list[Violation]:
    """All that is wrong with a draft, in the order of its fields. `queue_count` None: the topic is not known."""
    found = [
        *topic_violations("topic", draft.topic),
        *_body(draft.body, body_bytes_min),
        *_properties(draft),
        *_tags(draft.tags),
        *_keys(draft),
        *_sharding_key(draft.sharding_key),
        *_queue(draft, queue_count),
        *_due(draft, levels),
        *_id(draft.id),
    ]
    if draft.born_at_ms < 0:
        found.append(Violation("born_at_ms", f"{draft.born_at_ms} is below 0; it counts Unix milliseconds"))
    if draft.retry is not None:
        found.extend(retry_policy.violations("retry", draft.retry))
    return found


def _body(body: bytes, least: int) -> Iterator[Violation]:
    if len(body) < least:
        yield Violation(
            "body", f"{len(body)} bytes are below the least, {least}: RocketMQ's brokers take no empty body"
        )
    if len(body) > limits.BODY_BYTES_MAX:
        yield Violation("body", f"{len(body)} bytes are above the most, {limits.BODY_BYTES_MAX}")


def _properties(draft: Draft) -> Iterator[Violation]:
    for name, value in draft.properties.items():
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
    size, added = properties_bytes(draft), limits.DEFERRAL_BYTES_MAX if is_delayed(draft) else limits.CHECKSUM_BYTES
    if size + added > limits.PROPERTIES_BYTES_MAX:
        kept = f"{size} bytes encoded and {added} that DueTime adds"
        yield Violation("properties", f"{kept} are above the most, {limits.PROPERTIES_BYTES_MAX}")


def properties_bytes(draft: Draft) -> int:
    """Encoded size of all properties that the draft will be stored with, before those that DueTime adds."""
    pairs = list(draft.properties.items())
    pairs += [(record.TAGS, draft.tags)] if draft.tags else []
    pairs += [(record.KEYS, " ".join(draft.keys))] if draft.keys else []
    pairs += [(record.SHARDING_KEY, draft.sharding_key)] if draft.sharding_key else []
    pairs += [(record.RETRY, retry_policy.render(draft.retry))] if draft.retry is not None else []
    pairs.append((record.UNIQ_KEY, draft.id or "0" * 32))
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs) - 1


def is_delayed(draft: Draft) -> bool:
    """Whether the draft asks for a delay of any kind, right or wrong."""
    return draft.delay_level > 0 or draft.delay_ms != 0 or draft.deliver_at_ms is not None


def _tags(tags: str) -> Iterator[Violation]:
    if "|" in tags:
        yield Violation("tags", f"{shown(tags)} holds |, which separates the tags of a filter")
    if tags != tags.strip():
        yield Violation("tags", f"{shown(tags)} begins or ends with a blank")
    if _CONTROL.search(tags):
        yield Violation("tags", f"{shown(tags)} holds a control character")


def _keys(draft: Draft) -> Iterator[Violation]:
    for index, key in enumerate(draft.keys):
        if not key:
            yield Violation(f"keys[{index}]", "the key is empty")
        elif not is_word(key):
            yield Violation(f"keys[{index}]", f"{shown(key)} holds a blank or a control character")


def _sharding_key(key: str) -> Iterator[Violation]:
    if "\x01" in key or "\x02" in key:
        yield Violation("sharding_key", f"{shown(key)} holds U+0001 or U+0002, which separate properties")


def _queue(draft: Draft, queue_count: int | None) -> Iterator[Violation]:
    if draft.queue is None:
        return
    if queue_count is not None and not 0 <= draft.queue < queue_count:
        yield Violation("queue", f"{draft.queue} is not within 0 and {queue_count - 1}, the topic's last")
    elif draft.queue < 0:
        yield Violation("queue", f"{draft.queue} is below 0")


def _due(draft: Draft, levels: DelayLevels) -> Iterator[Violation]:
    if draft.delay_level < 0:
        yield Violation("delay_level", f"{draft.delay_level} is below 0; levels are 1 to {levels.highest}, 0 is none")
    if draft.delay_ms and levels.level_of(draft.delay_ms) is None:
        yield Violation("delay_ms", f"{draft.delay_ms} ms is none of the delay levels: {levels}")
    if draft.deliver_at_ms is not None:
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
