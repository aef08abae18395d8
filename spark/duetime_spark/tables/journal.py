"""The journal of a shard's groups, DT_GROUPS: its records in order, and table `deliveries` from them.

One task reads the journal of a shard: the meaning of an event depends on earlier ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.names import GROUPS_TOPIC
from duetime_format.units import FILLER_SIZE
from duetime_shard.disk import ShardFiles

from duetime_spark.decoding.deliveries import Deliveries, rows_of
from duetime_spark.shards.snapshot import ShardImage
from duetime_spark.shards.units import UnitWindow, window_of
from duetime_spark.tables.filters import RowFilter

_UNITS_AT_ONCE = 1_024


@dataclass(frozen=True)
class JournalSlice:
    """A part of a shard's journal, read from its files. Can be pickled."""

    files: ShardFiles
    segment_bytes: int
    window: UnitWindow

    def records(self) -> Iterator[tuple[bytes, int]]:
        """Bodies and store times, in order; skips damaged records and those removed by retention."""
        for _, units in self.window.read(self.files, _UNITS_AT_ONCE):
            for position, size, _ in units.tolist():
                if size == FILLER_SIZE:
                    continue
                base = position - position % self.segment_bytes
                data = self.files.read(f"commitlog/{base:020d}", position - base, size)
                try:
                    found = record.decode(data)
                except DamagedBytes:
                    continue
                if found.topic == GROUPS_TOPIC:
                    yield found.body, found.stored_at_ms


def journal_of(shard: ShardImage, first: int = 0) -> JournalSlice | None:
    """The journal from an offset on; None: the shard has no journal."""
    for queue in shard.snapshot.queues:
        if (queue.topic, queue.queue) == (GROUPS_TOPIC, 0):
            window = window_of(queue, first, queue.max_offset)
            return JournalSlice(shard.files, shard.snapshot.segment_bytes, window)
    return None


@dataclass(frozen=True)
class DeliveriesTask:
    """A shard's journal. `ends`: the ends of its queues."""

    shard: int
    journal: JournalSlice
    now_ms: int
    ends: dict[tuple[str, int], int]
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        deliveries = Deliveries(self.shard, columns=self.schema.names)
        ends = self.ends
        found = rows_of(
            deliveries, self.journal.records(), self.now_ms, lambda topic, queue: ends.get((topic, queue), 0)
        )
        yield from map(self.row_filter.keep, found)


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[DeliveriesTask]:
    tasks = []
    for shard in shards:
        journal, snapshot = journal_of(shard), shard.snapshot
        if journal is not None and row_filter.allows("shard", snapshot.shard):
            ends = {(queue.topic, queue.queue): queue.max_offset for queue in snapshot.queues}
            tasks.append(DeliveriesTask(snapshot.shard, journal, snapshot.stored_at_ms, ends, schema, row_filter))
    return tasks
