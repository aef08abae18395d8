"""Limits and pauses of groups: their text in the metadata database, their violations and changes. Pure.

{
    "set_at_ms": 1700000000000,
    "limits": [{"topic": "orders", "rate": "50/s", "per_key": 0, "declared": false}],
    "pause": {"since_ms": 1700000000000, "until_ms": 0}
}
"""

import json
from collections.abc import Iterable

from duetime.v1.consumer_pb2 import Group, GroupLimit, GroupLimits, GroupPause
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
        limit = found.limits.add(topic=one["topic"], per_key=one.get("per_key", 0), declared=one.get("declared", False))
        if one.get("rate"):
            rates.fill(limit.rate, one["rate"])
    if stored.get("pause"):
        found.pause.CopyFrom(GroupPause(**stored["pause"]))
    return found


def render(found: GroupLimits) -> str:
    """The text that `parse` reads."""
    rows = [
        {"topic": one.topic, "rate": rates.rate_of(one), "per_key": one.per_key, "declared": one.declared}
        for one in found.limits
    ]
    stored = {"set_at_ms": found.set_at_ms, "limits": rows}
    if found.HasField("pause"):
        stored["pause"] = {"since_ms": found.pause.since_ms, "until_ms": found.pause.until_ms}
    return json.dumps(stored)


def known_of(group: Group) -> GroupLimits:
    """The limits of a group. One that never had any has had none since it was created: limits of a deleted group
    of its name are older."""
    return group.limits if group.HasField("limits") else GroupLimits(set_at_ms=group.created_at_ms)


def replaced(known: GroupLimits, limit: GroupLimit, now_ms: int) -> GroupLimits:
    """The limits with another one of its topic; one without a rate and `per_key` is removed.

    Raises:
        GroupLimitsExhausted: there are too many.
    """
    rest = [one for one in known.limits if one.declared or one.topic != limit.topic]
    return _changed(known, [*rest, limit] if limit.HasField("rate") or limit.per_key else rest, now_ms)


def declared(known: GroupLimits, found: Iterable[GroupLimit], now_ms: int) -> GroupLimits:
    """The limits with these declared ones instead of the former; equal ones change nothing. Raises: as `replaced`."""
    new = [
        GroupLimit(topic=one.topic, rate=one.rate if one.HasField("rate") else None, per_key=one.per_key, declared=True)
        for one in found
    ]
    changed = _changed(known, [*new, *(one for one in known.limits if not one.declared)], now_ms)
    return known if list(changed.limits) == list(known.limits) else changed


def paused(known: GroupLimits, pause: GroupPause | None, now_ms: int) -> GroupLimits:
    """The limits with this pause of the group in all topics; None: it has none. An equal one changes nothing."""
    if pause == pause_of(known):
        return known
    return GroupLimits(set_at_ms=max(now_ms, known.set_at_ms + 1), limits=known.limits, pause=pause)


def pause_of(found: GroupLimits) -> GroupPause | None:
    """The pause of the group in all topics."""
    return found.pause if found.HasField("pause") else None


def _changed(known: GroupLimits, found: list[GroupLimit], now_ms: int) -> GroupLimits:
    most = limits.GROUP_LIMITS_MAX
    if len(found) > most:
        raise GroupLimitsExhausted(f"the group would have {len(found)} limits, the maximum is {most}: remove some")
    found.sort(key=lambda one: (not one.declared, one.topic))
    return GroupLimits(set_at_ms=max(now_ms, known.set_at_ms + 1), limits=found, pause=pause_of(known))


def effective(found: GroupLimits) -> dict[str, GroupLimit]:
    """The limit by topic; that of the empty topic is for all others. A limit of an operator takes precedence over a
    declared one, for the rate and for the keys."""
    own = {one.topic: one for one in found.limits if not one.declared}
    merged = dict(own)
    for one in found.limits:
        if one.declared:
            first = own.get(one.topic) or own.get("") or GroupLimit()
            by_rate = first if first.HasField("rate") else one
            merged[one.topic] = GroupLimit(
                topic=one.topic,
                rate=by_rate.rate if by_rate.HasField("rate") else None,
                per_key=first.per_key or one.per_key,
            )
    return merged


def violations(field: str, limit: GroupLimit) -> list[Violation]:
    """All violations of a limit, but for those of its topic."""
    found = rates.faults(limit.rate, f"{field}.rate.") if limit.HasField("rate") else []
    return found + within(f"{field}.per_key", limit.per_key, 0, limits.PER_KEY_MAX)
