"""The rules for sent messages: finds every violation at once. Pure.

The SDK and the outbox apply them before they send, a gateway before it stores. A gateway also knows the topic's queues
and longest delay and the cluster's delay levels (`Terms`). The gateway's encoder and the SDK have a cheap test for
messages that are plainly right and call these functions only for others, so speed does not matter here.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from duetime_format import limits, policy, priority, record
from duetime_format.errors import Violation, within
from duetime_format.lengths import written
from duetime_format.levels import DELAY_MAX, DELAY_MS_MAX, LEVEL_COUNT_MAX, DelayLevels
from duetime_format.names import is_lite_topic, is_name, is_system_topic
from duetime_format.texts import shown

_UNFIT_IN_WORD = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Tolerance for due times beyond ten years by the clock of the checking process: the shard's decides.
CLOCKS_APART_MS = 60_000

# The field to use instead of a property that RocketMQ gives a meaning to.
FIELD_INSTEAD = {
    record.TAGS: "tags",
    record.KEYS: "keys",
    record.UNIQ_KEY: "id",
    record.DELAY: "delay_level",
    record.REAL_TOPIC: "topic",
    record.REAL_QID: "queue",
    record.SHARDING_KEY: "sharding_key",
    record.RETRY: "retry",
    record.EXPIRES: "expires_ms",
    priority.PRIORITY: "priority",
    "TIMER_DELAY_MS": "delay_ms",
    "TIMER_DELAY_SEC": "delay_ms",
    "TIMER_DELIVER_MS": "deliver_at_ms",
}


@dataclass(slots=True)
class Draft:
    """A message to be sent; `admission` checks the values. Texts have no lone surrogates.

    At most one of the three fields that delay it is set: `delay_level` 0 and `delay_ms` 0 are no delay, and
    `deliver_at_ms`, Unix milliseconds, may be past.
    """

    topic: str
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    tags: str = ""
    keys: Sequence[str] = ()
    sharding_key: str = ""
    # None: by sharding key, else queues take turns.
    queue: int | None = None
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at_ms: int | None = None
    # Empty: one is generated.
    id: str = ""
    # 0: the time of its arrival.
    born_at_ms: int = 0
    flag: int = 0
    # None: the group's.
    retry: policy.Policy | None = None
    # Whether it replaces the pending message with its key that was sent with `replace`.
    replace: bool = False
    # The maximum time from the first replaced message to the due time, with `replace`; 0: no limit.
    max_wait_ms: int = 0
    # None: it has none.
    priority: int | None = None
    # Empty: it has none, unless it is among the properties.
    lite_topic: str = ""
    # The time after its due time, or after it is stored, from which groups do not receive it; 0: no limit.
    expires_ms: int = 0


class Terms(NamedTuple):
    """The topic's rules for a draft. `queue_count` None: the topic is not known; `max_delay_ms` 0: it has no limit of
    its own. `is_half`: it is a half message of a transaction. `has_priorities`: its type is PRIORITY; None: unknown.
    `is_lite`: its type is LITE; None: unknown."""

    queue_count: int | None
    now_ms: int
    max_delay_ms: int = 0
    body_bytes_min: int = 0
    is_half: bool = False
    has_priorities: bool | None = None
    is_lite: bool | None = None


def is_word(text: str) -> bool:
    """Whether the text is not empty and has neither blanks nor control characters."""
    return bool(text) and _UNFIT_IN_WORD.search(text) is None


def is_tag(text: str) -> bool:
    """Whether the text is allowed in `tags`; the empty one is."""
    return not list(_tags(text))


def are_plain(properties: Mapping[str, str]) -> bool:
    """Whether all names and values are right beyond doubt."""
    if not record.RESERVED_PROPERTIES.isdisjoint(properties):
        return False
    return all(name and value and name.isprintable() and value.isprintable() for name, value in properties.items())


def violations(draft: Draft, levels: DelayLevels | None, terms: Terms) -> list[Violation]:
    """All violations of a draft, in the order of its fields. `levels` None: the table is not known."""
    found = [
        *topic_violations("topic", draft.topic),
        *body_violations(draft.body, terms.body_bytes_min),
        *_properties(draft, levels, terms),
        *_tags(draft.tags),
        *_keys(draft),
        *_sharding_key(draft.sharding_key),
        *_queue(draft, terms.queue_count),
        *_priority(draft, terms),
        *_lite(draft, terms),
        *_due(draft, levels, terms),
        *delay_violations("expires_ms", draft.expires_ms, draft.topic, 0),
        *_id(draft.id),
    ]
    if draft.born_at_ms < 0:
        found.append(Violation("born_at_ms", f"{draft.born_at_ms} is below 0; it counts Unix milliseconds"))
    if draft.retry is not None:
        found += policy.faults(draft.retry, "retry.")
    if terms.is_half and draft.replace:
        found.append(Violation("replace", "is set: a transaction's message can't replace another"))
    else:
        found.extend(_replace(draft))
    return found


def topic_violations(field: str, topic: str, *, system: bool = False) -> Iterator[Violation]:
    """Violations of a topic's name. `system`: system topics are allowed."""
    if not 1 <= len(topic) <= limits.TOPIC_CHARS_MAX:
        yield Violation(field, f"{shown(topic)} has {len(topic)} characters; a topic has 1 to {limits.TOPIC_CHARS_MAX}")
    if topic and not is_name(topic):
        yield Violation(field, f"{shown(topic)} holds characters other than [%|a-zA-Z0-9_-]")
    if not system and is_system_topic(topic):
        yield Violation(field, f"{shown(topic)} is a system topic; only DueTime itself writes to it")


