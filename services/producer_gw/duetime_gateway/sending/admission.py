"""Which drafts are accepted: every rule, and every breach of them at once. Pure.

The encoder has a cheap test for drafts that are plainly right and asks here only about the others, so these functions
may take their time: they define what is right, and word what a person reads.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from duetime_core import retry_policy
from duetime_core.bounds import shown
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import limits, record
from duetime_format.levels import DELAY_MS_MAX, DelayLevels

from duetime_gateway.rules import topic_violations
from duetime_gateway.sending.drafts import Draft

_UNFIT_IN_WORD = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# How far a due time may lie beyond ten years by this gateway's clock: the shard's decides.
CLOCKS_APART_MS = 60_000

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


class Terms(NamedTuple):
    """What a draft is judged by beside the levels. `queue_count` None: the topic is not known; `max_delay_ms` 0: it has
    no limit of its own. `is_half`: it is a half message of a transaction."""

    queue_count: int | None
    now_ms: int
    max_delay_ms: int = 0
    body_bytes_min: int = 0
    is_half: bool = False


def is_word(text: str) -> bool:
    """Whether the text is not empty and holds neither blanks nor control characters."""
    return bool(text) and _UNFIT_IN_WORD.search(text) is None


def is_tag(text: str) -> bool:
    """Whether the text may stand in `tags`; the empty one may."""
    return not list(_tags(text))


def violations(draft: Draft, levels: DelayLevels, terms: Terms) -> list[Violation]:
    """All that is wrong with a draft, in the order of its fields."""
    found = [
        *topic_violations("topic", draft.topic),
        *_body(draft.body, terms.body_bytes_min),
        *_properties(draft, levels, terms),
        *_tags(draft.tags),
        *_keys(draft),
        *_sharding_key(draft.sharding_key),
        *_queue(draft, terms.queue_count),
        *_due(draft, levels, terms),
        *_id(draft.id),
    ]
    if draft.born_at_ms < 0:
        found.append(Violation("born_at_ms", f"{draft.born_at_ms} is below 0; it counts Unix milliseconds"))
    if draft.retry is not None:
        found.extend(retry_policy.violations("retry", draft.retry))
    if terms.is_half and draft.replace:
        found.append(Violation("replace", "is set: a transaction's message can't take the place of another"))
    else:
        found.extend(_replace(draft))
    return found


def _body(body: bytes, least: int) -> Iterator[Violation]:
    if len(body) < least:
        yield Violation(
            "body", f"{len(body)} bytes are below the least, {least}: RocketMQ's brokers take no empty body"
        )
    if len(body) > limits.BODY_BYTES_MAX:
        yield Violation("body", f"{len(body)} bytes are above the most, {limits.BODY_BYTES_MAX}")


def _properties(draft: Draft, levels: DelayLevels, terms: Terms) -> Iterator[Violation]:
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
    size, added = properties_bytes(draft), _half_bytes(draft) if terms.is_half else _added_bytes(draft, levels)
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


def _half_bytes(draft: Draft) -> int:
    # The id stands there once more, and the limit counts its characters.
    return limits.HALF_BYTES_MAX + len(draft.id.encode()) - len(draft.id)


def _added_bytes(draft: Draft, levels: DelayLevels) -> int:
    if not is_delayed(draft):
        return limits.CHECKSUM_BYTES
    if draft.replace or draft.deliver_at_ms is not None or (draft.delay_ms and levels.level_of(draft.delay_ms) is None):
        return limits.TIMER_BYTES_MAX
    return limits.DEFERRAL_BYTES_MAX


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


def _due(draft: Draft, levels: DelayLevels, terms: Terms) -> Iterator[Violation]:
    level, delay_ms, deliver_at_ms = draft.delay_level, draft.delay_ms, draft.deliver_at_ms
    given = ("delay_level", level != 0), ("delay_ms", delay_ms != 0), ("deliver_at_ms", deliver_at_ms is not None)
    asked = [name for name, is_given in given if is_given]
    for name in asked[1:]:
        yield Violation(name, f"is set beside {asked[0]}; give one")
    if level < 0:
        yield Violation("delay_level", f"{level} is below 0; levels are 1 to {levels.highest}, 0 is none")
    elif level and 0 < terms.max_delay_ms < levels.delay_at_most_ms(level):
        length = f"level {level} is {levels.delay_at_most_ms(level)} ms"
        yield Violation("delay_level", f"{length}, above the most of topic {draft.topic}, {terms.max_delay_ms} ms")
    yield from delay_violations("delay_ms", delay_ms, draft.topic, terms.max_delay_ms)
    if deliver_at_ms is not None:
        yield from due_violations("deliver_at_ms", deliver_at_ms, terms.now_ms, draft.topic, terms.max_delay_ms)


def delay_violations(field: str, delay_ms: int, topic: str, max_delay_ms: int) -> Iterator[Violation]:
    """What is wrong with a delay. `max_delay_ms`: the topic's; 0: it has none of its own."""
    if delay_ms < 0:
        yield Violation(field, f"{delay_ms} ms is below 0")
    elif delay_ms > DELAY_MS_MAX:
        yield Violation(field, f"{delay_ms} ms is above the most, {DELAY_MS_MAX} ms (ten years)")
    elif 0 < max_delay_ms < delay_ms:
        yield Violation(field, f"{delay_ms} ms is above the most of topic {topic}, {max_delay_ms} ms")


def due_violations(field: str, due_at_ms: int, now_ms: int, topic: str, max_delay_ms: int) -> Iterator[Violation]:
    """What is wrong with a due time. A topic's own limit is the gateway's to keep, so it is kept to the millisecond."""
    ahead_ms = due_at_ms - now_ms
    if due_at_ms < 0:
        yield Violation(field, f"{due_at_ms} is below 0; it counts Unix milliseconds")
    elif ahead_ms > DELAY_MS_MAX + CLOCKS_APART_MS:
        yield Violation(field, f"{due_at_ms} lies {ahead_ms} ms ahead; the most is {DELAY_MS_MAX} ms (ten years)")
    elif 0 < max_delay_ms < ahead_ms:
        text = f"{due_at_ms} lies {ahead_ms} ms ahead; the most of topic {topic} is {max_delay_ms} ms"
        yield Violation(field, text)


def _replace(draft: Draft) -> Iterator[Violation]:
    if draft.replace:
        if not is_delayed(draft):
            yield Violation("replace", "needs a delay or a due time")
        if len(draft.keys) != 1:
            yield Violation("replace", f"needs exactly one key; there are {len(draft.keys)}")
        for name in ("queue", "sharding_key"):
            if getattr(draft, name) not in (None, ""):
                yield Violation("replace", f"may not stand beside {name}: the key chooses the queue")
    if draft.max_wait_ms and not draft.replace:
        yield Violation("max_wait_ms", "is set without replace")
    yield from delay_violations("max_wait_ms", draft.max_wait_ms, draft.topic, 0)


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
