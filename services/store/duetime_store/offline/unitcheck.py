"""Checks queue units against the records of the log: each names its record's place, and each record has one.

A run of records is compared with the units at their offsets, column by column. Units without a record are checked after
the log has been read: a reserved place, a damaged record, one after the end, or nothing at all.

A message that retention has appended again has two records with one offset: the unit names one of them, which suffices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from duetime_format import record
from duetime_format.columns import Ints, RecordRun
from duetime_format.halves import are_ended
from duetime_format.lanes import LANE_TOPICS
from duetime_format.names import DELETED_TOPIC, HALF_TOPIC, TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.units import FILLER_SIZE, UNIT, UNIT_TYPE, Mask, Units, dues_of, joined
from duetime_shard.brokers.queues import RocksQueue
from duetime_shard.brokers.timers import are_brokers, known_handover
from duetime_shard.facts import MOVED_TOPICS, Facts, is_possible, is_queue
from duetime_shard.files import QueueFiles
from duetime_shard.levels import TagsCodes
from duetime_shard.shard import DirectoryState

from duetime_store.files import configs
from duetime_store.log.segment import file_name
from duetime_store.offline.report import DamagedMessage, VerifyReport
from duetime_store.queues.deletions import FILE, load

_DELETED_KEY = (DELETED_TOPIC.encode(), 0)
_UNIQ_KEY = record.UNIQ_KEY.encode()
_UNITS_AT_ONCE = 65_536
# Offsets within this multiple of their number are read in one go.
_SPREAD_MAX = 8
# Smaller values can't be hashes: they are addresses into consumequeue_ext.
_HASH_MIN = -(1 << 31)


@dataclass(slots=True)
class CheckedRecords:
    """Records of one queue, in the order of the log."""

    offsets: Ints
    positions: Ints
    sizes: Ints
    codes: Ints
    # Hashes of their tags: a broker's tagsCodes in the timers' queue.
    hashes: Ints
    run: RecordRun
    # Their rows in it.
    index: Ints

    def id_of(self, row: int) -> str | None:
        return as_text(value_of(self.run.properties(int(self.index[row])), _UNIQ_KEY)) or None


@dataclass(slots=True)
class _QueueComparison:
    """Progress of comparing one queue."""

    files: QueueFiles
    # All units before it belong to records, except those of `gaps` and `reported`.
    seen: int
    gaps: list[tuple[int, int]] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)
    # Offsets of records out of order: copies made by retention.
    late: list[Ints] = field(default_factory=list)
    # Records without a unit: number, and the first one's offset and position.
    missing: int = 0
    first_missing: tuple[int, int] = (0, 0)


class UnitCheck:
    """Takes the records of the log in order, then finds the units that are left over."""

    def __init__(
        self, state: DirectoryState, report: VerifyReport, report_damage: Callable[[int, str, DamagedMessage], None]
    ) -> None:
        """`report_damage`: called with log position, damage and message."""
        self._report = report
        self._report_damage = report_damage
        self._codes = TagsCodes(state.history)
        self._has_ext = (state.root / "consumequeue_ext").is_dir()
        # Queues of timers are a broker's, or were before a start rebuilt them.
        handover = known_handover(state.files)
        self._has_brokers_hashes = are_brokers(state.files) or (handover is not None and handover.position > 0)
        self._killed = state.files.exists("abort")
        # Records that a start wrote again before a kill; the next start puts them in their places.
        self.unfilled = 0
        self._queues: dict[tuple[str, int], _QueueComparison] = {}
        # Deleted topics: their records up to there have no units.
        self._deleted = load(configs.load(state.config, FILE).value)
        for key, queue in state.queues.items():
            if not isinstance(queue.files, RocksQueue):
                queue.files.max_offset = _written_end(queue.files)
            self._queues[key] = _QueueComparison(queue.files, queue.files.min_offset)

    def see_run(self, run: RecordRun, facts: Facts) -> None:
        self._codes.learn(facts.changed)
        codes, positions = self._codes.of(run), run.positions
        chosen = np.flatnonzero(run.queued)
        order = chosen[np.argsort(run.key_of[chosen], kind="stable")]
        bounds = np.searchsorted(run.key_of[order], np.arange(len(run.keys) + 1)).tolist()
        for number, (topic, queue) in enumerate(run.keys):
            rows = order[bounds[number] : bounds[number + 1]]
            if len(rows):
                hashes = run.tags_codes[rows]
                columns = CheckedRecords(
                    run.offsets[rows], positions[rows], run.sizes[rows], codes[rows], hashes, run, rows
                )
                self._compare((topic.decode(), queue), columns)
        for deletion in facts.deleted:
            # Records of the topic have no units, because its queues were deleted too.
            for (name, _), checked in self._queues.items():
                if name == deletion.topic:
                    checked.missing = 0

    def _compare(self, key: tuple[str, int], rows: CheckedRecords) -> None:
        behind = rows.positions > self._deleted.position(key[0])
        if behind.all():
            self._compare_live(key, rows)
        elif behind.any():
            index = np.flatnonzero(behind)
            self._compare_live(
                key,
                CheckedRecords(
                    rows.offsets[index],
                    rows.positions[index],
                    rows.sizes[index],
                    rows.codes[index],
                    rows.hashes[index],
                    rows.run,
                    rows.index[index],
                ),
            )

    def _compare_live(self, key: tuple[str, int], rows: CheckedRecords) -> None:
        possible = (
            is_possible(rows.offsets, rows.positions) if is_queue(*key) else np.zeros(len(rows.offsets), np.bool_)
        )
        for row in np.flatnonzero(~possible).tolist():
            what = f"its queue offset {rows.offsets[row]} or its queue is impossible"
            self._report_record(key, rows, row, what)
        checked = self._queues.get(key)
        if checked is None:
            checked = self._queues[key] = _QueueComparison(QueueFiles.none(*key), 0)
        files = checked.files
        there = possible & (rows.offsets >= files.min_offset) & (rows.offsets < files.max_offset)
        missing = possible & ~there
        if key[0] in MOVED_TOPICS:
            # Copies stay in the log after their entries have left the lane.
            missing &= rows.offsets >= files.max_offset
        self._count_missing(checked, rows, missing)
        if there.all():
            self._compare_units(checked, key, rows, np.arange(len(there)))
        elif there.any():
            self._compare_units(checked, key, rows, np.flatnonzero(there))

    def _compare_units(
        self, checked: _QueueComparison, key: tuple[str, int], rows: CheckedRecords, which: Ints
    ) -> None:
        offsets = rows.offsets[which]
        units = units_at(checked.files, offsets)
        self._report.units += len(units)
        right = units["position"] == rows.positions[which]
        unfilled = self._unfilled(checked, key, rows, which, units)
        self._follow(checked, offsets[right])
        whole = right & (units["size"] == rows.sizes[which])
        codes = self._right_codes(key[0], units["tags"].astype(np.int64), rows, which)
        if self._has_ext:
            codes |= units["tags"] < _HASH_MIN
        wrong = ~(whole & codes)
        if key[0] in MOVED_TOPICS and not right.all():
            # Another record of the offset has come or will come; if none does, the unit is left over.
            positions = rows.positions[which]
            wrong &= right | ((units["position"] < positions) & (offsets >= checked.seen)) | (units["size"] <= 0)
        self.unfilled += int(unfilled.sum())
        for place in np.flatnonzero(wrong & ~unfilled).tolist():
            row, offset = int(which[place]), int(offsets[place])
            checked.reported.add(offset)
            self._report.add(
                *unit_place(checked.files, offset),
                _difference(units[place].tolist(), rows, row),
                DamagedMessage(*key, offset, rows.id_of(row)),
            )

    def _unfilled(
        self, checked: _QueueComparison, key: tuple[str, int], rows: CheckedRecords, which: Ints, units: Units
    ) -> Mask:
        """Mask of restored records after later ones of their queue, with reserved places."""
        entries, unfilled = rows.run.entries, units["size"] == FILLER_SIZE
        if not self._killed or entries is None or key[0] in MOVED_TOPICS or not unfilled.any():
            return np.zeros(len(which), np.bool_)
        offsets = rows.offsets[which]
        reached = np.maximum(np.maximum.accumulate(offsets), checked.seen - 1)
        mask: Mask = unfilled & (entries[0][rows.index[which]] >= 0) & (offsets < reached)
        return mask

    def _right_codes(self, topic: str, tags: Ints, rows: CheckedRecords, which: Ints) -> Mask:
        if topic not in LANE_TOPICS:
            same: Mask = tags == rows.codes[which]
            # Marks of ends are checked in halfcheck.py.
            return same | are_ended(tags) if topic == HALF_TOPIC else same
        right: Mask = dues_of(tags) == rows.codes[which]
        return right | (tags == rows.hashes[which]) if topic == TIMER_TOPIC and self._has_brokers_hashes else right

    def _follow(self, checked: _QueueComparison, offsets: Ints) -> None:
        """Notes offsets that have their records."""
        if not len(offsets):
            return
        if int(offsets[0]) == checked.seen and bool((np.diff(offsets) == 1).all()):
            checked.seen = int(offsets[-1]) + 1
            return
        before = np.maximum.accumulate(np.append(checked.seen, offsets[:-1] + 1))
        checked.late.append(offsets[offsets < before])
        for place in np.flatnonzero(offsets > before).tolist():
            checked.gaps.append((int(before[place]), int(offsets[place])))
        checked.seen = max(checked.seen, int(offsets.max()) + 1)

    def _count_missing(self, checked: _QueueComparison, rows: CheckedRecords, missing: np.ndarray) -> None:
        places = np.flatnonzero(missing)
        if len(places):
            if not checked.missing:
                checked.first_missing = int(rows.offsets[places[0]]), int(rows.positions[places[0]])
            checked.missing += len(places)

    def _report_record(self, key: tuple[str, int], rows: CheckedRecords, row: int, what: str) -> None:
        self._report_damage(
            int(rows.positions[row]), what, DamagedMessage(*key, int(rows.offsets[row]), rows.id_of(row))
        )

    def left_over(self) -> Iterator[tuple[QueueFiles, Ints, Units]]:
        """Units without a record, except those reported already and reserved places."""
        for checked in self._queues.values():
            found = np.concatenate([np.array(list(checked.reported), np.int64), *checked.late])
            for first, stop in [*checked.gaps, (checked.seen, checked.files.max_offset)]:
                for at in range(first, stop, _UNITS_AT_ONCE):
                    offsets = np.arange(at, min(at + _UNITS_AT_ONCE, stop))
                    units = units_at(checked.files, offsets)
                    kept = (units["size"] != FILLER_SIZE) & ~np.isin(offsets, found)
                    yield checked.files, offsets[kept], units[kept]

    def missing(self) -> Iterator[tuple[QueueFiles, int, int, int]]:
        """Queues that lack units: their number, and the first one's offset and record."""
        for checked in self._queues.values():
            if checked.missing:
                yield checked.files, checked.missing, *checked.first_missing


