"""Dead letters redriven or discarded: their records stay in %DLQ%group, and a store keeps a bit for each.

The store's file of groups has the bits as of an offset of the journal DT_GROUPS; later changes come from the journal.
If the file cannot be read, the whole journal is replayed, as far as retention has left it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from duetime_format import events, group_file
from duetime_format.errors import DamagedBytes
from duetime_format.events import events_in, keys_of, reading
from duetime_format.ranges import offsets_of
from duetime_shard.disk import ShardFiles
from duetime_shard.gone import GoneDeadLetters
from pyspark.sql import DataFrame, SparkSession

from duetime_spark.moment import Moment
from duetime_spark.shards.snapshot import open_shards
from duetime_spark.tables.journal import journal_of

GONE = "gone"
_SCHEMA = pa.schema([("shard", pa.int32()), ("topic", pa.string()), ("queue", pa.int32()), ("offset", pa.int64())])
Ends = Callable[[str, int], int]


def gone_letters(spark: SparkSession, moment: Moment) -> DataFrame:
    """(shard, topic, queue, offset), computed on the driver; may include letters gone after the snapshot."""
    found: dict[str, list[object]] = {name: [] for name in _SCHEMA.names}
    for shard in open_shards(moment.sources, moment.levels, moment.text):
        ends = {(queue.topic, queue.queue): queue.max_offset for queue in shard.snapshot.queues}
        first, gone = _kept(shard.files)
        journal = journal_of(shard, first)
        if journal is not None:
            replay(gone, (body for body, _ in journal.records()), partial(_queue_end, ends))
        for topic, queue in gone.queues():
            for offset in offsets_in(gone, topic, queue, _queue_end(ends, topic, queue)):
                for name, value in zip(_SCHEMA.names, (shard.snapshot.shard, topic, queue, offset), strict=True):
                    found[name].append(value)
        shard.files.close()
    return spark.createDataFrame(pa.table(found, _SCHEMA))


def _queue_end(ends: dict[tuple[str, int], int], topic: str, queue: int) -> int:
    return ends.get((topic, queue), 0)


def _kept(files: ShardFiles) -> tuple[int, GoneDeadLetters]:
    """The first journal offset not covered by the bits, and the bits."""
    data = files.content(group_file.FILE)
    try:
        return decode(data) if data else (0, GoneDeadLetters())
    except DamagedBytes:
        return 0, GoneDeadLetters()


def decode(data: bytes) -> tuple[int, GoneDeadLetters]:
    """See `duetime_format.group_file`. Raises: DamagedBytes."""
    first, gone = group_file.gone_letters(data)
    return first, GoneDeadLetters.decode(gone)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of dead letters made by an event."""

    is_gone: bool
    topic: str
    queue: int
    offsets: list[int]


def replay(gone: GoneDeadLetters, bodies: Iterable[bytes], max_offset: Ends) -> None:
    """Applies records of the journal in order; skips unreadable records."""
    for body in bodies:
        with suppress(DamagedBytes), reading():
            for change in _changes(body, max_offset):
                places = [(change.topic, change.queue, offset) for offset in change.offsets]
                (gone.taken if change.is_gone else gone.left)(places)


def _changes(body: bytes, max_offset: Ends) -> Iterator[_Change]:
    _, at = keys_of(body)
    for kind, payload in events_in(body, at):
        if kind not in (events.TAKEN, events.LEFT, events.LETTER):
            continue
        event = events.read(kind, payload)
        if isinstance(event, events.DeadLetterRemoveEvent | events.DeadLetterKeepEvent):
            yield _Change(kind == events.TAKEN, event.topic, event.queue, offsets_of(event.ranges))
        elif isinstance(event, events.DeadLetterSettleEvent):
            topic, queue, offset = event.copy
            # A crash may have lost the copy.
            if max_offset(topic, queue) > offset:
                topic, queue, offset = event.letter
                yield _Change(True, topic, queue, [offset])


def offsets_in(gone: GoneDeadLetters, topic: str, queue: int, stop: int) -> list[int]:
    """The gone letters of a queue at offsets [0, stop)."""
    offsets = np.arange(stop)
    return [int(offset) for offset in offsets[gone.among(topic, queue, offsets)]]
