"""Schedules: the property that makes a pending message the occurrence of one. Pure.

    DT_SCHEDULE 0x01 {"name":"report","cron":"30 2 * * *","zone":"Europe/Berlin","planned":1764466200000,...}

The record of a lane for any time with this property and DT_UPSERT is the one pending occurrence of its schedule: the
store makes the next one from it when it restores it. Copies of groups lose DT_UPSERT, so they only show the schedule
that they come from.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

from duetime_format import record
from duetime_format.limits import SCHEDULE_EVERY_MS_MIN, SCHEDULE_LATE_MS_MAX
from duetime_format.properties import VALUE_END, as_text, value_of
from duetime_format.replacing import TRACING, latest_of

# The end of the property's name: rare in other bytes, and quick to look for.
NAME_ENDING = b"LE\x01"
# The state of a paused schedule in the property's value.
PAUSED = b'"paused":true'
_NAME = record.SCHEDULE.encode()
_BEGINNING = _NAME + b"\x01"
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ID = record.UNIQ_KEY.encode() + b"\x01"
# All times are before this one, in the year 2286.
MS_END = 10**record.TIMER_OUT_DIGITS
# Characters of an id that are those of all occurrences of one version; the others are the planned time.
SERIES_CHARS = 21
# Policies for missed occurrences.
SKIP, ONE, ALL = "skip", "one", "all"


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as its pending occurrence has it. Times are Unix ms; of `every_ms`, `at_ms` and `cron` one is set."""

    name: str
    every_ms: int = 0
    # One of the times of `every_ms`, which decides all others.
    start_at_ms: int = 0
    # Sorted.
    at_ms: tuple[int, ...] = ()
    cron: str = ""
    zone: str = ""
    # Policies for times that a change of the clock skips or repeats, as in duetime_core.cron.
    in_gap: str = "end"
    in_fold: str = "first"
    missed: str = ONE
    # The time of its creation, its difference from deleted schedules of its name, and the number of its changes.
    made_at_ms: int = 0
    seed: str = ""
    version: int = 1
    # The planned time of this occurrence; 0: it is paused.
    planned: int = 0
    paused: bool = False
    # The reason why the store paused it.
    fault: str = ""
    # Whether it is an additional occurrence, sent by a caller.
    extra: bool = False
    # The moment after which this occurrence was planned, if it is later than the record's birth; else 0: the occurrence
    # before it was delivered before its planned time.
    after: int = 0
    # The planned time before newer rules of the time zone moved this occurrence; 0: they did not.
    moved_from: int = 0

    def encode(self) -> bytes:
        """The value of the property."""
        own = {"name": self.name}
        own |= {name: value for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default}
        return _ENCODER.encode(own).encode()

    @property
    def rule(self) -> tuple[object, ...]:
        """All that decides the times."""
        return self.every_ms, self.start_at_ms, self.at_ms, self.cron, self.zone, self.in_gap, self.in_fold

    def is_last(self, delivered_at_ms: int) -> bool:
        """Whether the schedule ends with this occurrence, delivered at a time: only listed times end."""
        moment_ms = self.planned if self.missed == ALL else max(self.planned, delivered_at_ms)
        return bool(self.at_ms) and not self.paused and self.at_ms[-1] <= moment_ms


_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(StoredSchedule) if one.name != "name"}
_TYPES: dict[str, type] = {"name": str, **{name: type(value) for name, value in _DEFAULTS.items()}}


def schedule_of(properties: bytes) -> StoredSchedule | None:
    """The schedule of an occurrence; None: the message has no readable one."""
    value = value_of(properties, _NAME)
    if not value:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    known = {name: found[name] for name in _TYPES if name in found}
    if isinstance(known.get("at_ms"), list):
        known["at_ms"] = tuple(known["at_ms"])
    if any(type(value) is not _TYPES[name] for name, value in known.items()):
        return None
    numbers = [*known.get("at_ms", ()), *(value for value in known.values() if type(value) is int)]
    if not all(type(one) is int and 0 <= one < MS_END for one in numbers):
        return None
    if 0 < known.get("every_ms", 0) < SCHEDULE_EVERY_MS_MIN or not _is_text("".join(map(str, known.values()))):
        return None
    return StoredSchedule(**known)


def _is_text(value: str) -> bool:
    """Whether it can be stored: JSON's escapes have halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_pause(value: str) -> bool:
    """Whether the schedule of a property's value is paused. In JSON, no text has such quotes unescaped."""
    return PAUSED.decode() in value


def pending_schedule(properties: bytes) -> StoredSchedule | None:
    """The schedule whose pending or restored occurrence has these properties; None: it is no occurrence, or an
    additional one."""
    if _BEGINNING not in properties or latest_of(properties) is None:
        return None
    return schedule_of(properties)


def with_schedule(properties: bytes, schedule: StoredSchedule, message_id: str) -> bytes:
    """The properties of an occurrence with this schedule and id in place of others."""
    parts = [
        part
        for part in properties.split(VALUE_END)
        if part and not part.startswith((_BEGINNING, _ID)) and as_text(part.split(b"\x01", 1)[0]) not in TRACING
    ]
    return VALUE_END.join([*parts, _ID + message_id.encode(), _BEGINNING + schedule.encode()])


def planned_id(topic: str, schedule: StoredSchedule) -> str:
    """The id of the occurrence at the planned time: 32 hexadecimal digits. The last 11 are that time, the others are
    those of the schedule's version, so that the next id is made from this one."""
    return f"{occurrence_id(topic, schedule)[:SERIES_CHARS]}{schedule.planned:011X}"


def occurrence_id(topic: str, schedule: StoredSchedule, salt: str = "") -> str:
    """The id of an occurrence without a planned time: equal for equal arguments, and no other's."""
    own = (topic, schedule.name, schedule.seed, str(schedule.version), salt)
    return blake2b("\0".join(own).encode(), digest_size=16).hexdigest().upper()


def is_late(missed: str, due_at_ms: int, now_ms: int) -> bool:
    """Whether an occurrence comes too late to be delivered, by the policy for missed ones."""
    return missed == SKIP and now_ms - due_at_ms > SCHEDULE_LATE_MS_MAX


def next_planned(after: Callable[[int], int | None], planned: int, now_ms: int, missed: str) -> int | None:
    """The planned time after one that is due, Unix ms: past ones count only by the policy `all`. `after`: the first
    time after a moment; None: there is none."""
    # The same for all schedules with this rule and planned time, unless they missed occurrences.
    found = after(planned)
    return after(now_ms) if found is not None and found <= now_ms and missed != ALL else found