def schedule_violations(field: str, name: str) -> Iterator[Violation]:
    """Violations of a schedule's name, which is the key of its messages."""
    if not is_word(name) or len(name) > limits.SCHEDULE_NAME_CHARS_MAX:
        text = f"{shown(name)} is not 1 to {limits.SCHEDULE_NAME_CHARS_MAX} characters without blanks"
        yield Violation(field, text)


def group_violations(field: str, name: str) -> Iterator[Violation]:
    """Violations of a group's name. The names of its topics are longer by a prefix."""
    if not 1 <= len(name) <= limits.GROUP_CHARS_MAX or not is_name(name):
        yield Violation(field, f"{shown(name)} is not 1 to {limits.GROUP_CHARS_MAX} characters of [%|a-zA-Z0-9_-]")


def lite_violations(names: Sequence[str], tags: str, sql: str) -> Iterator[Violation]:
    """Violations of a receive's lite topics, and of a filter beside them."""
    if not names:
        return
    if len(names) > limits.LITE_SUBSCRIPTIONS_MAX:
        yield Violation("lite_topics", f"{len(names)} lite topics exceed the limit of {limits.LITE_SUBSCRIPTIONS_MAX}")
    if (wrong := next((one for one in names if not is_lite_topic(one)), None)) is not None:
        text = f"{shown(wrong)} is not 1 to {limits.LITE_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"
        yield Violation("lite_topics", text)
    if tags not in ("", "*") or sql:
        yield Violation("tags", "a filter cannot be combined with lite_topics")


def body_violations(body: bytes, least: int = 0) -> Iterator[Violation]:
    """Violations of a body. `least`: its minimum number of bytes."""
    if len(body) < least:
        yield Violation(
            "body", f"{len(body)} bytes are below the minimum of {least}: RocketMQ's brokers reject empty bodies"
        )
    if len(body) > limits.BODY_BYTES_MAX:
        yield Violation("body", f"{len(body)} bytes exceed the limit of {limits.BODY_BYTES_MAX}")


def _properties(draft: Draft, levels: DelayLevels | None, terms: Terms) -> Iterator[Violation]:
    for name, value in draft.properties.items():
        field = f"properties[{json.dumps(name, ensure_ascii=False)}]"
        if not name:
            yield Violation(field, "the name is empty")
        if not value:
            yield Violation(field, "the value is empty")
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            yield Violation(field, "U+0001 and U+0002 separate properties and are not allowed in names or values")
        if name in record.RESERVED_PROPERTIES:
            instead = FIELD_INSTEAD.get(name)
            hint = f"use the field {instead}" if instead else "no field sets it"
            yield Violation(field, f"{name} is a system property; {hint}")
    size, added = properties_bytes(draft), _half_bytes(draft) if terms.is_half else _added_bytes(draft, levels)
    if size + added > limits.PROPERTIES_BYTES_MAX:
        kept = f"{size} bytes encoded and {added} that DueTime adds"
        yield Violation("properties", f"{kept} exceed the limit of {limits.PROPERTIES_BYTES_MAX}")


