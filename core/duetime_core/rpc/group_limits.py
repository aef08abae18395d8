"""Limits of groups: their text in the metadata database, their violations and changes. Pure.

{"set_at_ms": 1700000000000, "limits": [{"topic": "orders", "rate": "50/s", "per_key": 0}]}
"""

import json

from duetime.v1.consumer_pb2 import Group, GroupLimit, GroupLimits
from duetime_format import limits, rates
from duetime_format.errors import Violation, within

from duetime_core.errors import Overloaded


class GroupLimitsExhausted(Overloaded):
    """The group has its maximum of limits."""

    reason = "GROUP_LIMITS_EXHAUSTED"
    retriable = False


def parse(text: str) -> GroupLimits:
    """The limits in a text that `render` has made."""
    stored = json.loads(text)
    found = GroupLimits(set_at_ms=stored["set_at_ms"])
    for one in stored["limits"]:
        limit = found.limits.add(topic=one["topic"], per_key=one.get("per_key", 0))
        if one.get("rate"):
            rates.fill(limit.rate, one["rate"])
    return found


def render(found: GroupLimits) -> str:
    """The text that `parse` reads."""
    rows = [{"topic": one.topic, "rate": rates.rate_of(one), "per_key": one.per_key} for one in found.limits]
    return json.dumps({"set_at_ms": found.set_at_ms, "limits": rows})


def known_of(group: Group) -> GroupLimits:
    """The limits of a group. One that never had any has had none since it was created: limits of a deleted group
    of its name are older."""
    return group.limits if group.HasField("limits") else GroupLimits(set_at_ms=group.created_at_ms)


def replaced(known: GroupLimits, limit: GroupLimit, now_ms: int) -> GroupLimits:
    """The limits with another one of its topic; one without a rate and `per_key` is removed.

    Raises:
        GroupLimitsExhausted: there are too many.
    """
    rest = [one for one in known.limits if one.topic != limit.topic]
    if limit.HasField("rate") or limit.per_key:
        if len(rest) >= limits.GROUP_LIMITS_MAX:
            most = limits.GROUP_LIMITS_MAX
            raise GroupLimitsExhausted(f"the group has {len(rest)} limits, the maximum is {most}: remove some")
        rest.append(limit)
    rest.sort(key=lambda one: one.topic)
    return GroupLimits(set_at_ms=max(now_ms, known.set_at_ms + 1), limits=rest)


def violations(field: str, limit: GroupLimit) -> list[Violation]:
    """All violations of a limit, but for those of its topic."""
    found = rates.faults(limit.rate, f"{field}.rate.") if limit.HasField("rate") else []
    return found + within(f"{field}.per_key", limit.per_key, 0, limits.PER_KEY_MAX)
