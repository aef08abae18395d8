"""Lanes of an export, written so that a 5.x broker delivers the pending messages, and no others.

    levels   a broker reads each from delayOffset.json's offset to its end: ended entries there are silenced
    timers   a broker reads queue 0 from timercheck's offset to its end, into its own, empty wheel:

             entry     0 ......... start ........... end ............... end + n
             pending   appended ──────┼─ as it is ────┼──▶ copies ────────────▶
             ended     never read     │ silenced      │

Timers of other queues, which brokers do not read, are appended to queue 0 as well. An appended timer counts as rolled
(TIMER_ROLL_TIMES): a reader of the whole queue takes it for the earlier one. `start` is the offset at which the fewest
entries have to be appended or silenced. There are no timerwheel and no timerlog: a broker creates them. With its
timers in RocksDB it begins at the higher offset of timercheck and RocksDB, and a new RocksDB has 0.

Cancelled and replaced entries are silenced everywhere, because a broker may lose its offsets. So are pending timers of
other queues, which are also in queue 0. For a broker without timers all of them are silenced, and written to a file.
Thus no later reader, a 5.x broker or DueTime, delivers one of them a second time.

At its start a broker puts an overdue timer into a slot that has passed, and reads the slots from timercheck's time.
That time is therefore before all pending timers, but at most an hour back; timers due earlier are due at that time.

Source: RocketMQ 5.3.3 TimerMessageStore (recover, enqueue, dequeue), BrokerController.start; 5.5.1
TimerMessageRocksDBStore.start.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import numpy as np
from duetime_format import record
from duetime_format.columns import Ints
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import TIMER_LANE_FIRST, is_timer_lane
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import NAME_END
from duetime_format.record import Record
from duetime_format.units import UNIT_TYPE, Mask, Units, dues_of, joined
from duetime_shard.brokers.pops import REVIVE_PREFIX
from duetime_shard.brokers.timers import TimerCheck, known_handover
from duetime_shard.pending import PendingLane
from duetime_shard.shard import DirectoryState

from duetime_store.offline.logend import LogEnd
from duetime_store.offline.silencing import silenced_level, silenced_timer, with_out, with_roll

_SLOT_MS = 1_000
_OVERDUE_MS = 3_600_000
_FIRST = TIMER_LANE_FIRST
_NONE = np.empty(0, np.int64)
_I64_MAX = (1 << 63) - 1

_REVIVED = record.REAL_TOPIC.encode() + NAME_END + REVIVE_PREFIX.encode()

Change = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of a lane that have records, ascending."""

    lane: int
    entries: Ints
    units: Units
    gone: Mask

    @classmethod
    def of(cls, lane: PendingLane) -> "_Entries":
        parts = list(lane.entries(0))
        return cls(
            lane.number,
            np.concatenate([_NONE, *(entries for entries, _, _ in parts)]),
            joined(units for _, units, _ in parts),
            np.concatenate([np.zeros(0, np.bool_), *(gone for _, _, gone in parts)]),
        )

    def at(self, chosen: Mask) -> "_Entries":
        return _Entries(self.lane, self.entries[chosen], self.units[chosen], self.gone[chosen])

    @property
    def dues(self) -> Ints:
        return dues_of(self.units["tags"].astype(np.int64))


