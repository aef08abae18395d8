"""Table `ends`: cancelled lane entries, by the rows of a shard's records of DT_CANCELLED.

Entries replaced by another record are in table `messages`: the other record names them (`lane_level`, `lane_offset`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from duetime_format import ends, record
from duetime_format.errors import DamagedBytes
from duetime_format.names import CANCELLED_TOPIC
from duetime_format.units import FILLER_SIZE
from duetime_shard.disk import ShardFiles

from duetime_spark.shards.snapshot import ShardImage
from duetime_spark.shards.units import UnitWindow, window_of
from duetime_spark.tables.filters import RowFilter

_UNITS_AT_ONCE = 1_024


@dataclass(frozen=True)
class EndsTask:
    """A shard's queue of cancels."""

    shard: int
    files: ShardFiles
    segment_bytes: int
    window: UnitWindow
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        for _, units in self.window.read(self.files, _UNITS_AT_ONCE):
            rows = [rows for position, size, _ in units.tolist() for rows in self._rows(position, size)]
            if rows:
                yield self.row_filter.keep(
                    self._batch(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))
                )
        self.files.close()

    def _rows(self, position: int, size: int) -> Iterator[tuple[Any, Any]]:
        """Rows and positions; none for a damaged or removed record."""
        if size == FILLER_SIZE:
            return
        base = position - position % self.segment_bytes
        try:
            found = record.decode(self.files.read(f"commitlog/{base:020d}", position - base, size))
            rows = ends.decode(found.body)
        except DamagedBytes:
            return
        if found.topic == CANCELLED_TOPIC and found.position == position:
            yield rows, np.full(len(rows), position)

    def _batch(self, rows: Any, positions: Any) -> pa.RecordBatch:
        names = pa.array(["cancelled", "replaced"]).take(pa.array(rows["reason"].astype(np.int64) - 1))
        columns = {
            "shard": pa.array(np.full(len(rows), self.shard, np.int32)),
            "level": pa.array(rows["lane"].astype(np.int32)),
            "offset": pa.array(rows["entry"].astype(np.int64)),
            "due_at_ms": pa.array(rows["due"].astype(np.int64)),
            "end": names,
            "position": pa.array(positions.astype(np.int64)),
        }
        return pa.record_batch([columns[name] for name in self.schema.names], schema=self.schema)


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[EndsTask]:
    tasks = []
    for shard in shards:
        snapshot = shard.snapshot
        for queue in snapshot.queues:
            if queue.topic == CANCELLED_TOPIC and row_filter.allows("shard", snapshot.shard):
                window = window_of(queue, 0, queue.max_offset)
                task = EndsTask(snapshot.shard, shard.files, snapshot.segment_bytes, window, schema, row_filter)
                tasks.append(task)
    return tasks
