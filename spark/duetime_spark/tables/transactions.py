"""Tables `transactions`, a shard's half messages by the units of their queue, and `transaction_ends`, by its log.

A unit's mark gives the end of a half message, and its place: one ended after the snapshot was open then. Without a
mark the log gives it (duetime_shard.halves), and also for all half messages from a broker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from duetime_format import halves, record
from duetime_format.columns import RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.halves import are_ended, ends_of
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.units import FILLER_SIZE, Ints, Units, joined
from duetime_shard import halves as halves_on_disk
from duetime_shard.disk import ShardFiles
from duetime_shard.facts import NOWHERE, decided
from duetime_shard.files import LogFiles
from duetime_shard.walk import scan_runs

from duetime_spark.shards.snapshot import ShardImage
from duetime_spark.shards.units import UnitWindow, window_of
from duetime_spark.tables import messages
from duetime_spark.tables.filters import RowFilter

_UNITS_AT_ONCE = 65_536
OPEN = "open"
# Names by the codes of duetime_format.halves.
STATES = ("ended", "committed", "rolled back", "given up")
ENDED, COMMITTED, ROLLED_BACK, GIVEN_UP = STATES
_NO_CODE = -1
_OF_RECORD = frozenset(("id", "group", "topic", "prepared_at_ms"))
_REAL_TOPIC = record.REAL_TOPIC.encode()


@dataclass(frozen=True)
class TransactionsTask:
    """A shard's queue of half messages."""

    shard: int
    files: ShardFiles
    # The log's bounds at the snapshot.
    first: int
    end: int
    window: UnitWindow
    schema: pa.Schema
    row_filter: RowFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        parts = list(self.window.read(self.files, _UNITS_AT_ONCE))
        offsets = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
        units = joined(part for _, part in parts).copy()
        tags = units["tags"].astype(np.int64)
        units["tags"] = tags = np.where(are_ended(tags) & (ends_of(tags).positions >= self.end), 0, tags)
        judged = halves_on_disk.judge(self.files, offsets, units, end=self.end)
        tags = tags.copy()
        tags[np.searchsorted(offsets, judged.ended)] = judged.tags
        codes = np.where(are_ended(tags), ends_of(tags).codes, _NO_CODE)
        places = np.where(are_ended(tags), ends_of(tags).positions, 0)
        kept = (units["size"] != FILLER_SIZE) & (units["size"] > 0)
        wanted = [code for code in range(_NO_CODE, len(STATES)) if self.row_filter.allows("state", _state(code))]
        kept &= np.isin(codes, wanted)
        log = LogFiles(self.files)
        for rows in np.array_split(np.flatnonzero(kept), max(len(units) // _UNITS_AT_ONCE, 1)):
            if len(rows):
                found = self._batch(log, offsets[rows], units[rows], codes[rows], places[rows])
                yield self.row_filter.keep(found)
        self.files.close()

    def _batch(self, log: LogFiles, offsets: Ints, units: Units, codes: Ints, places: Ints) -> pa.RecordBatch:
        there = places >= max(self.first, 1)
        columns: dict[str, Any] = {
            "shard": np.full(len(units), self.shard),
            "offset": offsets,
            "position": units["position"].astype(np.int64),
            "size": units["size"].astype(np.int64),
            "state": [_state(code) for code in codes.tolist()],
            "end_position": pa.array(places, mask=~there),
        }
        if _OF_RECORD & set(self.schema.names):
            columns |= _columns(log, units)
        arrays = [
            column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in self.schema
            for column in [columns[field.name]]
        ]
        return pa.record_batch(arrays, schema=self.schema)


def _state(code: int) -> str:
    return OPEN if code == _NO_CODE else STATES[code]


def _columns(log: LogFiles, units: Units) -> dict[str, list[Any]]:
    """The columns from the records of half messages."""
    rows: list[tuple[Any, ...]] = []
    for position, size, _ in units.tolist():
        try:
            found = record.decode(log.read(position, size))
        except DamagedBytes:
            rows.append((None,) * 4)
            continue
        properties = found.properties
        names = halves.message_id_of(properties), halves.group_of(properties)
        topic = as_text(value_of(properties, _REAL_TOPIC))
        rows.append((*(name or None for name in (*names, topic)), found.stored_at_ms))
    return dict(zip(("id", "group", "topic", "prepared_at_ms"), map(list, zip(*rows, strict=True)), strict=True))


@dataclass(frozen=True)
class TransactionEndsTask:
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
                columns = dict(zip(self._names, map(list, zip(*rows, strict=True)), strict=True))
                arrays = [pa.array(columns[field.name], field.type) for field in self.schema]
                yield self.row_filter.keep(pa.record_batch(arrays, schema=self.schema))
        self.files.close()

    _names = ("shard", "offset", "end", "position", "topic", "queue", "queue_offset")

    def _rows(self, item: object, stop: int) -> Iterator[tuple[Any, ...]]:
        if isinstance(item, RecordRun):
            rows, _ = decided(item)
            for offset, code, index, _ in rows[:, item.positions[rows[2]] < stop].T.tolist():
                topic, queue = item.keys[item.key_of[index]]
                named = None if offset == NOWHERE else offset
                place = topic.decode(), queue, int(item.offsets[index])
                yield self.shard, named, STATES[code], int(item.positions[index]), *place


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[TransactionsTask]:
    tasks = []
    for shard in shards:
        snapshot = shard.snapshot
        for queue in snapshot.queues:
            if (queue.topic, queue.queue) == (HALF_TOPIC, 0) and row_filter.allows("shard", snapshot.shard):
                window = window_of(queue, 0, queue.max_offset)
                bounds = snapshot.min_position, snapshot.end
                tasks.append(TransactionsTask(snapshot.shard, shard.files, *bounds, window, schema, row_filter))
    return tasks


def plan_ends(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[TransactionEndsTask]:
    """Tasks as for the table `messages`, for shards with transactions."""
    known = [shard for shard in shards if any(queue.topic == HALF_TOPIC for queue in shard.snapshot.queues)]
    tasks = messages.plan(known, schema, row_filter)
    return [TransactionEndsTask(task.shard, task.files, task.ranges, schema, row_filter) for task in tasks]
