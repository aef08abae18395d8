"""Timers that wait in a 5.x broker's wheel, as entries of a lane of their own: level 0.

A timer's record lies in topic rmq_sys_wheel_timer; TIMER_OUT_MS says when it is due. Units of the timer log say which
are in the wheel: magic 2 is rolled (due later than the wheel reaches: its slot is not yet its time), 4 takes another
one back. Source: RocketMQ 5.3.3 TimerMessageStore.
"""

import numpy as np
from duetime_core.ondisk.files import LogFiles
from duetime_core.ondisk.records import message
from duetime_core.ondisk.state import State
from duetime_core.ondisk.timers import timers
from duetime_format import record
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.units import UNIT_TYPE, Ints, Units, joined

_LOG_UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("before", ">i8"),
        ("magic", ">i4"),
        ("entered_at_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("position", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("zero", ">i8"),
    ]
)
_ROLLED, _TAKES_BACK = 2, 4
_DUE = "TIMER_OUT_MS"
_TAKEN_BACK = "TIMER_DEL_UNIQKEY"


def waiting(state: State) -> tuple[Ints, Units]:
    """Offsets in the timers' queue, and units with the due time for tags, by offset; empty without a wheel."""
    known = timers(state, listed=False)
    queue = state.queues.get((TIMER_TOPIC, 0))
    if known is None or queue is None:
        return np.empty(0, np.int64), np.empty(0, UNIT_TYPE)
    found = _in_wheel(state, int(known["lastReadTimeMs"]))
    late = [units for _, units in queue.read(int(known["lastTimerQueueOffset"]))] if known["notInWheel"] else []
    found = joined([found, *(_dated(state, units.copy()) for units in late)])
    parts = list(queue.read())
    offsets = np.concatenate([part for part, _ in parts] or [np.empty(0, np.int64)])
    positions = np.concatenate([units["position"] for _, units in parts] or [np.empty(0, np.int64)]).astype(np.int64)
    order = np.argsort(positions, kind="stable")
    at = np.minimum(np.searchsorted(positions, found["position"], sorter=order), max(len(order) - 1, 0))
    there = positions[order[at]] == found["position"] if len(order) else np.zeros(len(found), np.bool_)
    own, found = offsets[order[at]][there] if len(order) else offsets, found[there]
    by_offset = np.argsort(own, kind="stable")
    return own[by_offset], found[by_offset]


def _in_wheel(state: State, read_at_ms: int) -> Units:
    log = LogFiles(state.files, "timerlog")
    parts = []
    for base, file in sorted(log.files.items()):
        data = file.read_file(base, file.size)
        parts.append(np.frombuffer(data, _LOG_UNIT, len(data) // _LOG_UNIT.itemsize))
    units = np.concatenate([np.empty(0, _LOG_UNIT), *parts])
    slot_at_ms = units["entered_at_ms"] + units["delay_ms"]
    live = (units["size"] == _LOG_UNIT.itemsize) & (slot_at_ms >= read_at_ms)
    units, slot_at_ms = units[live], slot_at_ms[live]
    marks = (units["magic"] & _TAKES_BACK) != 0
    taken_back = {_properties(state, position).get(_TAKEN_BACK) for position in units["position"][marks].tolist()}
    kept = ~marks
    for index in np.flatnonzero(kept & np.isin(slot_at_ms, slot_at_ms[marks])).tolist():
        own = _properties(state, int(units["position"][index]))
        key = own.get(record.UNIQ_KEY)
        # The later 5.x put the topic in front.
        kept[index] = taken_back.isdisjoint((key, f"{own.get(record.REAL_TOPIC)}+{key}"))
    found = np.empty(int(kept.sum()), UNIT_TYPE)
    found["position"], found["size"], found["tags"] = (
        units["position"][kept],
        units["record_size"][kept],
        slot_at_ms[kept],
    )
    rolled = (units["magic"][kept] & _ROLLED) != 0
    found[rolled] = _dated(state, found[rolled])
    return found


def _dated(state: State, units: Units) -> Units:
    """With the due times of their records."""
    for index, position in enumerate(units["position"].tolist()):
        due = _properties(state, position).get(_DUE, "")
        if due.isdigit() and len(due) <= 18:
            units["tags"][index] = int(due)
    return units


def _properties(state: State, position: int) -> dict[str, str]:
    found = message(state, position)
    return decode_properties(found.properties) if found is not None else {}
