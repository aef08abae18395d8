"""Finds the timers that a 5.x broker would still deliver: entries of queue 0 of rmq_sys_wheel_timer, by its files.

    timerlog              one unit for each timer that entered the wheel; those of an unread slot are pending
    config/timercheck     the next slot to read, and the queue's first entry that may be missing in the wheel
    queue and log         re-queued timers and marks; copies delivered by the broker

    entry is in the timer log, in a slot to be read         pending
    entry is at or after timercheck's queue offset          pending
    the timer log lacks it, or has it as one to re-queue    pending if its slot is to be read: files of the timer log
    from a slot that was read                               may be cut or missing, and the re-queued one may be lost
    its topic is rmq_sys_REVIVE_LOG_*: a receive by POP     ended: a store has it as a lease (pops.py)
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
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_format import columns, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import NAME_END, number_of
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE, Mask, Units

from duetime_shard import configs
from duetime_shard.brokers.pops import REVIVE_PREFIX
from duetime_shard.disk import ShardFiles
from duetime_shard.files import LogFiles
from duetime_shard.walk import scan_runs

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
_UNIQ_KEY, _OUT_NAME = record.UNIQ_KEY.encode(), record.TIMER_OUT_MS.encode()
_OUT = _OUT_NAME + NAME_END
_NAMES = tuple(
    name.encode()
    for name in (
        *(record.REAL_TOPIC, record.UNIQ_KEY, record.TIMER_OUT_MS, record.TIMER_DELIVER_MS),
        *(DELETED_KEY, ROLLS, ROLL_LABEL),
    )
)
# Records of one piece, and bytes of the log that are read for it in one go.
_ROWS_AT_ONCE = 4_096
_SPAN_BYTES_MAX = 4 << 20
_DELETED = DELETED_KEY.encode() + NAME_END
_REVIVE = REVIVE_PREFIX.encode()
_TIMERS = TIMER_TOPIC.encode()

ReadRecord = Callable[[int, int], bytes]


class TimerCheck(NamedTuple):
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
    def decode(cls, data: bytes) -> "TimerCheck":
        """Missing bytes count as zeros: a broker that has read no slot."""
        return cls(*_CHECK.unpack(data[:CHECK_BYTES].ljust(CHECK_BYTES, b"\0")))


def log_units(files: ShardFiles) -> np.ndarray:
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


def handover_at(files: ShardFiles, position: int) -> Handover | None:
    """The handover if it happens now, with the log's end at `position`. None: it has already happened, and no broker
    has kept timers here since."""
    if known_handover(files) is not None:
        return None
    check = (files.content(CHECK_FILE) or b"")[:CHECK_BYTES].hex()
    return Handover(check, position if are_brokers(files) else 0)


def known_handover(files: ShardFiles) -> Handover | None:
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


def are_brokers(files: ShardFiles) -> bool:
    """Whether a broker wrote the directory last, so that its timers have not been taken over."""
    if known_handover(files) is not None:
        return False
    return files.exists(CHECK_FILE) or "levels" not in (configs.load_from(files, configs.STORE).value or {})


def pending(
    files: ShardFiles, offsets: Ints, units: Units, read: ReadRecord, *, queue: int = 0, has_receives: bool = False
) -> Ints | None:
    """Offsets of the entries that are pending by a broker's files, ascending. None: no broker wrote the directory.

    DueTime's own progress is ignored: every entry written since a handover is pending, also those that DueTime
    appended again in their place. Brokers read only queue 0: an export moves the timers of other queues there, and
    leaves marks in their place.

    Args:
        offsets, units: all entries of the queue, ascending.
        read: a record's bytes, by log position and size; fewer if it is missing.
        has_receives: include a broker's own timers for messages received by POP; a store has these as leases instead.
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
    found = _pending(files, TimerCheck.decode(data), offsets[~later], units[~later], read, end, has_receives)
    return np.sort(np.concatenate([offsets[later], found]))


def _marks(offsets: Ints, units: Units, read: ReadRecord) -> list[int]:
    rows = zip(offsets.tolist(), units.tolist(), strict=True)
    found = [(offset, _record(read(position, size))) for offset, (position, size, _) in rows]
    return [offset for offset, one in found if one is not None and _DELETED in one.properties]


