"""Books published entries, those that come to lanes and those that leave them, into the table of counts."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from duetime_format.columns import KEY_CRCS, KEY_OF, REAL_OF
from duetime_format.compiled import twin
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.units import UNIT_TYPE, Ints, are_ended, dues_of

from duetime_store.counting.cells import keys_of, minutes_of
from duetime_store.counting.counts import Counts
from duetime_store.counting.records import RecordTopics
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.lanes.order.topics import NO_TOPIC, TopicNumbers
from duetime_store.log.intake import Intake

# Entries whose records are read in one step of a count.
LOOK_ENTRIES = 512
_ASIDE = QUARANTINE_TOPIC.encode()
_NONE = np.empty(0, np.int64)


class LedgerRows(NamedTuple):
    """Entries of a lane, their due times, and the numbers of their topics; -1: they are quarantined. Keys are those of
    ShardLane.added."""

    lane: ShardLane
    entries: Ints
    dues: Ints
    topics: Ints
    keys: Ints


def arrivals(units: bytes, columns: Ints, key: int, numbers: list[int], first: int) -> tuple[Ints, Ints, Ints, Ints]:
    """(entries, due times, topics, keys) of the records of one key; see LedgerRows.

    Args:
        units: of these records.
        columns: of the put; see RecordRun.
        key: -1: all records are of one key.
        numbers: the topics of the put's destinations; the last one is for records without one.
    """
    placed = np.frombuffer(units, UNIT_TYPE)
    own = slice(None) if key < 0 else columns[KEY_OF] == key
    entries = np.arange(first, first + len(placed))
    return entries, placed["tags"].astype(np.int64), np.array(numbers)[columns[REAL_OF][own]], columns[KEY_CRCS][own]


_compiled = twin("duetime_store.counting._cells")
quickest_arrivals = arrivals if _compiled is None else _compiled.arrivals


class Ledger:
    """The table, and the objects that keep it."""

    def __init__(self, counts: Counts, numbers: TopicNumbers, records: RecordTopics) -> None:
        self.counts = counts
        self.numbers = numbers
        self.records = records

    def arriving(self, lane: ShardLane, intake: Intake, key: int, first: int, units: bytes) -> LedgerRows:
        """The new entries of a lane from records of a put: those of one of its keys, from entry `first` on."""
        numbers = [self.numbers.number(name) for name in intake.destinations]
        own = -1 if len(intake.keys) == 1 else key
        # The last number is for -1.
        return LedgerRows(lane, *quickest_arrivals(units, intake.columns, own, [*numbers, NO_TOPIC], first))

    def leaving(self, lane: ShardLane, intake: Intake, entries: Ints, dues: Ints) -> LedgerRows:
        """The entries that records restore."""
        numbers = [-1 if topic == _ASIDE else self.numbers.number(topic) for topic, _ in intake.keys]
        return LedgerRows(lane, entries, dues, np.array(numbers)[intake.key_of], _NONE)

    def publish(
        self, added: Iterable[LedgerRows], restored: Iterable[LedgerRows], ended: Iterable[tuple[ShardLane, Ints]]
    ) -> None:
        """Counts published entries: after units of new ones are written, before lanes note the ones that left."""
        for rows in added:
            self.counts.change(rows.lane.number, rows.entries, rows.dues, rows.topics, 1)
        for rows in restored:
            self._restored(rows)
        for lane, entries in ended:
            self._ended(lane, entries)

    def _restored(self, rows: LedgerRows) -> None:
        topics = rows.topics
        aside = np.flatnonzero(topics < 0)
        if len(aside):
            topics = topics.copy()
            topics[aside] = self.records.of(rows.lane.units(rows.entries[aside]))
            self._doubt(rows.lane.number, rows.dues[aside], topics[aside])
        self.counts.change(rows.lane.number, rows.entries, rows.dues, topics, -1)

    def _ended(self, lane: ShardLane, entries: Ints) -> None:
        entries = np.unique(entries)
        units = lane.units(entries)
        fresh = (units["size"] > 0) & ~are_ended(units["tags"])
        if fresh.any():
            entries, units = entries[fresh], units[fresh]
            topics, dues = self.records.of(units), dues_of(units["tags"])
            lost = topics == NO_TOPIC
            self._doubt(lane.number, dues[lost], topics[lost])
            self.counts.change(lane.number, entries, dues, topics, -1)

    def _doubt(self, lane: int, dues: Ints, topics: Ints) -> None:
        """Suspects a lane that damaged entries leave: they may have been counted otherwise when they were intact."""
        keys = keys_of(lane, self.counts.grain(lane), minutes_of(dues), topics)
        for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
            if self.counts.column(int(key), int(key) + 1).counts.sum() < count:
                self.counts.suspects.add(lane)

    # --- recounting ---------------------------------------------------------------------------------------------------

    def check(self, lanes: ShardLanes) -> None:
        """Marks lanes whose counts do not add up."""
        for lane in lanes:
            if self.counts.totals.get(lane.number, 0) != lane.pending_count:
                self.counts.suspects.add(lane.number)

    def topics_of(self, lane: ShardLane, entries: Ints, topics: Ints | None) -> Ints:
        """The topics of a scan's rows."""
        return self.records.of(lane.units(entries)) if topics is None else topics.astype(np.int64)

    def recount(self, lane: ShardLane) -> None:
        """Recounts a lane at once: for lanes with few entries, and before anything serves."""
        survey = self.counts.whole(lane.number)
        while survey.place.due_at_ms < survey.stop_ms:
            rows = lane.scan(survey.place, survey.stop_ms, LOOK_ENTRIES)
            survey.look(rows.entries, rows.dues, self.topics_of(lane, rows.entries, rows.topics))
            if len(rows.entries) < LOOK_ENTRIES:
                survey.end()
        self.counts.replace(survey)
