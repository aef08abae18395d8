"""Reasons to reject records of a put for good. They apply the gateway's rules to every caller of the store's port.

Topic rules are checked once per (topic, queue) and the result is remembered. For each record only its size and a few
bits are checked.
"""

from functools import lru_cache
from itertools import starmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_format import record, timers
from duetime_format.columns import holds, unsendable
from duetime_format.lanes import LANE_TOPIC_NAMES, level_of
from duetime_format.lengths import written
from duetime_format.levels import DELAY_MAX, DELAY_MS_MAX
from duetime_format.limits import (
    BODY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    QUEUE_COUNT_MAX,
    TOPIC_CHARS_MAX,
)
from duetime_format.names import (
    HALF_TOPIC,
    OP_TOPIC,
    QUARANTINE_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_group_topic,
    is_name,
    is_system_topic,
)
from duetime_format.properties import VALUE_END
from duetime_shard.facts import QUEUE_ID_MAX

from duetime_store.log.intake import Intake

_LEVEL_TOPIC, _TIMER_TOPIC = SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode()
_KEYS_REMEMBERED_MAX = 16_384
_SHOWN_CHARS_MAX = 64
# A broker's topic may have more queues than one of ours; larger numbers are damage in a log.
QUEUE_ID_MAX_RESTORED = QUEUE_ID_MAX
# The largest record that may be sent: the largest body and properties, and a record's other parts.
SENT_BYTES_MAX = BODY_BYTES_MAX + PROPERTIES_BYTES_MAX + 256
# No record may be restored to these: only a broker or the store itself fills them.
_CLOSED = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC})
_OURS = "DT_"
# Properties that only the store sets, with their separator, and the prefix common to all.
OWN_PROPERTIES = tuple(name.encode() + b"\x01" for name in (record.LANE_ENTRY, record.UPSERT))
_OWN_BEGINNING = b"DT_"


class RecordLimits(NamedTuple):
    """Limits of a shard: the highest level, the number of lanes for any time, and the maximum bytes of a record."""

    highest: int
    timer_lanes: int
    record_bytes_max: int


def sent_faults(intake: Intake, taken: RecordLimits, now_ms: int, *, replace: bool = False) -> dict[int, str]:
    """Faults of sent records, by index. `replace`: the store made the records itself, to replace others."""
    faults = {} if replace else own_faults(intake, OWN_PROPERTIES)
    if not intake.count:
        return faults
    _add(faults, intake, [sent_key_fault(*key, taken.highest, taken.timer_lanes) for key in intake.keys])
    _add_timers(faults, intake, now_ms)
    for index in unsendable(intake):
        faults[index] = "is part of a transaction, or born before 1970"
    _add_sizes(faults, intake, min(taken.record_bytes_max, SENT_BYTES_MAX), taken.record_bytes_max)
    return faults


def restored_faults(intake: Intake, size_max: int) -> dict[int, str]:
    """As `sent_faults`, for records that take the place of lane entries."""
    faults: dict[int, str] = {}
    _add(faults, intake, list(starmap(_restored_key_fault, intake.keys)))
    _add_sizes(faults, intake, size_max, size_max)
    return faults


def ended_faults(intake: Intake, size_max: int) -> dict[int, str]:
    """As `sent_faults`, for records that the store made from half messages."""
    faults: dict[int, str] = {}
    _add(faults, intake, ["" if key[0] in LANE_TOPIC_NAMES else _restored_key_fault(*key) for key in intake.keys])
    _add_sizes(faults, intake, size_max, size_max)
    return faults


def own_faults(intake: Intake, names: tuple[bytes, ...]) -> dict[int, str]:
    """Faults of records with one of these DT_ properties. They decide which entry a record ends and the newest record
    of a key, so a sender must not set them."""
    faults: dict[int, str] = {}
    # One search covers all: records hardly ever have one.
    for name in names if holds(intake.data, _OWN_BEGINNING) else ():
        if name in intake.data:
            for index in range(intake.count):
                if any(part.startswith(name) for part in intake.properties(index).split(VALUE_END)):
                    faults[index] = f"property {name[:-1].decode()} is the store's own"
    return faults


def _add(faults: dict[int, str], intake: Intake, of_keys: list[str]) -> None:
    if any(of_keys):
        for index, number in enumerate(intake.key_of.tolist()):
            if of_keys[number]:
                faults[index] = of_keys[number]


def _add_timers(faults: dict[int, str], intake: Intake, now_ms: int) -> None:
    """Records for any time must have room for their due time, ask for one time only, and not for one too far ahead."""
    are_timers = [topic == _TIMER_TOPIC for topic, _ in intake.keys]
    if True not in are_timers:
        return
    rows = np.flatnonzero(np.array(are_timers)[intake.key_of])
    has_room = intake.timer_at[rows] >= 0
    for index in rows[~has_room].tolist():
        faults.setdefault(index, f"{record.TIMER_OUT_MS} is not {record.TIMER_OUT_DIGITS} digits")
    rows = rows[has_room]
    values = timers.outs(intake, rows)
    for index in rows[~timers.agree(intake, rows)].tolist():
        faults.setdefault(index, f"asks for no due time, or another one than {record.TIMER_OUT_MS}")
    ahead = np.where(values < record.TIMER_OUT_MIN, values, values + 1 - now_ms)
    for at in np.flatnonzero(ahead > DELAY_MS_MAX).tolist():
        text = f"falls due {written(int(ahead[at]))} ahead; the limit is {DELAY_MAX}"
        faults.setdefault(int(rows[at]), text)


def _add_sizes(faults: dict[int, str], intake: Intake, most: int, segment: int) -> None:
    if len(intake.data) <= most:
        return
    large: npt.NDArray[np.intp] = np.flatnonzero(intake.sizes > most)
    for index in large.tolist():
        size = int(intake.sizes[index])
        taker = "a segment of this shard holds" if size > segment else "the limit is"
        faults[index] = f"record of {size} bytes; {taker} {segment if size > segment else most}"


@lru_cache(_KEYS_REMEMBERED_MAX)
def sent_key_fault(topic: bytes, queue_id: int, highest: int, timer_lanes: int) -> str:
    name, fault = _name(topic)
    if fault:
        return fault
    if topic == _TIMER_TOPIC:
        return _queue_fault(queue_id, timer_lanes - 1)
    if topic == _LEVEL_TOPIC:
        if queue_id >= highest:
            return f"level {level_of(queue_id)} is above the highest, {highest}"
    elif is_system_topic(name) and not is_group_topic(name):
        return f"topic {name} is the store's own, or a broker's"
    return _queue_fault(queue_id, QUEUE_COUNT_MAX - 1)


@lru_cache(_KEYS_REMEMBERED_MAX)
def _restored_key_fault(topic: bytes, queue_id: int) -> str:
    name, fault = _name(topic)
    if fault:
        return fault
    if name in _CLOSED or (name.startswith(_OURS) and name != QUARANTINE_TOPIC):
        return f"a restored record can't enter {name}"
    return _queue_fault(queue_id, QUEUE_ID_MAX_RESTORED)


def _name(topic: bytes) -> tuple[str, str]:
    """The topic's name and its fault."""
    name = topic.decode("utf-8", "replace")
    if 1 <= len(topic) <= TOPIC_CHARS_MAX and is_name(name):
        return name, ""
    return name, f"topic {name[:_SHOWN_CHARS_MAX]!r} is not 1 to {TOPIC_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"


def _queue_fault(queue_id: int, highest: int) -> str:
    if queue_id < 0:
        return f"queue {queue_id} is below 0"
    return f"queue {queue_id} is above the highest, {highest}" if queue_id > highest else ""
