"""Table `messages`: every record of the log, in ranges with record boundaries.

A unit of any queue gives the position of a record. So a segment is cut at units near the intended ends of tasks; a
segment's first byte begins a record too. If retention has appended a record again, each copy in the log is a row;
copies have equal (topic, queue, offset).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from duetime_format import layout
from duetime_format.columns import take
from duetime_shard.disk import ShardFiles
from duetime_shard.facts import MOVED_TOPICS

from duetime_spark.decoding.decode import Decoder, batches
from duetime_spark.shards.snapshot import QueueView, ShardImage
from duetime_spark.shards.units import first_at
from duetime_spark.tables.filters import RowFilter

# Bytes of the log in one task.
TASK_BYTES = 64 * 1024 * 1024
# Number of queues searched for places to cut.
_QUEUES = 3
# Bytes of records read to find the time of a position.
_SAMPLE_BYTES = 128 * 1024
_KEPT = frozenset(topic.encode() for topic in MOVED_TOPICS)


@dataclass(frozen=True)
class MessagesTask:
    """Ranges [start, stop) of a shard's log, each within a segment."""

    shard: int
    files: ShardFiles
    segment_bytes: int
    ranges: tuple[tuple[int, int], ...]
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        for _, _, found in self.decoded(self.schema.names):
            for each in found:
                kept = self.row_filter.keep(each)
                if kept.num_rows:
                    yield kept

    def decoded(self, columns: Collection[str]) -> Iterator[tuple[int, Decoder, Iterator[pa.RecordBatch]]]:
        """By range: the start of its segment, its decoder, and the rows; no rows if retention has removed the
        segment."""
        for first, stop in self.ranges:
            base = first - first % self.segment_bytes
            path, bound = f"commitlog/{base:020d}", base + self.segment_bytes
            decoder = Decoder(stop, bound, columns=columns, shard=self.shard)

            def read(position: int, length: int, path: str = path, base: int = base) -> bytes:
                return self.files.read(path, position - base, length)

            yield base, decoder, batches(read, first, decoder, stop, bound)
        self.files.close()


def plan(
    shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter, task_bytes: int = TASK_BYTES
) -> list[MessagesTask]:
    """Tasks of about `task_bytes` of the log each."""
    tasks = []
    for shard in shards:
        snapshot = shard.snapshot
        if row_filter.allows("shard", snapshot.shard):
            for group in _grouped(
                _of_time(shard, row_filter, list(_ranges(shard, row_filter, task_bytes))), task_bytes
            ):
                task = MessagesTask(snapshot.shard, shard.files, snapshot.segment_bytes, group, schema, row_filter)
                tasks.append(task)
        shard.files.close()
    return tasks


def _ranges(shard: ShardImage, row_filter: RowFilter, task_bytes: int) -> Iterator[tuple[int, int]]:
    """The log up to the snapshot's end, cut at records."""
    snapshot = shard.snapshot
    low, high = row_filter.range("position")
    queues = sorted(snapshot.queues, key=lambda queue: queue.files_max - queue.min_offset)[-_QUEUES:]
    segment = snapshot.segment_bytes
    for base in range(snapshot.min_position, snapshot.end, segment) if segment else ():
        end = min(base + segment, snapshot.end)
        cuts = [base]
        for target in range(base + task_bytes, end - task_bytes // 2, task_bytes):
            place = _record_near(shard, queues, target, min(target + task_bytes // 2, end))
            if place is not None:
                cuts.append(place)
        for first, stop in zip(cuts, [*cuts[1:], end], strict=True):
            if stop > low and first <= high:
                yield first, stop


def _record_near(shard: ShardImage, queues: Sequence[QueueView], position: int, limit: int) -> int | None:
    """The first record known to begin in [position, limit)."""
    segment, found = shard.snapshot.segment_bytes, []
    for queue in queues:
        place = first_at(shard.files, queue, queue.min_offset, queue.max_offset, position)[1]
        if place is not None and position <= place < limit:
            found.append(place)
    for place in sorted(found):
        base = place - place % segment
        head = layout.head_of(shard.files.read(f"commitlog/{base:020d}", place - base, layout.PREFIX_BYTES))
        # A damaged unit may name a position without a record.
        if head is not None and head.is_message and head.position == place:
            return place
    return None


def _grouped(ranges: Sequence[tuple[int, int]], task_bytes: int) -> Iterator[tuple[tuple[int, int], ...]]:
    group: list[tuple[int, int]] = []
    size = 0
    for first, stop in ranges:
        if group and size + stop - first > task_bytes * 5 // 4:
            yield tuple(group)
            group, size = [], 0
        group.append((first, stop))
        size += stop - first
    if group:
        yield tuple(group)


# --- by time --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Times:
    """Store times of records at some places of the log, in order: apart from copies, store times ascend.

    A topic's record has its own time. A lane's record may be a copy: its time is used only if it is later than all
    times before it. A copy's time never is, since its original came before.
    """

    latest_ms: int = 0
    known: list[tuple[int, int]] = field(default_factory=list)

    def see(self, shard: ShardImage, position: int) -> None:
        base = position - position % shard.snapshot.segment_bytes
        data = shard.files.read(f"commitlog/{base:020d}", position - base, _SAMPLE_BYTES)
        run = take(data, 0, position)
        if not run.count:
            return
        is_kept = run.within(_KEPT)
        own = run.stored_at_ms[~is_kept]
        at_ms = int(own.min()) if len(own) else int(run.stored_at_ms.min())
        if len(own) or at_ms > self.latest_ms:
            self.known.append((position, at_ms))
        self.latest_ms = max(self.latest_ms, int(run.stored_at_ms.max()))

    def is_before(self, stop: int, at_ms: int) -> bool:
        """Whether all records before a position were stored before a moment."""
        return any(position >= stop and known_ms < at_ms for position, known_ms in self.known)


def _of_time(shard: ShardImage, row_filter: RowFilter, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drops ranges with only records stored too early. Later ranges stay: copies have early times."""
    low = row_filter.range("stored_at_ms")[0]
    if "stored_at_ms" not in row_filter or low <= 0:
        return ranges
    times = _Times()
    for first, _ in ranges:
        times.see(shard, first)
    return [(first, stop) for first, stop in ranges if not times.is_before(stop, low)]
