"""Rows for a timer lane's order that the order on disk lacks, made from units and records."""

from collections.abc import Callable, Iterator

import numpy as np
from duetime_format import record, timers
from duetime_format.columns import RecordRun, parse, take
from duetime_format.errors import DamagedBytes
from duetime_format.units import FILLER_SIZE, Ints, Units, are_ended, dues_of, spans

from duetime_store.lanes.order.rows import OrderRows, U32s
from duetime_store.lanes.order.topics import NO_TOPIC, TopicNumbers
from duetime_store.log.commitlog import CommitLog

_STEP_UNITS = 8_192
# Records read together.
_SPAN_BYTES = 1024 * 1024


class RowReader:
    """Makes rows from units and the records that they name."""

    def __init__(self, log: CommitLog, topics: TopicNumbers) -> None:
        self._log = log
        self._topics = topics

    def rows(self, read: Callable[[int, int], Units], first: int, without: Ints) -> Iterator[OrderRows]:
        """Rows of the entries from `first` on that have a record and have not ended, in order of entry. Due times come
        from the records, as units have no CRC. For an unreadable record the unit's due time counts, without topic and
        key. (A damaged but readable record may give wrong ones; it is quarantined when it is due.)

        Args:
            read: the units from an entry on, at most the given number.
            without: entries to leave out, ascending.
        """
        entry = first
        while len(units := read(entry, _STEP_UNITS)):
            entries = np.arange(entry, entry + len(units))
            keep = (units["size"] != FILLER_SIZE) & (units["size"] > 0) & ~are_ended(units["tags"])
            keep &= ~np.isin(entries, without[slice(*np.searchsorted(without, (entry, entry + len(units))))])
            entry += len(units)
            entries, units = entries[keep], units[keep]
            for start, stop in spans(units, _SPAN_BYTES, _STEP_UNITS):
                yield self._rows(entries[start:stop], units[start:stop])

    def _rows(self, entries: Ints, units: Units) -> OrderRows:
        dues = dues_of(units["tags"])
        topics, keys = np.zeros(len(units), np.uint32), np.zeros(len(units), np.uint32)
        records = [self._log.read(position, size) for position, size, _ in units.tolist()]
        run = _parsed(records, units)
        if run is not None:
            self._fill(run, np.arange(len(units)), dues, topics, keys)
            return OrderRows(dues, entries, topics, keys)
        for index, data in enumerate(records):
            # It may be a broker's, of another version of the format.
            one = take(data, 0, int(units["position"][index]))
            if one.count:
                self._fill(one, np.array([index]), dues, topics, keys)
        return OrderRows(dues, entries, topics, keys)

    def _fill(self, run: RecordRun, indices: Ints, dues: Ints, topics: U32s, keys: U32s) -> None:
        numbers = [self._topics.number(topic) for topic in run.destinations]
        # The last number is for records without a destination.
        topics[indices] = np.array([*numbers, NO_TOPIC])[run.real_of]
        keys[indices] = run.key_crcs
        true_dues = timers.dues(run, np.arange(run.count))
        for index in np.flatnonzero(true_dues != dues[indices]).tolist():
            start = int(run.starts[index])
            try:
                record.decode(run.data[start : start + int(run.sizes[index])])
            except DamagedBytes:
                # None of its values is trusted.
                continue
            dues[indices[index]] = true_dues[index]


def _parsed(records: list[bytes], units: Units) -> RecordRun | None:
    """All records at once; None: not all are plain."""
    try:
        run = parse(b"".join(records))
    except DamagedBytes:
        return None
    return run if run.count == len(units) and (run.sizes == units["size"]).all() else None