def _pending(
    files: ShardFiles, check: TimerCheck, offsets: Ints, units: Units, read: ReadRecord, end: int, has_receives: bool
) -> Ints:
    if not len(offsets):
        return offsets
    in_log = log_units(files)
    positions, is_unread = in_log["position"], in_log["entered_at_ms"] + in_log["delay_ms"] >= check.read_at_ms
    to_come = np.isin(units["position"], positions[is_unread]) | (offsets >= check.queue_offset)
    put_back = np.isin(units["position"], positions[~is_unread & (in_log["magic"] & _ROLLED > 0)])
    looked_at = to_come | put_back | ~np.isin(units["position"], positions)
    rows = _read_rows(offsets[looked_at], units[looked_at], to_come[looked_at], read)
    rows = rows[has_receives | ~rows["is_receive"]]
    left = _without_deleted(_without_rolled(rows[rows["is_to_come"] | (rows["out_ms"] >= check.read_at_ms)]))
    found: Ints = left["offset"][~_are_delivered(files, left, end)]
    return found.astype(np.int64)


# `key`: the hash of topic, id and TIMER_OUT_MS, shared by a timer and its copies; `id`: that of the last two. A mark
# has those of the timer that it cancels instead, in both possible slots.
_ROW = np.dtype(
    [
        ("offset", "i8"),
        ("position", "i8"),
        ("out_ms", "i8"),
        ("key", "i8"),
        ("id", "i8"),
        ("other_key", "i8"),
        ("other_id", "i8"),
        # Queued again, and by RocksDB's engine.
        ("is_rolled", "?"),
        ("is_labelled", "?"),
        ("is_mark", "?"),
        # A receive by POP.
        ("is_receive", "?"),
        # Pending by the wheel or timercheck, not only by its slot.
        ("is_to_come", "?"),
    ]
)
_Rows = npt.NDArray[np.void]


