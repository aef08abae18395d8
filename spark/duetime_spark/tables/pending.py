"""Table `pending`: entries waiting in the lanes, and their destinations.

Only the record of an entry has its destination. Records of all lanes are mixed in the log, so a task takes the entries
of every lane in one section of the log and reads it once, in order of position:

    log      ... 1 3 3 1 2 | 1 1 3 2 3 | 3 2 1 ...        by level; | between tasks
    lane 1   . .           | . .       | .

Bounds are found by binary search, as if positions ascended in each lane. Copies made by retention break that order;
then a task reads more of the log, and the rows are the same. Entries with units or records removed by retention since
the snapshot are rows too: they were pending.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duetime_format.lanes import TIMER_LANE_FIRST, LanePlace, lane_of
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Ints, Units, are_ended, dues_of
from duetime_shard.disk import ShardFiles

from duetime_spark.decoding.topics import find_pauses, find_topics
from duetime_spark.shards.snapshot import LaneView, QueueView, ShardImage
from duetime_spark.shards.units import UnitWindow, cut, first_at
from duetime_spark.tables.batches import ROWS_MAX, RepeatedColumns, batch, numbers
from duetime_spark.tables.filters import RowFilter
from duetime_spark.tables.queue_entries import grouped, may_be_due

# Bytes of the log in one read.
_STRETCH_BYTES = 4 * 1024 * 1024
# Size up to which a gap between two records is read too: another call would cost as much.
_GAP_BYTES = 64 * 1024
# Stands for values of entries removed by retention, or with a damaged record.
GONE = -1
# The columns that need the records of entries.
_OF_RECORDS = frozenset(("topic", "is_paused"))


@dataclass(frozen=True)
class LanePart:
    """A window of a lane, and its entries gone without a mark."""

    level: int
    window: UnitWindow
    # Entries of the window (i64, little-endian), ascending.
    gone: bytes = b""
    # Timers: all entries up to here in order of due time are gone.
    place: LanePlace | None = None

    def kept(self, entries: "PendingEntries", tags: Ints) -> npt.NDArray[np.bool_]:
        """The mask of pending entries."""
        kept: npt.NDArray[np.bool_] = ~are_ended(tags)
        if self.gone:
            kept &= ~np.isin(entries.offsets, np.frombuffer(self.gone, "<i8"))
        if self.place is not None:
            due_at_ms, entry = self.place
            # A filler or a removed unit has no due time.
            kept &= (entries.sizes > 0) & (
                (entries.dues > due_at_ms) | ((entries.dues == due_at_ms) & (entries.offsets > entry))
            )
        return kept


@dataclass(slots=True)
class PendingEntries:
    """Rows of a task; GONE without a record, or without a known due time."""

    levels: npt.NDArray[np.int32]
    offsets: Ints
    positions: Ints
    sizes: Ints
    dues: Ints

    def take(self, chosen: npt.NDArray[np.generic]) -> "PendingEntries":
        return PendingEntries(
            self.levels[chosen], self.offsets[chosen], self.positions[chosen], self.sizes[chosen], self.dues[chosen]
        )

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True)
class PendingTask:
    """Parts of a shard's lanes."""

    shard: int
    files: ShardFiles
    segment_bytes: int
    parts: tuple[LanePart, ...]
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        repeated = RepeatedColumns()
        for entries, topics in self.found():
            yield from self._batches(entries, topics, repeated)

    def found(self) -> Iterator[tuple[PendingEntries, "TopicColumn | None"]]:
        """Entries, with the values of their records if the query needs them."""
        if not needs_records(self.schema):
            for part in self.parts:
                for entries in self._of(part):
                    yield entries, None
        else:
            entries = _joined([entries for part in self.parts for entries in self._of(part)])
            entries = entries.take(np.argsort(entries.positions, kind="stable"))
            topics = self._topics(entries)
            if len(lost := np.flatnonzero((topics.codes < 0) & (entries.positions >= 0))):
                self._find_copies(entries, topics, lost)
            yield entries, topics
        self.files.close()

    def _of(self, part: LanePart) -> Iterator[PendingEntries]:
        """The entries of a part, and its removed entries."""
        at = part.window.start
        for offsets, units in part.window.read(self.files, ROWS_MAX):
            first = int(offsets[0]) if len(offsets) else at
            if part.place is None and at < first:
                yield from self._left(part, at, first)
            at = int(offsets[-1]) + 1 if len(offsets) else at
            entries = _entries(part.level, offsets, units)
            kept = part.kept(entries, units["tags"].astype(np.int64))
            for name, values in (("offset", offsets), ("size", entries.sizes), ("due_at_ms", entries.dues)):
                mask = self.row_filter.mask(name, values)
                kept = kept if mask is None else kept & mask
            yield entries if kept.all() else entries.take(kept)
        if part.place is None and at < part.window.stop:
            yield from self._left(part, at, part.window.stop)

    def _left(self, part: LanePart, first: int, stop: int) -> Iterator[PendingEntries]:
        """Entries pending at the snapshot, restored and removed since: only their offsets are known."""
        if any(name in self.row_filter for name in ("due_at_ms", "size", "position", "topic")):
            return
        offsets = np.setdiff1d(np.arange(first, stop), np.frombuffer(part.gone, "<i8"))
        mask = self.row_filter.mask("offset", offsets)
        offsets = offsets if mask is None else offsets[mask]
        gone = np.full(len(offsets), GONE, np.int64)
        yield PendingEntries(np.full(len(offsets), part.level, np.int32), offsets, gone, gone, gone)

    def _topics(self, entries: PendingEntries) -> "TopicColumn":
        """Topics of entries in order of position."""
        topics = TopicColumn(len(entries))
        for first, stop in stretches(entries.positions, entries.sizes, self.segment_bytes):
            start = int(entries.positions[first])
            end = int((entries.positions[first:stop] + entries.sizes[first:stop]).max())
            base = start - start % self.segment_bytes
            end = min(end, base + self.segment_bytes)
            data = self.files.read(f"commitlog/{base:020d}", start - base, end - start)
            positions, sizes = entries.positions[first:stop], entries.sizes[first:stop]
            found = find_topics(data, start, positions, sizes)
            topics.put(slice(first, stop), found.names, found.codes, find_pauses(data, start, positions, sizes))
        return topics

    def _find_copies(self, entries: PendingEntries, topics: "TopicColumn", lost: Ints) -> None:
        """Retries entries with moved records: retention lets their units point to copies."""
        for part in self.parts:
            own = lost[entries.levels[lost] == part.level]
            own = own[(entries.offsets[own] >= part.window.start) & (entries.offsets[own] < part.window.stop)]
            if not len(own) or not part.window.file_bytes:
                continue
            own = own[np.argsort(entries.offsets[own])]
            for offsets, units in part.window.read(self.files, ROWS_MAX):
                at = np.searchsorted(offsets, entries.offsets[own])
                there = at < len(offsets)
                there[there] = offsets[at[there]] == entries.offsets[own][there]
                entries.positions[own[there]] = units["position"][at[there]]
        again = lost[np.argsort(entries.positions[lost], kind="stable")]
        found = self._topics(entries.take(again))
        topics.put(again, found.names, found.codes, found.pauses)

    def _batches(
        self, entries: PendingEntries, topics: "TopicColumn | None", repeated: RepeatedColumns
    ) -> Iterator[pa.RecordBatch]:
        mask = self.row_filter.mask("position", entries.positions)
        chosen = np.arange(len(entries)) if mask is None else np.flatnonzero(mask)
        for first in range(0, len(chosen), ROWS_MAX):
            rows = chosen[first : first + ROWS_MAX]
            yield self._batch(entries.take(rows), topics, rows, repeated)

    def _batch(
        self, entries: PendingEntries, topics: "TopicColumn | None", rows: Ints, repeated: RepeatedColumns
    ) -> pa.RecordBatch:
        """`rows`: those of the entries in `topics`."""
        return batch(
            self.schema,
            {
                "shard": lambda kind: repeated.array(self.shard, kind, count=len(entries)),
                "level": lambda kind: numbers(entries.levels, kind),
                "topic": lambda kind: topics.text(topics.codes[rows]) if topics is not None else None,
                "offset": lambda kind: numbers(entries.offsets, kind),
                "position": lambda kind: numbers(entries.positions, kind, GONE),
                "size": lambda kind: numbers(entries.sizes, kind, GONE),
                "due_at_ms": lambda kind: numbers(entries.dues, kind, GONE),
                "is_paused": lambda kind: pa.array(topics.pauses[rows], kind) if topics is not None else None,
            },
        )