def unit_place(files: QueueFiles, offset: int) -> tuple[str, int]:
    """File and byte of a unit."""
    if isinstance(files, RocksQueue):
        return files.place(offset)
    at = offset * UNIT.size
    base = at - at % files.file_bytes if files.file_bytes else 0
    return f"consumequeue/{files.topic}/{files.queue}/{file_name(base)}", at - base


def _difference(unit: tuple[int, int, int], rows: CheckedRecords, row: int) -> str:
    if unit[1] == FILLER_SIZE:
        return f"no unit for the record at {rows.positions[row]}, its place is reserved"
    names = ("position", "size", "tagsCode")
    wanted = (int(rows.positions[row]), int(rows.sizes[row]), int(rows.codes[row]))
    different = [
        f"{name} {found}, of the record {value}"
        for name, found, value in zip(names, unit, wanted, strict=True)
        if found != value
    ]
    return "unit says " + "; ".join(different)


def _written_end(files: QueueFiles) -> int:
    """The offset after the last unit that is not all zero: one in the middle may be damaged, and has to be reported."""
    for base in sorted(files.files, reverse=True):
        first = base // UNIT.size
        units = files.read(first, files.file_units)
        written = np.flatnonzero((units["size"] > 0) & (units["position"] >= 0))
        if len(written):
            return first + int(written[-1]) + 1
    return files.min_offset


def units_at(files: QueueFiles, offsets: Ints) -> Units:
    """The unit at each of the offsets, which may be in any order; zeros for missing ones."""
    low, high = int(offsets.min()), int(offsets.max()) + 1
    if high - low > _SPREAD_MAX * len(offsets) + 64:
        return joined(units_at(files, offsets[index : index + 1]) for index in range(len(offsets)))
    units = np.zeros(high - low, UNIT_TYPE)
    at = low
    while at < high:
        found = files.read(at, high - at)
        units[at - low : at - low + len(found)] = found
        at = at + len(found) if len(found) else at - at % files.file_units + files.file_units
    return units[offsets - low]
