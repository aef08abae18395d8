"""Table `queue_entries`: the units of queues, without fillers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from duetime_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.units import FILLER_SIZE, Ints, Units, are_ended, dues_of
from duetime_shard.disk import ShardFiles

from duetime_spark.shards.snapshot import QueueView, ShardImage
from duetime_spark.shards.units import UnitWindow, cut, read_units
from duetime_spark.tables.batches import ROWS_MAX, RepeatedColumns, batch, numbers
from duetime_spark.tables.filters import RowFilter

# Hashes of tags are not above it, due times are.
_HASH_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class EntriesTask:
    """Some windows of a shard's queues."""

    shard: int
    files: ShardFiles
    windows: tuple[UnitWindow, ...]
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        repeated = RepeatedColumns()
        for window in self.windows:
            for offsets, units in window.read(self.files, ROWS_MAX):
                found = self._batch(window, offsets, units, repeated)
                if found.num_rows:
                    yield found
        self.files.close()

    def _batch(self, window: UnitWindow, offsets: Ints, units: Units, repeated: RepeatedColumns) -> pa.RecordBatch:
        columns = {"offset": offsets, "position": units["position"], "size": units["size"]}
        constants: dict[str, object] = {"shard": self.shard, "topic": window.topic, "queue": window.queue}
        if _is_dated(window, units):
            tags = units["tags"].astype(np.int64)
            columns["due_at_ms"] = dues_of(tags)
            if "has_ended" in self.schema.names:
                columns["has_ended"] = are_ended(tags)
            constants["tags_code"] = None
        else:
            columns["tags_code"] = units["tags"]
            constants |= {"due_at_ms": None, "has_ended": None}
        kept = (units["size"] != FILLER_SIZE) & (units["size"] > 0)
        for name, values in columns.items():
            mask = self.row_filter.mask(name, values)
            kept = kept if mask is None else kept & mask
        if not kept.all():
            columns = {name: values[kept] for name, values in columns.items()}
        count = int(kept.sum())
        return batch(
            self.schema,
            {name: partial(repeated.array, value, count=count) for name, value in constants.items()}
            | {name: partial(numbers, values) for name, values in columns.items()},
        )


def _is_dated(window: UnitWindow, units: Units) -> bool:
    """Whether units have due times: lanes' units do, except timers' units written by a broker."""
    if window.topic != TIMER_TOPIC:
        return window.topic == SCHEDULE_TOPIC
    return not len(units) or int(np.abs(units["tags"].astype(np.int64)).max()) > _HASH_MAX


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter, rows: int) -> list[EntriesTask]:
    """Tasks of about `rows` rows each."""
    tasks: list[EntriesTask] = []
    for shard in shards:
        snapshot = shard.snapshot
        if not row_filter.allows("shard", snapshot.shard):
            continue
        windows: list[UnitWindow] = []
        for queue in snapshot.queues:
            if row_filter.allows("topic", queue.topic) and row_filter.allows("queue", queue.queue):
                windows += _windows(shard, queue, row_filter, rows)
        groups = grouped(windows, rows)
        tasks += [EntriesTask(snapshot.shard, shard.files, group, schema, row_filter) for group in groups]
        shard.files.close()
    return tasks


def _windows(shard: ShardImage, queue: QueueView, row_filter: RowFilter, rows: int) -> Iterator[UnitWindow]:
    low, high = row_filter.range("offset")
    for window in cut(queue, max(low, 0), min(high, queue.max_offset) + 1, rows):
        # Timers' due times do not ascend.
        if queue.topic != SCHEDULE_TOPIC or may_be_due(shard, window, row_filter):
            yield window


def may_be_due(shard: ShardImage, window: UnitWindow, row_filter: RowFilter) -> bool:
    """Whether a lane's window may hold entries with matching due times: due times ascend if the level table has never
    changed."""
    if "due_at_ms" not in row_filter or not shard.snapshot.dues_ascend or window.made_offsets:
        return True
    # Units, two at each end: one of them may be damaged.
    ends = [read_units(shard.files, window, offset, 2) for offset in (window.start, max(window.stop - 2, 0))]
    if any(len(units) < 2 or (units["size"] <= 0).any() or (units["size"] == FILLER_SIZE).any() for units in ends):
        return True
    low, high = row_filter.range("due_at_ms")
    first, last = (dues_of(units["tags"].astype(np.int64)) for units in ends)
    return int(first.min()) <= high and int(last.max()) >= low


def grouped(windows: Sequence[UnitWindow], rows: int) -> Iterator[tuple[UnitWindow, ...]]:
    """Groups of windows with up to `rows` rows."""
    group: list[UnitWindow] = []
    count = 0
    for window in windows:
        if group and count + len(window) > rows:
            yield tuple(group)
            group, count = [], 0
        group.append(window)
        count += len(window)
    if group:
        yield tuple(group)
