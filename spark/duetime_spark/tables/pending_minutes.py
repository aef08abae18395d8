"""Table `pending_minutes`: pending entries, summed by destination and minute of due times.

A query over `pending` gives the same sums, but takes the JVM three times as long: rows go through its hash tables one
by one. So each task sums its own rows, and the reader adds these sums: several rows may have one (shard, level, topic,
minute).

Entries of paused schedules are summed apart, without due times: theirs are years ahead and only keep them pending.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duetime_format.compiled import twin
from duetime_format.units import Ints

from duetime_spark.shards.snapshot import ShardImage
from duetime_spark.tables import pending
from duetime_spark.tables.filters import RowFilter
from duetime_spark.tables.pending import GONE, PendingEntries, PendingTask
from duetime_spark.tables.schemas import PENDING

_twin = twin("duetime_spark.tables._minutes")

_MINUTE_MS = 60_000
_NEVER = np.iinfo(np.int64).max
# Limit on cells of a dense table of sums, 48 bytes each, empty ones included; above it, rows are sorted instead.
_CELLS_MAX = 1 << 18
_COLUMNS = "shard", "level", "topic", "size", "due_at_ms", "is_paused"


@dataclass(frozen=True)
class Sums:
    """Columns of the table; `codes` are topics, -1 without one."""

    levels: Ints
    codes: Ints
    minutes: Ints
    count: Ints
    bytes: Ints
    oldest: Ints
    overdue_count: Ints
    overdue_bytes: Ints
    # _NEVER: all are overdue.
    next: Ints


def summed(
    levels: npt.NDArray[np.int32], codes: npt.NDArray[np.int32], sizes: Ints, dues: Ints, moment_ms: int
) -> Sums:
    """Sums of entries by level, topic and minute; entries due at the moment or before are overdue."""
    minutes = dues // _MINUTE_MS
    low, high = int(minutes.min()), int(minutes.max())
    # Numbers of lanes lie far apart; there are few.
    numbers = np.flatnonzero(np.bincount(levels))
    ranks = np.zeros(int(numbers[-1]) + 1, np.int64)
    ranks[numbers] = np.arange(len(numbers))
    topics, height = int(codes.max()) + 2, len(numbers)
    cells = ((minutes - low) * height + ranks[levels]) * topics + codes + 1
    names: Ints = np.arange(0)
    width = (high - low + 1) * height * topics
    is_dense = width <= _CELLS_MAX
    if not is_dense:
        names, cells = np.unique(cells, return_inverse=True)
        width = len(names)
    sums = np.zeros((width, 6), np.int64)
    sums[:, [2, 5]] = _NEVER
    accumulate(cells, sizes, dues, moment_ms, sums)
    if is_dense:
        names = np.flatnonzero(sums[:, 0])
        sums = sums[names]
    rest, code = np.divmod(names, topics)
    minute, level = np.divmod(rest, height)
    return Sums(numbers[level], code - 1, minute + low, *np.ascontiguousarray(sums.T))


def accumulate(cells: Ints, sizes: Ints, dues: Ints, moment_ms: int, sums: Ints) -> None:
    """Adds rows to the sums of their cells: count, bytes, lowest due time, count and bytes of entries due at the
    moment or before, lowest due time of the others."""
    if _twin is not None:
        columns = (np.ascontiguousarray(column, np.int64) for column in (cells, sizes, dues))
        _twin.accumulate(*columns, moment_ms, sums)
        return
    is_late = dues <= moment_ms
    np.add.at(sums[:, 0], cells, 1)
    np.add.at(sums[:, 1], cells, sizes)
    np.minimum.at(sums[:, 2], cells, dues)
    np.add.at(sums[:, 3], cells[is_late], 1)
    np.add.at(sums[:, 4], cells[is_late], sizes[is_late])
    np.minimum.at(sums[:, 5], cells[~is_late], dues[~is_late])


@dataclass(frozen=True)
class MinutesTask:
    """The sums of a task of `pending`."""

    task: PendingTask
    moment_ms: int
    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for entries, topics in self.task.found():
            assert topics is not None, "the query has columns of records"
            names = topics.text(np.arange(-1, len(topics.names), dtype=np.int32))
            is_dated = (entries.dues != GONE) & ~topics.pauses
            if is_dated.all():
                yield from self._summed(entries, topics.codes, names)
                continue
            for rows, is_paused in ((is_dated, False), (~is_dated & ~topics.pauses, False), (topics.pauses, True)):
                own = entries.take(rows), topics.codes[rows], names
                yield from self._summed(*own, is_dated=rows is is_dated, is_paused=is_paused)

    def _summed(
        self,
        entries: PendingEntries,
        codes: npt.NDArray[np.int32],
        names: pa.Array,
        *,
        is_dated: bool = True,
        is_paused: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        if not len(entries):
            return
        # Entries without a due time are summed as if due in one minute; it is then set to null.
        dues, moment_ms = (entries.dues, self.moment_ms) if is_dated else (np.zeros(len(entries), np.int64), GONE)
        sums = summed(entries.levels, codes, np.maximum(entries.sizes, 0), dues, moment_ms)
        count = len(sums.count)

        def moments(values: Ints) -> pa.Array:
            return pa.array(values, pa.int64(), mask=values == _NEVER) if is_dated else pa.nulls(count, pa.int64())

        columns = {
            "shard": pa.array(np.full(count, self.task.shard, np.int32)),
            "level": pa.array(sums.levels.astype(np.int32)),
            "topic": names.take(pa.array(sums.codes + 1)),
            "minute": moments(sums.minutes),
            "count": pa.array(sums.count),
            "bytes": pa.array(sums.bytes),
            "oldest_due_at_ms": moments(sums.oldest),
            "overdue_count": pa.array(sums.overdue_count),
            "overdue_bytes": pa.array(sums.overdue_bytes),
            "next_due_at_ms": moments(sums.next),
            "paused_count": pa.array(sums.count if is_paused else np.zeros(count, np.int64)),
        }
        yield pa.record_batch([columns[name] for name in self.schema.names], schema=self.schema)


def plan(
    shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter, rows: int, now_ms: int | None
) -> list[MinutesTask]:
    """Tasks of about `rows` entries each; `now_ms` None: each shard's moment of the snapshot."""
    entries = pa.schema([PENDING.field(name) for name in _COLUMNS])
    # Other columns are sums here.
    keys = RowFilter({name: bounds for name, bounds in row_filter.columns.items() if name in ("shard", "level")})
    moments = {shard.snapshot.shard: shard.snapshot.stored_at_ms if now_ms is None else now_ms for shard in shards}
    return [
        MinutesTask(replace(task, row_filter=keys), moments[task.shard], schema)
        for task in pending.plan(shards, entries, keys, rows)
    ]
