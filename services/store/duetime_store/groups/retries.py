"""Failed messages that wait in lanes for their next attempt: copies on their way to %RETRY%group.

Their number is known without reading (counting/counts.py). Lanes that have some are scanned for the first due time, and
for copies that end before it: with their topic, by a reset of their group, or by hand.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_format.names import RETRY_PREFIX, retry_topic
from duetime_format.properties import decode_properties
from duetime_format.units import FILLER_SIZE, Ints, dues_of

from duetime_store.counting.cells import MINUTE_MS, TIME_END, lane_keys, pieces, starts_of, topics_of
from duetime_store.counting.counts import CountSnapshot
from duetime_store.counting.ledger import LOOK_ENTRIES
from duetime_store.lanes.lane import PENDING, ShardLane
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.ends import cancel
from duetime_store.writing.store import Store

_BEFORE_ALL = LanePlace(-(1 << 62), -1)
_AFTER_ALL_MS = 1 << 62
# Records read between two reads of the clock.
_PIECE = 32

# Whether a copy with these properties is wanted.
Judge = Callable[[Mapping[str, str]], bool]


class WaitingCopies(NamedTuple):
    """Copies in one lane, and their due times."""

    lane: ShardLane
    entries: Ints
    dues: Ints


class WaitingRetries:
    """The copies of all groups of the shard."""

    def __init__(self, store: Store, turns: ScanTurns) -> None:
        self._store = store
        self._ledger = store.ledger
        self._lanes = store.lanes
        self._turns = turns

    # --- counting ---------------------------------------------------------------------------------------------------

    @property
    def is_counting(self) -> bool:
        """Whether lanes are being recounted after a start: until then counts are too small."""
        return bool(self._ledger.counts.suspects)

    def count(self, group: str) -> int:
        number = self._number(group)
        return 0 if number is None else self._ledger.counts.of_topic(number)

    def counts(self) -> dict[str, int]:
        """Counts by group, of all groups that ever had a copy. Other threads call it too."""
        ledger = self._ledger
        numbers = list(ledger.numbers.retries)
        return {ledger.numbers.names[one].decode()[len(RETRY_PREFIX) :]: ledger.counts.of_topic(one) for one in numbers}

    def _number(self, group: str) -> int | None:
        return self._ledger.numbers.find(retry_topic(group).encode())

    def _lanes_with(self, number: int) -> Iterable[ShardLane]:
        """The lanes that may have copies with this topic number."""
        counts = self._ledger.counts
        by_lane = counts.followed.get(number, {})
        return [lane for lane in self._lanes if by_lane.get(lane.number) or lane.number in counts.suspects]

    async def first_due_at_ms(self, group: str) -> int:
        """The due time of the group's first copy; 0: none waits."""
        number = self._number(group)
        if number is None or not self.count(group):
            return 0
        first_ms = _AFTER_ALL_MS
        with self._turns.walk() as walk:
            walk.start()
            snapshot = self._ledger.counts.snapshot()
            for lane in self._lanes_with(number):
                start_ms = await _first_span_ms(walk, snapshot, lane.number, number)
                if start_ms < first_ms:
                    first_ms = min(first_ms, await self._first_in(walk, lane, number, start_ms, first_ms))
        return 0 if first_ms == _AFTER_ALL_MS else first_ms

    async def _first_in(self, walk: YieldingScan, lane: ShardLane, number: int, start_ms: int, stop_ms: int) -> int:
        """The first due time in [start_ms, stop_ms); `stop_ms` if there is none."""
        place = LanePlace(start_ms, -1)
        while True:
            rows = lane.scan(place, stop_ms, LOOK_ENTRIES)
            own = np.flatnonzero(self._ledger.topics_of(lane, rows.entries, rows.topics) == number)
            if len(own):
                return int(rows.dues[own[0]])
            if len(rows.entries) < LOOK_ENTRIES:
                return stop_ms
            place = LanePlace(int(rows.dues[-1]), int(rows.entries[-1]))
            await walk.turn_if_over()

    # --- finding ----------------------------------------------------------------------------------------------------

    async def find(
        self, group: str, wanted: Judge | None = None, before: Mapping[int, int] | None = None
    ) -> list[WaitingCopies]:
        """The wanted copies of the group; None: all. `before`: for each lane, the first entry to leave out."""
        found: list[WaitingCopies] = []
        number = self._number(group)
        if number is None:
            return found
        with self._turns.walk() as walk:
            walk.start()
            for lane in self._lanes_with(number):
                place = _BEFORE_ALL
                while True:
                    rows = lane.scan(place, _AFTER_ALL_MS, LOOK_ENTRIES)
                    own = self._ledger.topics_of(lane, rows.entries, rows.topics) == number
                    if before is not None:
                        own &= rows.entries < before.get(lane.number, 0)
                    entries, dues = rows.entries[own], rows.dues[own]
                    if wanted is not None:
                        chosen = await self._judge(walk, lane, entries, wanted)
                        entries, dues = entries[chosen], dues[chosen]
                    if len(entries):
                        found.append(WaitingCopies(lane, entries, dues))
                    if len(rows.entries) < LOOK_ENTRIES:
                        break
                    place = LanePlace(int(rows.dues[-1]), int(rows.entries[-1]))
                    await walk.turn_if_over()
        return found

    async def _judge(self, walk: YieldingScan, lane: ShardLane, entries: Ints, wanted: Judge) -> Ints:
        chosen: list[int] = []
        for index, (position, size, _) in enumerate(lane.units(entries).tolist()):
            properties = self._properties(position, size)
            if properties is not None and wanted(properties):
                chosen.append(index)
            if index % _PIECE == _PIECE - 1:
                await walk.turn_if_over()
        return np.array(chosen, np.int64)

    def _properties(self, position: int, size: int) -> Mapping[str, str] | None:
        if size in (0, FILLER_SIZE):
            return None
        try:
            return decode_properties(record.decode(self._store.read_record(position, size)).properties)
        except DamagedBytes:
            # It will be quarantined.
            return None

    def named(self, group: str, by_lane: Mapping[int, set[int]]) -> list[WaitingCopies]:
        """The group's copies among these entries."""
        number = self._number(group)
        found = []
        for lane_number, numbers in sorted(by_lane.items()):
            if number is None or lane_number not in self._lanes:
                continue
            lane, entries = self._lanes[lane_number], np.array(sorted(numbers), np.int64)
            entries = entries[lane.states(entries) == PENDING]
            units = lane.units(entries)
            own = self._ledger.records.of(units) == number
            found.append(WaitingCopies(lane, entries[own], dues_of(units["tags"][own])))
        return found

    # --- ending -----------------------------------------------------------------------------------------------------

    def cancel(self, found: Sequence[WaitingCopies]) -> int:
        """Stages the ends of those that still wait. Returns their number. Raises: ReadOnly."""
        ended = []
        for lane, entries, dues in found:
            still = np.flatnonzero(lane.states(entries) == PENDING)
            still = still[np.argsort(entries[still])]
            if len(still):
                ended.append((lane, entries[still], dues[still]))
        if ended:
            cancel(self._store, ended)
        return sum(len(entries) for _, entries, _ in ended)


async def _first_span_ms(walk: YieldingScan, snapshot: CountSnapshot, lane: int, topic: int) -> int:
    """The start of the first span of a lane in which a copy of the topic is due."""
    for piece in pieces(snapshot.columns, *lane_keys(lane)):
        own = piece.keys[topics_of(piece.keys) == topic]
        if len(own):
            return int(starts_of(own[:1])[0]) * MINUTE_MS
        await walk.turn_if_over()
    return TIME_END * MINUTE_MS
