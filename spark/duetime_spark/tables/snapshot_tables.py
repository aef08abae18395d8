"""Tables `lanes` and `findings`: read from the snapshots alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from duetime_spark.shards.snapshot import ShardImage, ShardSnapshot
from duetime_spark.tables.filters import RowFilter


@dataclass(frozen=True)
class RowsTask:
    """A task whose rows are already known."""

    table: pa.RecordBatch

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield self.table


def plan_lanes(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[RowsTask]:
    return _task(schema, [row for shard in shards for row in lane_rows(shard.snapshot)], row_filter)


def plan_findings(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[RowsTask]:
    return _task(schema, [row for shard in shards for row in _findings(shard.snapshot)], row_filter)


def _task(schema: pa.Schema, rows: list[dict[str, Any]], row_filter: RowFilter) -> list[RowsTask]:
    kept = [row for row in rows if all(row_filter.allows(name, row[name]) for name in row if row[name] is not None)]
    return [RowsTask(pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in kept], schema))]


def lane_rows(snapshot: ShardSnapshot) -> Iterator[dict[str, Any]]:
    """Rows of table `lanes`."""
    for lane in snapshot.lanes:
        yield {
            "shard": snapshot.shard,
            "level": lane.level,
            # Messages for any time have their own delays, and are not restored in the order of their numbers: so the
            # watermark counts entries no longer pending, as in the live counters.
            "delay_ms": None if lane.is_timer else lane.delay_ms,
            "min_offset": lane.min_offset,
            "watermark": lane.max_offset - lane.pending if lane.is_timer else lane.watermark,
            "max_offset": lane.max_offset,
            "pending": lane.pending,
            "snapshot_position": snapshot.end,
            "snapshot_at_ms": snapshot.stored_at_ms,
            "judged_from": max(snapshot.min_position, snapshot.brokers_until),
        }


def _findings(snapshot: ShardSnapshot) -> Iterator[dict[str, Any]]:
    for finding in snapshot.findings:
        yield {
            "shard": snapshot.shard,
            "path": finding.path,
            "position": finding.position,
            "size": finding.size,
            "words": finding.words,
        }
