"""Judges messages before they are sent, by the rules of the gateways (duetime_format.admission)."""

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from duetime_format.admission import Draft, Terms, are_plain, is_tag, is_word, topic_violations, violations
from duetime_format.errors import Violation
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import BODY_BYTES_MAX, ID_CHARS_MAX

from duetime.client.errors import InvalidMessage

# The fields of the contract by their names in `Message`.
NAMES = {
    "delay_level": "level",
    "delay_ms": "delay",
    "deliver_at_ms": "deliver_at",
    "max_wait_ms": "max_wait",
    "expires_ms": "expires",
}
# All rules apply to messages with other fields or long texts: servers add properties of their own.
_PLAIN = {"topic", "body", "id", "born_at_ms", "tags", "keys", "properties", "delay_ms", "deliver_at_ms", "flag"}
_CHARS_MAX = 1_024
_TEXTS = {"topic", "tags", "keys", "properties", "sharding_key", "id", "lite_topic"}


def check(fields: Mapping[str, Any], *, is_half: bool = False) -> None:
    """Checks the fields of a duetime.v1.Message, by name. `is_half`: the message belongs to a transaction.

    A value of another type passes, and protobuf rejects it; except bytes in place of a text, which protobuf takes.

    Raises:
        InvalidMessage: fields break rules of every server; `violations` lists all of them.
    """
    try:
        found = [] if _is_plain(fields) else _violations(fields, is_half)
    except (AttributeError, TypeError, ValueError):
        found = [fault for name, value in fields.items() if (fault := misfit(name, value))]
    if found:
        raise InvalidMessage.of_all(Violation(NAMES.get(one.field, one.field), one.description) for one in found)


def _is_plain(fields: Mapping[str, Any]) -> bool:
    """Whether the message is valid beyond doubt. Its `delay_ms` was checked when it was parsed."""
    message_id, deliver_at_ms = fields["id"], fields.get("deliver_at_ms", 0)
    return (
        fields.keys() <= _PLAIN
        and _is_topic(fields["topic"])
        and _is_tag(fields.get("tags", ""))
        and len(fields["body"]) <= BODY_BYTES_MAX
        and (not message_id or (len(message_id) <= ID_CHARS_MAX and str.isalnum(message_id)))
        and (not deliver_at_ms or deliver_at_ms <= _now_ms() + DELAY_MS_MAX)
        and ("keys" not in fields or _are_keys(fields["keys"]))
        and ("properties" not in fields or _are_properties(fields["properties"]))
    )


def misfit(name: str, value: Any) -> Violation | None:
    """The first text of a field that is not a str; None: the field has none."""
    if name not in _TEXTS:
        return None
    elements = [(name, value)]
    if isinstance(value, Mapping):
        elements = [(f"the name of {name}[{key!r}]", key) for key in value]
        elements += [(f"{name}[{key!r}]", one) for key, one in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str) and name == "keys":
        elements = [(f"{name}[{n}]", one) for n, one in enumerate(value)]
    for place, one in elements:
        if not isinstance(one, str):
            return Violation(place, f"{one!r} is {type(one).__name__}, not str")
    return None


def _are_keys(keys: Any) -> bool:
    return isinstance(keys, list | tuple) and all(map(is_word, keys)) and sum(map(len, keys)) <= _CHARS_MAX


def _are_properties(properties: Mapping[str, str]) -> bool:
    return are_plain(properties) and sum(map(len, properties)) + sum(map(len, properties.values())) <= _CHARS_MAX


def _violations(fields: Mapping[str, Any], is_half: bool) -> list[Violation]:
    keys = fields.get("keys", [])
    # An iterator would have no keys left for the request.
    if not isinstance(keys, list | tuple):
        return []
    return violations(Draft(**fields), None, Terms(None, _now_ms(), is_half=is_half))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=1024)
def _is_topic(name: str) -> bool:
    return not list(topic_violations("topic", name))


@lru_cache(maxsize=1024)
def _is_tag(tags: str) -> bool:
    return len(tags) <= _CHARS_MAX and is_tag(tags)
