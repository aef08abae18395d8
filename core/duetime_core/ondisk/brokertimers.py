"""Finds the timers that a 5.x broker would still deliver: entries of queue 0 of rmq_sys_wheel_timer, by its files.

    timerlog              one unit for each timer that entered the wheel; those of an unread slot are pending
    config/timercheck     the next slot to read, and the queue's first entry that may be missing in the wheel
    queue and log         re-queued timers and marks; copies delivered by the broker

    entry is in the timer log, in a slot to be read         pending
    entry is at or after timercheck's queue offset          pending
    the timer log lacks it, or has it as one to re-queue    pending if its slot is to be read: files of the timer log
    from a slot that was read                               may be cut or missing, and the re-queued one may be lost
    all others                                              ended

A mark that cancels another timer (TIMER_DEL_UNIQKEY) has ended, and so has the timer with its UNIQ_KEY, preceded by the
topic since 5.3.2. A timer beyond the wheel's range is rolled: queued again, with TIMER_ROLL_TIMES
increased by one. A kill may leave both, or two newer ones; the newest count, as many as were sent. A timer has also
ended if the log has its copy after it, in its own topic: it was delivered after timercheck was written. So an
older timercheck works too, or none: as if no slot had been read.

A broker from 5.4 may keep its timers in RocksDB instead (timerRocksDBEnable). Then timercheck and the timer log do not
change, so every entry is to be read, and the log decides. Its copies are stored up to two seconds before TIMER_OUT_MS,
which is their only mark. It queues each timer again every hour, with TIMER_ROLL_LABEL: all of these are one timer.

A broker recovers the wheel from the last two files of the timer log, drops timers due more than seven days ago, and
delivers again those that a kill kept out of timercheck. This module reads the whole timer log, drops nothing, and finds
deliveries in the log. It ignores the wheel's file, so its size and precision do not matter: a slot is the value of
TIMER_OUT_MS, a multiple of the precision.

Source: RocketMQ 5.3.3 TimerMessageStore (recover, enqueue, dequeue), TimerLog, TimerCheckpoint; 5.5.1
TimerMessageRocksDBStore.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from duetime_format import record
from duetime_format.columns import Ints, Run
from duetime_format.errors import Damaged
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import NAME_END, decode_properties
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE, Units

from duetime_core.ondisk import configs
from duetime_core.ondisk.files import LogFiles
from duetime_core.ondisk.folder import Files
from duetime_core.ondisk.scan import Found, scan_runs

CHECK_FILE = "config/timercheck"
CHECK_BYTES = 56
DELETED_KEY = "TIMER_DEL_UNIQKEY"
ROLLS = "TIMER_ROLL_TIMES"
ROLL_LABEL = "TIMER_ROLL_LABEL"
# Key in duetimeStore.json.
HANDOVER = "timers"
LOG_UNIT = np.dtype(
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
_CHECK = Struct(">qqqqqqq")
_MAGIC_MAX = 15
_ROLLED = 2
_HEX = re.compile("([0-9a-f]{2})*")
_I64_MAX = (1 << 63) - 1
_OUT = record.TIMER_OUT_MS.encode() + NAME_END
_DELETED = DELETED_KEY.encode() + NAME_END
_TIMERS = TIMER_TOPIC.encode()
# Tolerance for brokers' clocks set back.
_CLOCK_STEP_MS = 600_000

ReadRecord = Callable[[int, int], bytes]


class Check(NamedTuple):
    """The content of config/timercheck."""

    read_at_ms: int
    log_flushed: int
    queue_offset: int
    master_offset: int
    state_version: int = 0
    written_at_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        return _CHECK.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> "Check":
        """Missing bytes count as zeros: a broker that has read no slot."""
        return cls(*_CHECK.unpack(data[:CHECK_BYTES].ljust(CHECK_BYTES, b"\0")))


def log_units(files: Files) -> np.ndarray:
    """The valid units of the timer log."""
    parts = [np.empty(0, LOG_UNIT)]
    for base, file in sorted(LogFiles(files, "timerlog").files.items()):
        data = file.read_file(base, file.size)
        units = np.frombuffer(data, LOG_UNIT, len(data) // LOG_UNIT.itemsize)
        is_unit = (units["size"] == LOG_UNIT.itemsize) & (units["magic"] >= 0) & (units["magic"] <= _MAGIC_MAX)
        parts.append(units[is_unit])
    return np.concatenate(parts)


class Handover(NamedTuple):
    """The point at which DueTime took over a broker's timers: the broker's timercheck, in hex, and the end of the log.
    Empty and 0 if no broker had kept timers."""

    check: str
    position: int

    def to_dict(self) -> dict[str, Any]:
        """The value in duetimeStore.json, under HANDOVER."""
        return {"timercheck": self.check, "fromPosition": self.position}


def handover_at(files: Files, position: int) -> Handover | None:
    """The handover if it happens now, with the log's end at `position`. None: it has already happened, and no broker
    has kept timers here since."""
    if known_handover(files) is not None:
        return None
    check = (files.content(CHECK_FILE) or b"")[:CHECK_BYTES].hex()
    return Handover(check, position if are_brokers(files) else 0)


def known_handover(files: Files) -> Handover | None:
    """The past handover; None: there is none, or a broker has served the directory since."""
    known = (configs.load_from(files, configs.STORE).value or {}).get(HANDOVER)
    if not isinstance(known, dict):
        return None
    check, position = known.get("timercheck"), known.get("fromPosition")
    if not (isinstance(check, str) and _HEX.fullmatch(check) and isinstance(position, int)):
        return None
    data = files.content(CHECK_FILE)
    # A missing file does not indicate another broker.
    return Handover(check, position) if data is None or data[:CHECK_BYTES].hex() == check else None


def are_brokers(files: Files) -> bool:
    """Whether a broker wrote the directory last, so that its timers have not been taken over."""
    if known_handover(files) is not None:
        return False
    return files.exists(CHECK_FILE) or "levels" not in (configs.load_from(files, configs.STORE).value or {})


def pending(files: Files, offsets: Ints, units: Units, read: ReadRecord, *, queue: int = 0) -> Ints | None:
    """Offsets of the entries that are pending by a broker's files, ascending. None: no broker wrote the directory.

    DueTime's own progress is ignored: every entry written since a handover is pending, also those that DueTime
    appended again in their place. Brokers read only queue 0: an export moves the timers of other queues there, and
    leaves marks in their place.

    Args:
        offsets, units: all entries of the queue, ascending.
        read: a record's bytes, by log position and size; fewer if it is missing.
    """
    handover = known_handover(files)
    if handover is None and not are_brokers(files):
        return None
    data = files.content(CHECK_FILE) or bytes.fromhex(handover.check if handover else "")
    end = handover.position if handover else _I64_MAX
    there = units["size"] != FILLER_SIZE
    offsets, units = offsets[there], units[there]
    later = units["position"] >= end
    if queue and not data:
        return offsets[~np.isin(offsets, _marks(offsets[~later], units[~later], read))]
    if queue:
        return offsets[later]
    found = _pending(files, Check.decode(data), offsets[~later], units[~later], read, end)
    return np.sort(np.concatenate([offsets[later], found]))


def _marks(offsets: Ints, units: Units, read: ReadRecord) -> list[int]:
    rows = zip(offsets.tolist(), units.tolist(), strict=True)
    found = [(offset, _record(read(position, size))) for offset, (position, size, _) in rows]
    return [offset for offset, one in found if one is not None and _DELETED in one.properties]


def _pending(files: Files, check: Check, offsets: Ints, units: Units, read: ReadRecord, end: int) -> Ints:
    if not len(offsets):
        return offsets
    in_log = log_units(files)
    positions, is_unread = in_log["position"], in_log["entered_at_ms"] + in_log["delay_ms"] >= check.read_at_ms
    to_come = np.isin(units["position"], positions[is_unread]) | (offsets >= check.queue_offset)
    put_back = np.isin(units["position"], positions[~is_unread & (in_log["magic"] & _ROLLED > 0)])
    looked_at = to_come | put_back | ~np.isin(units["position"], positions)
    rows = zip(offsets[looked_at].tolist(), units[looked_at].tolist(), to_come[looked_at].tolist(), strict=True)
    timers = []
    for offset, (position, size, _), is_to_come in rows:
        found = _record(read(position, size))
        if found is not None:
            timers.append(_timer(offset, found, is_to_come))
    known = [timer for timer in timers if timer.is_to_come or timer.key.out_ms >= check.read_at_ms]
    left = _without_deleted(_without_rolled(known))
    delivered = _delivered(files, left, end)
    return np.array([timer.offset for timer in left if timer.offset not in delivered], np.int64)


class _Key(NamedTuple):
    """The key shared by a timer and its copies."""

    topic: str
    id: str
    out_ms: int


class _Timer(NamedTuple):
    offset: int
    position: int
    key: _Key
    # Whether it was queued again, and whether by RocksDB's engine.
    is_rolled: bool
    is_labelled: bool
    # Pending by the wheel or timercheck, not only by its slot.
    is_to_come: bool
    # Key of the timer that it cancels, empty: none; and the possible slots of that timer.
    deleted: str
    deleted_ms: tuple[int, ...]


def _record(data: bytes) -> Record | None:
    """Decodes a record; None: there is none, and a broker skips it."""
    try:
        return record.decode(data, check_crc=False)
    except Damaged:
        return None


def _timer(offset: int, found: Record, is_to_come: bool) -> _Timer:
    properties = decode_properties(found.properties)
    key, deleted = _key(found, properties.get(record.REAL_TOPIC, ""), properties), properties.get(DELETED_KEY, "")
    # A recall asks for the ms after its target's slot, and gets that slot unless the precision was changed meanwhile.
    slots = (key.out_ms, _number(properties.get(record.TIMER_DELIVER_MS)) - 1)
    is_rolled, is_labelled = _number(properties.get(ROLLS)) > 0, ROLL_LABEL in properties
    return _Timer(offset, found.position, key, is_rolled, is_labelled, is_to_come, deleted, slots)


def _key(found: Record, topic: str, properties: dict[str, str]) -> _Key:
    # Other fields shared by copies, if there is no id.
    message_id = properties.get(record.UNIQ_KEY) or f"{found.born_at_ms} {found.body_crc} {found.flag}"
    return _Key(topic, message_id, _number(properties.get(record.TIMER_OUT_MS)))


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _without_deleted(timers: list[_Timer]) -> list[_Timer]:
    deleted = {(out_ms, timer.deleted) for timer in timers if timer.deleted for out_ms in timer.deleted_ms}

    def is_deleted(key: _Key) -> bool:
        return (key.out_ms, key.id) in deleted or (key.out_ms, f"{key.topic}+{key.id}") in deleted

    return [timer for timer in timers if not timer.deleted and not is_deleted(timer.key)]


def _without_rolled(timers: list[_Timer]) -> list[_Timer]:
    """Drops re-queued timers: keeps the newest of each key, as many as were sent."""
    groups: dict[tuple[_Key, str], list[_Timer]] = {}
    for timer in timers:
        groups.setdefault((timer.key, timer.deleted), []).append(timer)
    left = []
    for group in groups.values():
        # The first records of rolled ones may have left the log. RocksDB has one key for all of them.
        is_one = any(timer.is_labelled for timer in group)
        sent = 1 if is_one else max(sum(not timer.is_rolled for timer in group), 1)
        left += group[-sent:]
    return sorted(left)


def _delivered(files: Files, timers: list[_Timer], end: int) -> set[int]:
    """Offsets of timers with a copy in the log, after the timer."""
    if not timers:
        return set()
    log = LogFiles(files)
    since_ms = min(timer.key.out_ms for timer in timers) - _CLOCK_STEP_MS
    start = max(log.first_by(since_ms), min(timer.position for timer in timers))
    waiting = {timer.key for timer in timers}
    copies: Counter[_Key] = Counter()
    for copy in _copies(log, start, end):
        key = _key(copy, copy.topic, decode_properties(copy.properties))
        if key in waiting:
            copies[key] += 1
    log.close()
    found = set()
    for timer in timers:
        if copies[timer.key]:
            copies[timer.key] -= 1
            found.add(timer.offset)
    return found


def _copies(log: LogFiles, position: int, end: int) -> Iterator[Record]:
    """The records in [position, end) that the broker delivered at their time, without rolled ones."""
    for item in scan_runs(log, position, end):
        if isinstance(item, Run) and _OUT in item.data:
            others = np.array([topic != _TIMERS for topic, _ in item.keys])[item.key_of]
            for index in np.flatnonzero(others).tolist():
                if _OUT in item.properties(index):
                    yield record.decode(item.data, int(item.starts[index]), check_crc=False)
        elif isinstance(item, Found) and not item.damage and _is_copy(item.record):
            yield item.record


def _is_copy(found: Record) -> bool:
    return found.topic != TIMER_TOPIC and _OUT in found.properties