class LaneExport:
    """Writes the lanes' records into a copy of the log: first `append`, then `silence`; `check` is for timercheck."""

    def __init__(self, state: DirectoryState, lanes: dict[int, PendingLane], now_ms: int) -> None:
        self._state = state
        self._levels = [lane for number, lane in lanes.items() if not is_timer_lane(number)]
        self._timers = [_Entries.of(lane) for number, lane in lanes.items() if is_timer_lane(number)]
        self._end_receives()
        self.pending_count = sum(int((~own.gone).sum()) for own in self._timers)
        self._now_ms = now_ms
        self._read_ms = self._first_slot()
        self.silenced_count = 0
        # Queue 0: the first entry that a broker reads, the end before this, and the units of appended records.
        queue = state.queues.get((TIMER_TOPIC, 0))
        self.start = self.end = queue.max_offset if queue is not None else 0
        self.appended = np.empty(0, UNIT_TYPE)

    def _end_receives(self) -> None:
        """Ends a broker's own timers for messages received by POP: these were taken over, and a broker would make the
        messages visible again."""
        handover = known_handover(self._state.files)
        if handover is None:
            return
        for own in self._timers:
            for index in np.flatnonzero(~own.gone & (own.units["position"] < handover.position)).tolist():
                position, size, _ = own.units[index].tolist()
                found = self._read(position, size)
                if found is not None and _REVIVED in found[1].properties:
                    own.gone[index] = True

    def _first_slot(self) -> int:
        """The first slot that a broker reads: before all pending timers, or an hour ago."""
        earliest = min((int(own.dues[~own.gone].min()) for own in self._timers if not own.gone.all()), default=None)
        bound = self._now_ms - _OVERDUE_MS
        first = bound if earliest is None else max(earliest - _SLOT_MS, bound)
        return first - first % _SLOT_MS

    def _is_overdue(self, due_at_ms: int) -> bool:
        """Whether a broker might miss it; such a timer was due an hour ago."""
        return due_at_ms <= min(self._read_ms + _SLOT_MS, self._now_ms - _OVERDUE_MS + _SLOT_MS)

    def append(self, log_end: LogEnd) -> None:
        """Appends the timers that a broker would not read at their place."""
        units: list[tuple[int, int, int]] = []
        for own in self._timers:
            chosen = ~own.gone
            if own.lane == _FIRST:
                self.start = _start(own, self.end)
                chosen &= own.entries < self.start
            for unit, due_at_ms in zip(own.units[chosen].tolist(), own.dues[chosen].tolist(), strict=True):
                found = self._read(unit[0], unit[1])
                if found is not None:
                    data, properties = self._renumbered(found[1], self.end + len(units), due_at_ms)
                    units.append((log_end.append(data, properties), len(data), 0))
        self.appended = np.array(units, UNIT_TYPE)

    def _renumbered(self, found: Record, offset: int, due_at_ms: int) -> tuple[bytes, bytes]:
        """The record with another place in queue 0, and its properties."""
        properties = with_roll(found.properties)
        if self._is_overdue(due_at_ms):
            properties = with_out(properties, self._read_ms)
        moved = replace(found, queue=0, queue_offset=offset, properties=properties)
        return record.encode(moved), properties

    def silence(self, log_end: LogEnd, topics: Container[str], *, with_timers: bool) -> None:
        """Rewrites ended records that a broker may read, and moves overdue timers to the first slot read."""
        for lane in self._levels:
            first = lane.progress.first
            for entries, units, gone in lane.entries(0):
                chosen = (gone & (entries >= first)) | self._are_ended(lane.number, entries)
                for position, size, _ in units[chosen].tolist():
                    self._silence(log_end, position, size, lambda found: silenced_level(found, topics))
        for own in self._timers:
            read = own.entries >= (self.start if own.lane == _FIRST else _I64_MAX)
            chosen = (own.gone & read) | self._are_ended(own.lane, own.entries)
            for position, size, _ in own.units[chosen].tolist():
                self._silence(log_end, position, size, lambda found: silenced_timer(found, self._read_ms, topics))
            # These are somewhere else as well.
            moved = ~own.gone if own.lane != _FIRST or not with_timers else np.zeros(len(own.gone), np.bool_)
            for position, size, _ in own.units[moved].tolist():
                self._rewrite(log_end, position, size, lambda found: silenced_timer(found, self._read_ms, topics))
            left = own.at(~own.gone & read)
            for unit, due_at_ms in zip(left.units.tolist(), left.dues.tolist(), strict=True):
                if self._is_overdue(due_at_ms):
                    self._rewrite(log_end, unit[0], unit[1], lambda found: with_out(found.properties, self._read_ms))

    def _are_ended(self, lane: int, entries: Ints) -> Mask:
        """Whether entries were cancelled or replaced, by the log."""
        return np.isin(entries, self._state.ends.ends(lane).ended_entries)

    def _silence(self, log_end: LogEnd, position: int, size: int, change: Change) -> None:
        self.silenced_count += self._rewrite(log_end, position, size, change)

    def _rewrite(self, log_end: LogEnd, position: int, size: int, change: Change) -> bool:
        found = self._read(position, size)
        if found is None or position >= self._state.end:
            return False
        log_end.rewrite(position, found[0], change(found[1]))
        return True

    def _read(self, position: int, size: int) -> tuple[bytes, Record] | None:
        """A record; None: it has left or is damaged, and brokers skip it."""
        data = self._state.log.read(position, size)
        try:
            found = record.decode(data)
        except DamagedBytes:
            return None
        return (data, found) if found.position == position and found.size == len(data) else None

    @property
    def check(self) -> TimerCheck:
        """The content of timercheck."""
        return TimerCheck(self._read_ms, 0, self.start, self.start, 0, self._now_ms, 0)

    def expected(self) -> Ints:
        """Entries of queue 0 that a broker has to find pending."""
        kept = [own.entries[~own.gone & (own.entries >= self.start)] for own in self._timers if own.lane == _FIRST]
        return np.concatenate([_NONE, *kept, np.arange(self.end, self.end + len(self.appended))])


def _start(own: _Entries, end: int) -> int:
    """The first entry to read, chosen so that the fewest are appended or silenced."""
    before = np.concatenate([[0], np.cumsum(~own.gone)])
    ended = np.concatenate([[0], np.cumsum(own.gone)])
    index = int(np.argmin(before + ended[-1] - ended))
    return int(own.entries[index]) if index < len(own.entries) else end