def properties_bytes(draft: Draft) -> int:
    """Encoded size of all properties that the draft will be stored with, before those that DueTime adds."""
    pairs = list(draft.properties.items())
    pairs += [(record.TAGS, draft.tags)] if draft.tags else []
    pairs += [(record.KEYS, " ".join(draft.keys))] if draft.keys else []
    pairs += [(record.SHARDING_KEY, draft.sharding_key)] if draft.sharding_key else []
    pairs += [(record.RETRY, policy.render(draft.retry))] if draft.retry is not None else []
    pairs += [(priority.PRIORITY, str(draft.priority))] if draft.priority is not None else []
    pairs += [(record.LITE_TOPIC, draft.lite_topic)] if draft.lite_topic else []
    pairs += [(record.EXPIRES, str(draft.expires_ms))] if draft.expires_ms else []
    pairs.append((record.UNIQ_KEY, draft.id or "0" * 32))
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs) - 1


def _half_bytes(draft: Draft) -> int:
    # The id is stored once more in it, and the limit counts its characters.
    return limits.HALF_BYTES_MAX + len(draft.id.encode()) - len(draft.id)


def _added_bytes(draft: Draft, levels: DelayLevels | None) -> int:
    if not is_delayed(draft):
        return limits.CHECKSUM_BYTES
    # Without the table a delay may be a level's, which adds less.
    has_own_time = draft.delay_ms != 0 and levels is not None and levels.level_of(draft.delay_ms) is None
    if draft.replace or draft.deliver_at_ms is not None or has_own_time:
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
    if queue_count is None:
        yield from within("queue", draft.queue, 0, limits.QUEUE_COUNT_MAX - 1)
    else:
        yield from within("queue", draft.queue, 0, queue_count - 1, note=", the topic's last")


def _priority(draft: Draft, terms: Terms) -> Iterator[Violation]:
    if draft.priority is None:
        if terms.has_priorities and draft.sharding_key:
            text = f"is set: topic {draft.topic} has priorities, and a message's priority chooses its queue"
            yield Violation("sharding_key", text)
        return
    yield from within("priority", draft.priority, 0, priority.PRIORITY_MAX)
    if terms.has_priorities is False:
        text = f"is set, but topic {draft.topic} has no priorities; create one of the type `priority`"
        yield Violation("priority", text)
    for name in ("queue", "sharding_key"):
        if getattr(draft, name) not in (None, ""):
            yield Violation("priority", f"conflicts with {name}: the priority chooses the queue")
    if draft.replace:
        yield Violation("priority", "conflicts with replace: the key chooses the queue")


def lite_topic_of(draft: Draft) -> str:
    """The lite topic: a field, or a property of a message that was read."""
    return draft.lite_topic or draft.properties.get(record.LITE_TOPIC, "")


def _lite(draft: Draft, terms: Terms) -> Iterator[Violation]:
    name = lite_topic_of(draft) if terms.is_lite else draft.lite_topic
    if not name:
        return
    if not is_lite_topic(name):
        text = f"{shown(name)} is not 1 to {limits.LITE_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"
        yield Violation("lite_topic", text)
    if record.LITE_TOPIC in draft.properties and draft.lite_topic:
        yield Violation("lite_topic", f"conflicts with the property {record.LITE_TOPIC}; give one")
    if terms.is_lite is False:
        text = f"is set, but topic {draft.topic} has no lite topics; create one of the type `lite`"
        yield Violation("lite_topic", text)
    for other in ("queue", "sharding_key", "priority"):
        if getattr(draft, other) not in (None, ""):
            yield Violation("lite_topic", f"conflicts with {other}: the lite topic chooses the queue")
    if is_delayed(draft) or draft.replace:
        yield Violation("lite_topic", "conflicts with a delay: its messages are delivered in the order of the sends")
    if terms.is_half:
        yield Violation("lite_topic", "conflicts with a transaction")