class TopicColumn:
    """Topics of entries as codes: an index into `names`, -1 without a topic. `pauses`: entries of paused schedules."""

    def __init__(self, count: int) -> None:
        self.codes = np.full(count, -1, np.int32)
        self.pauses = np.zeros(count, np.bool_)
        self.names: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def put(
        self,
        where: "slice | Ints",
        names: list[bytes],
        codes: npt.NDArray[np.int32],
        pauses: npt.NDArray[np.bool_],
    ) -> None:
        own = []
        for name in names:
            number = self._numbers.setdefault(name, len(self.names))
            if number == len(self.names):
                self.names.append(name)
            own.append(number)
        # The last one is the value for -1.
        self.codes[where] = np.array([*own, -1], np.int32)[codes]
        self.pauses[where] = pauses

    def text(self, codes: npt.NDArray[np.int32]) -> pa.Array:
        names = pa.array([name.decode(errors="replace") for name in self.names], pa.string())
        return names.take(pa.array(codes, mask=codes < 0))


def needs_records(schema: pa.Schema) -> bool:
    """Whether a query reads the records of entries."""
    return not _OF_RECORDS.isdisjoint(schema.names)


def _entries(level: int, offsets: Ints, units: Units) -> PendingEntries:
    is_record = (units["size"] != FILLER_SIZE) & (units["size"] > 0)
    return PendingEntries(
        np.full(len(offsets), level, np.int32),
        offsets,
        np.where(is_record, units["position"], GONE).astype(np.int64),
        np.where(is_record, units["size"], GONE).astype(np.int64),
        dues_of(units["tags"].astype(np.int64)),
    )


