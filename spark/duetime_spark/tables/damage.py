"""Table `damage`: damaged parts of the log, found by reading every byte of it up to the snapshot.

Rows are like those of `findings`: records with a wrong CRC, and skipped bytes without a record. Segments removed by
retention since the snapshot are not read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from duetime_spark.decoding.decode import Decoder
from duetime_spark.shards.snapshot import ShardImage
from duetime_spark.tables.filters import RowFilter
from duetime_spark.tables.messages import MessagesTask
from duetime_spark.tables.messages import plan as plan_messages

_COLUMNS = ("position", "size", "damage")


@dataclass(frozen=True)
class DamageTask:
    """The damage in the input of a task of `messages`."""

    task: MessagesTask
    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for base, decoder, batches in self.task.decoded(_COLUMNS):
            rows = [row for batch in batches for row in self._records(base, batch)]
            rows += self._skipped(base, decoder)
            if rows:
                rows.sort(key=lambda row: row["position"])
                found = [{name: row[name] for name in self.schema.names} for row in rows]
                yield pa.RecordBatch.from_pylist(found, self.schema)

    def _records(self, base: int, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        for row in batch.filter(pc.is_valid(batch.column("damage"))).to_pylist():
            yield self._row(base, row["position"], row["size"], row["damage"])

    def _skipped(self, base: int, decoder: Decoder) -> Iterator[dict[str, Any]]:
        has_left = decoder.skipped and not self.task.files.exists(f"commitlog/{base:020d}")
        for skipped in decoder.skipped if not has_left else ():
            yield self._row(base, skipped.position, skipped.size, skipped.damage)

    def _row(self, base: int, position: int, size: int, words: str) -> dict[str, Any]:
        path = f"commitlog/{base:020d}"
        return {"shard": self.task.shard, "path": path, "position": position - base, "size": size, "words": words}


def plan(shards: Sequence[ShardImage], schema: pa.Schema, row_filter: RowFilter) -> list[DamageTask]:
    """Tasks of the same size as those of `messages`."""
    # Other columns differ in meaning from `messages`: a position is relative to its file.
    keys = RowFilter({name: bounds for name, bounds in row_filter.columns.items() if name == "shard"})
    return [DamageTask(task, schema) for task in plan_messages(shards, schema, keys)]