def _due(draft: Draft, levels: DelayLevels | None, terms: Terms) -> Iterator[Violation]:
    level, delay_ms, deliver_at_ms = draft.delay_level, draft.delay_ms, draft.deliver_at_ms
    given = ("delay_level", level != 0), ("delay_ms", delay_ms != 0), ("deliver_at_ms", deliver_at_ms is not None)
    asked = [name for name, is_given in given if is_given]
    for name in asked[1:]:
        yield Violation(name, f"conflicts with {asked[0]}; give one")
    if level < 0:
        highest = levels.highest if levels else LEVEL_COUNT_MAX
        yield Violation("delay_level", f"{level} is below 0; levels are 1 to {highest}, 0 is none")
    elif levels and level and 0 < terms.max_delay_ms < levels.delay_at_most_ms(level):
        length = f"level {level} is {written(levels.delay_at_most_ms(level))}"
        yield Violation("delay_level", f"{length}; the limit of topic {draft.topic} is {written(terms.max_delay_ms)}")
    yield from delay_violations("delay_ms", delay_ms, draft.topic, terms.max_delay_ms)
    if deliver_at_ms is not None:
        yield from due_violations("deliver_at_ms", deliver_at_ms, terms.now_ms, draft.topic, terms.max_delay_ms)


def delay_violations(field: str, delay_ms: int, topic: str, max_delay_ms: int) -> Iterator[Violation]:
    """Violations of a delay. `max_delay_ms`: the topic's; 0: it has none of its own."""
    if delay_ms < 0:
        yield Violation(field, f"{delay_ms} ms is below 0")
    elif delay_ms > DELAY_MS_MAX:
        yield Violation(field, f"{written(delay_ms)} exceeds the limit of {DELAY_MAX}")
    elif 0 < max_delay_ms < delay_ms:
        yield Violation(field, f"{written(delay_ms)} exceeds the limit of {written(max_delay_ms)} for topic {topic}")


def due_violations(field: str, due_at_ms: int, now_ms: int, topic: str, max_delay_ms: int) -> Iterator[Violation]:
    """Violations of a due time. The gateway enforces a topic's own limit, to the millisecond."""
    ahead_ms = due_at_ms - now_ms
    if due_at_ms < 0:
        yield Violation(field, f"{due_at_ms} is below 0; it counts Unix milliseconds")
    elif ahead_ms > DELAY_MS_MAX + CLOCKS_APART_MS:
        yield Violation(field, f"{_moment(due_at_ms)} is {written(ahead_ms)} ahead; the limit is {DELAY_MAX}")
    elif 0 < max_delay_ms < ahead_ms:
        text = f"{written(ahead_ms)} ahead; the limit of topic {topic} is {written(max_delay_ms)}"
        yield Violation(field, f"{_moment(due_at_ms)} is {text}")


def _moment(at_ms: int) -> str:
    """A time in errors: `2100-01-01T00:00:00.000+00:00`; milliseconds after the year 9999."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{at_ms} ms"


def _replace(draft: Draft) -> Iterator[Violation]:
    if draft.replace:
        if not is_delayed(draft):
            yield Violation("replace", "needs a delay or a due time")
        if len(draft.keys) != 1:
            yield Violation("replace", f"needs exactly one key; there are {len(draft.keys)}")
        for name in ("queue", "sharding_key"):
            if getattr(draft, name) not in (None, ""):
                yield Violation("replace", f"conflicts with {name}: the key chooses the queue")
    if draft.max_wait_ms and not draft.replace:
        yield Violation("max_wait_ms", "is set without replace")
    yield from delay_violations("max_wait_ms", draft.max_wait_ms, draft.topic, 0)


def _id(message_id: str) -> Iterator[Violation]:
    if len(message_id) > limits.ID_CHARS_MAX:
        yield Violation(
            "id", f"{shown(message_id)} has {len(message_id)} characters; the limit is {limits.ID_CHARS_MAX}"
        )
    if message_id and not is_word(message_id):
        yield Violation("id", f"{shown(message_id)} holds a blank or a control character")