def _joined(parts: list[PendingEntries]) -> PendingEntries:
    if not parts:
        return _entries(0, np.empty(0, np.int64), np.empty(0, UNIT_TYPE))
    return PendingEntries(
        np.concatenate([part.levels for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.dues for part in parts]),
    )


def stretches(positions: Ints, sizes: Ints, segment_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of rows to read together: ascending positions in one segment, with small gaps."""
    known = int(np.searchsorted(positions, 0))
    if known == len(positions) or not segment_bytes:
        return
    ends = np.maximum.accumulate(positions + np.clip(sizes, 0, segment_bytes))
    apart = (positions[1:] - ends[:-1] > _GAP_BYTES) | (
        positions[1:] // segment_bytes != positions[:-1] // segment_bytes
    )
    breaks = np.append(np.flatnonzero(apart) + 1, len(positions))
    for stop in breaks[breaks > known].tolist():
        while known < stop:
            limit = int(positions[known]) + _STRETCH_BYTES
            step = min(max(int(np.searchsorted(ends[known:stop], limit, "right")), 1), stop - known)
            yield known, known + step
            known += step


# --- planning -------------------------------------------------------------------------------------------------------


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter, rows: int) -> list[PendingTask]:
    """Tasks of about `rows` rows each."""
    tasks = []
    for shard in shards:
        snapshot = shard.snapshot
        if not row_filter.allows("shard", snapshot.shard):
            continue
        lanes = _lanes(shard, row_filter)
        if needs_records(schema):
            groups = list(_by_position(shard, lanes, rows))
        else:
            parts = [
                _part(lane, window)
                for lane, queue in lanes
                for window in cut(queue, lane.watermark, lane.max_offset, rows)
            ]
            levels = {id(part.window): part for part in parts}
            groups = [
                tuple(levels[id(window)] for window in group)
                for group in grouped([part.window for part in parts], rows)
            ]
        for group in groups:
            chosen = tuple(part for part in group if part.place or may_be_due(shard, part.window, row_filter))
            if chosen:
                task = PendingTask(snapshot.shard, shard.files, snapshot.segment_bytes, chosen, schema, row_filter)
                tasks.append(task)
        shard.files.close()
    return tasks


def _lanes(shard: ShardImage, row_filter: RowFilter) -> list[tuple[LaneView, QueueView]]:
    snapshot = shard.snapshot
    queues = {lane: queue for queue in snapshot.queues if (lane := lane_of(queue.topic, queue.queue)) is not None}
    if snapshot.timers is not None:
        queues[TIMER_LANE_FIRST] = snapshot.timers
    return [
        (lane, queues[lane.level])
        for lane in snapshot.lanes
        if lane.pending and lane.level in queues and row_filter.allows("level", lane.level)
    ]


def _by_position(
    shard: ShardImage, lanes: list[tuple[LaneView, QueueView]], rows: int
) -> Iterator[tuple[LanePart, ...]]:
    """Parts of all lanes in one section of the log."""
    snapshot = shard.snapshot
    count = sum(lane.pending for lane, _ in lanes)
    tasks = max(-(-count // rows), 1)
    span = snapshot.end - snapshot.min_position
    bounds = [snapshot.min_position + span * number // tasks for number in range(1, tasks)]
    firsts = [lane.watermark for lane, _ in lanes]
    for bound in [*bounds, None]:
        group: list[LanePart] = []
        for index, (lane, queue) in enumerate(lanes):
            stop = lane.max_offset
            if bound is not None:
                stop = first_at(shard.files, queue, firsts[index], stop, bound)[0]
            # If positions do not ascend, a task may get more of a lane than its share.
            windows = cut(queue, firsts[index], stop, max(rows, 1))
            group += [_part(lane, window) for window in windows]
            firsts[index] = stop
        if group:
            yield tuple(group)


def _part(lane: LaneView, window: UnitWindow) -> LanePart:
    gone = lane.gone_entries
    own = gone[slice(*np.searchsorted(gone, (window.start, window.stop)))]
    place = LanePlace(lane.place_due_at_ms, lane.place_entry) if lane.is_timer else None
    return LanePart(lane.level, window, own.astype("<i8").tobytes(), place)
