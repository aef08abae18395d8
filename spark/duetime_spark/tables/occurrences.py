"""Table `occurrences`: the records of the log by which schedules continue, pending or delivered ones.

Only few records have the property of a schedule: the others are not decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from duetime_core.chains import is_judged, occurrences_in
from duetime_core.planning import following
from duetime_format.columns import RecordRun
from duetime_format.lanes import lane_of
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.record import REAL_TOPIC
from duetime_format.schedules import StoredSchedule
from duetime_shard.disk import ShardFiles
from duetime_shard.files import LogFiles
from duetime_shard.walk import scan_runs

from duetime_spark.shards.snapshot import ShardImage
from duetime_spark.tables import messages
from duetime_spark.tables.filters import RowFilter

_REAL_TOPIC = REAL_TOPIC.encode()


@dataclass(frozen=True)
class OccurrencesTask:
    """Ranges of a shard's log, each within a segment."""

    shard: int
    files: ShardFiles
    ranges: tuple[tuple[int, int], ...]
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        log = LogFiles(self.files)
        for first, stop in self.ranges:
            rows = [row for item in scan_runs(log, first, stop) for row in self._rows(item, stop)]
            if rows:
                arrays = [pa.array([row[field.name] for row in rows], field.type) for field in self.schema]
                yield self.row_filter.keep(pa.record_batch(arrays, schema=self.schema))
        self.files.close()

    def _rows(self, item: object, stop: int) -> Iterator[dict[str, Any]]:
        if not isinstance(item, RecordRun):
            return
        for index, found, schedule in occurrences_in(item):
            is_delivered = found.topic != TIMER_TOPIC
            if is_delivered:
                has_entry = item.entries is not None and item.entries[0, index] >= 0
                place = tuple(item.entries[:2, index].tolist()) if item.entries is not None and has_entry else None
            else:
                place = lane_of(found.topic, found.queue), found.queue_offset
            if found.position >= stop or place is None:
                continue
            yield {
                "shard": self.shard,
                "topic": found.topic if is_delivered else as_text(value_of(found.properties, _REAL_TOPIC)),
                "schedule": schedule.name,
                "made_at_ms": schedule.made_at_ms,
                "planned_at_ms": schedule.planned or None,
                "is_delivered": is_delivered,
                "level": place[0],
                "offset": place[1],
                "position": found.position,
                "stored_at_ms": found.stored_at_ms,
                "is_last": is_delivered and schedule.is_last(found.stored_at_ms),
                "next_at_ms": _next_at_ms(schedule, found.stored_at_ms) if is_delivered else None,
            }


def _next_at_ms(schedule: StoredSchedule, delivered_at_ms: int) -> int | None:
    try:
        return following(schedule, delivered_at_ms) if is_judged(schedule) else None
    except ValueError:
        return None


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[OccurrencesTask]:
    """Tasks as for the table `messages`, for shards with lanes for any time."""
    known = [shard for shard in shards if any(queue.topic == TIMER_TOPIC for queue in shard.snapshot.queues)]
    tasks = messages.plan(known, schema, row_filter)
    return [OccurrencesTask(task.shard, task.files, task.ranges, schema, row_filter) for task in tasks]