def _read_rows(offsets: Ints, units: Units, to_come: Mask, read: ReadRecord) -> _Rows:
    """A row for each record that is there, ascending; brokers skip the others."""
    parts = [np.empty(0, _ROW)]
    for first in range(0, len(offsets), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        there, records = _intact(_records(units[part], read))
        found = (offsets[part][there], units["position"][part][there], to_come[part][there])
        where = zip(*(column.tolist() for column in found), strict=True)
        rows = zip(where, records, zip(*_values(records, _NAMES), strict=True), strict=True)
        parts.append(np.array([_row(*row) for row in rows], _ROW))
    return np.concatenate(parts)


def _records(units: Units, read: ReadRecord) -> list[bytes]:
    """The bytes at these units; records that are near each other are read together."""
    rows = units[["position", "size"]].tolist()
    begin, stop = min(at for at, _ in rows), max(at + size for at, size in rows)
    data = read(begin, stop - begin) if stop - begin <= _SPAN_BYTES_MAX else b""
    if len(data) == stop - begin:
        return [data[at - begin : at - begin + size] for at, size in rows]
    return [read(at, size) for at, size in rows]


def _intact(found: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Indices of whole records, and these."""
    there = [index for index, data in enumerate(found) if len(data) > layout.PREFIX_BYTES and _is_whole(data)]
    records = [found[index] for index in there]
    try:
        _values(records, ())
    except DamagedBytes:
        there = [index for index in there if _record(found[index]) is not None]
        records = [found[index] for index in there]
    return there, records


def _is_whole(data: bytes) -> bool:
    return layout.size_at(data) == len(data)


def _values(records: list[bytes], names: tuple[bytes, ...]) -> list[list[bytes | None]]:
    return columns.values(b"".join(records), [len(data) for data in records], names)


def _row(where: tuple[int, int, bool], data: bytes, values: tuple[bytes | None, ...]) -> tuple[int | bool, ...]:
    """The row of a record with its offset, position and whether it is to come; `values` of _NAMES."""
    offset, position, is_to_come = where
    topic, message_id, out, deliver, deleted, rolls, label = values
    out_ms = _number(out)
    flags = _number(rolls) > 0, label is not None, deleted is not None, (topic or b"").startswith(_REVIVE), is_to_come
    if deleted is None:
        name = message_id or _other_id(data)
        return offset, position, out_ms, _hash(topic or b"", name, out_ms), hash((name, out_ms)), 0, 0, *flags
    # The topic is named since 5.3.2; none has a plus.
    of, _, name = deleted.partition(b"+")
    # A recall asks for the ms after its target's slot, and gets that slot unless the precision was changed meanwhile.
    slots = out_ms, _number(deliver) - 1
    keys, ids = ([_hash(of, name, slot) for slot in slots], [hash((deleted, slot)) for slot in slots])
    return offset, position, out_ms, keys[0], ids[0], keys[1], ids[1], *flags


def _hash(topic: bytes, message_id: bytes, out_ms: int) -> int:
    return hash((topic, message_id, out_ms))


def _other_id(data: bytes) -> bytes:
    """Other fields shared by copies, if there is no id."""
    found = record.decode(data, check_crc=False)
    return f"{found.born_at_ms} {found.body_crc} {found.flag}".encode()


def _record(data: bytes) -> Record | None:
    try:
        return record.decode(data, check_crc=False)
    except DamagedBytes:
        return None


def _number(text: bytes | None) -> int:
    return number_of(text) or 0


def _without_deleted(rows: _Rows) -> _Rows:
    """Timers without marks, and without those that marks cancel."""
    marks, timers = rows[rows["is_mark"]], rows[~rows["is_mark"]]
    gone = np.isin(timers["key"], np.concatenate([marks["key"], marks["other_key"]]))
    gone |= np.isin(timers["id"], np.concatenate([marks["id"], marks["other_id"]]))
    left: _Rows = timers[~gone]
    return left


def _without_rolled(rows: _Rows) -> _Rows:
    """Drops re-queued timers: keeps the newest of each key, as many as were sent."""
    order = np.lexsort((rows["offset"], rows["key"], rows["is_mark"]))
    firsts, group_of = _groups(rows["key"][order], rows["is_mark"][order])
    if not len(firsts):
        return rows
    # The first records of rolled ones may have left the log. RocksDB has one key for all of them.
    sent = np.maximum(np.add.reduceat((~rows["is_rolled"][order]).astype(np.int64), firsts), 1)
    sent[np.logical_or.reduceat(rows["is_labelled"][order], firsts)] = 1
    stops = np.append(firsts[1:], len(order))
    newest = stops[group_of] - np.arange(len(order)) <= sent[group_of]
    return rows[np.sort(order[newest])]


def _groups(keys: Ints, others: Mask) -> tuple[Ints, Ints]:
    """The first index of each group of equal values, and the group of each."""
    opens = np.ones(len(keys), np.bool_)
    opens[1:] = (keys[1:] != keys[:-1]) | (others[1:] != others[:-1])
    return np.flatnonzero(opens), np.cumsum(opens) - 1


def _are_delivered(files: ShardFiles, timers: _Rows, end: int) -> Mask:
    """Whether the log has a copy of each, after the first of these timers; the first of equal ones come first."""
    delivered = np.zeros(len(timers), np.bool_)
    if not len(timers):
        return delivered
    log = LogFiles(files)
    start = max(log.first_by(int(timers["out_ms"].min())), int(timers["position"].min()))
    copies = np.concatenate([np.empty(0, np.int64), *_copies(log, start, end)])
    log.close()
    keys, counts = np.unique(copies[np.isin(copies, timers["key"])], return_counts=True)
    if not len(keys):
        return delivered
    order = np.lexsort((timers["offset"], timers["key"]))
    firsts, group_of = _groups(timers["key"][order], delivered)
    known = timers["key"][order][firsts]
    places = np.minimum(np.searchsorted(keys, known), len(keys) - 1)
    copied = np.where(keys[places] == known, counts[places], 0)
    delivered[order] = np.arange(len(order)) - firsts[group_of] < copied[group_of]
    return delivered


def _copies(log: LogFiles, position: int, end: int) -> Iterator[Ints]:
    """Keys of the records in [position, end) that the broker delivered at their time, without rolled ones."""
    for item in scan_runs(log, position, end):
        if isinstance(item, RecordRun) and _OUT in item.data:
            topics = [topic for topic, _ in item.keys]
            data = item.data[int(item.starts[0]) : item.end]
            ids, outs = columns.values(data, item.sizes.tolist(), (_UNIQ_KEY, _OUT_NAME))
            found = [
                _hash(topics[key], name or _other_id(item.data[start : start + size]), _number(out))
                for key, name, out, start, size in zip(
                    item.key_of.tolist(), ids, outs, item.starts.tolist(), item.sizes.tolist(), strict=True
                )
                if out is not None and topics[key] != _TIMERS
            ]
            yield np.array(found, np.int64)
