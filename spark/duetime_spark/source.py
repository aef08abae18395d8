"""`spark.read.format("duetime")`: tables of store directories and running stores, at one snapshot for each shard.

    option        meaning
    path          directories and URLs, comma-separated; so does `load(...)`
    endpoint      HOST:PORT of stores and gateways, comma-separated
    table         one of tables.py
    columns       comma-separated; without it all except bodies of messages
    levels        the delay table of a broker's directory; DueTime's directories name theirs
    snapshot      a result of `take_snapshots`: the moment to read; without it: now
    rows          approximate rows of a task
    now_ms        for pending_minutes: entries due by then are overdue; without it: the snapshot's moment
    strict        true: damage found by the snapshot is an error
    pushdown      true: filters skip files, ranges and rows; only for a DataFrame read once in a query

PySpark passes filters to a data source, but not the columns of a query: name them, or give a schema. PySpark 4.3 keeps
one set of pushed filters for each DataFrame, even if several scans read it: with pushed filters,
`df.where(a).union(df.where(b))` reads the rows of b twice. So pushdown needs a known query.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from duetime_core.errors import DataLoss, InvalidArgument, Violation
from duetime_format.levels import DEFAULT_DELAY_LEVELS
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from duetime_spark.shards.snapshot import ShardImage, open_shards
from duetime_spark.tables import (
    damage,
    ends,
    journal,
    messages,
    occurrences,
    pending,
    pending_minutes,
    queue_entries,
    snapshot_tables,
    transactions,
)
from duetime_spark.tables.filters import RowFilter
from duetime_spark.tables.schemas import chosen, schema_of

_ROWS = 1_000_000
_OPTIONS = frozenset(
    ("path", "endpoint", "table", "columns", "levels", "snapshot", "rows", "strict", "now_ms", "pushdown")
)


class ReadTask(Protocol):
    """The input of one Spark task. It can be pickled."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...


class Partition(InputPartition):
    """A task as Spark distributes it."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


class DueTimeSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "duetime"

    def schema(self) -> StructType:
        return from_arrow_schema(self._arrow_schema())

    def reader(self, schema: StructType) -> "DueTimeReader":
        self._check()
        arrow = self._of_user(schema)
        return DueTimeReader(
            self._table, arrow, self._shards(), self._rows(), self._now_ms(), pushes=self._is_true("pushdown")
        )

    @property
    def _table(self) -> str:
        table = self.options.get("table")
        if table is None:
            schema_of("", None)
            raise AssertionError("there is no table without a name")
        return str(table)

    def _arrow_schema(self) -> pa.Schema:
        return schema_of(self._table, self.options.get("columns"))

    def _of_user(self, schema: StructType) -> pa.Schema:
        """The user's columns in the user's order, with the table's types. Raises: InvalidArgument."""
        self._arrow_schema()
        found = chosen(self._table, schema.fieldNames())
        for field in schema.fields:
            own, asked = found.field(field.name).type, to_arrow_type(field.dataType)
            if own != asked:
                words = f"column {field.name} of table {self._table} is {own}, the schema says {asked}"
                raise InvalidArgument([Violation("schema", words)])
        return found

    def _check(self) -> None:
        unknown = sorted(set(self.options) - _OPTIONS)
        if unknown:
            words = f"there is no such option; there are {', '.join(sorted(_OPTIONS))}"
            raise InvalidArgument([Violation(name, words) for name in unknown])

    def _shards(self) -> list[ShardImage]:
        sources = _split(self.options.get("path"))
        sources += [f"grpc://{address.removeprefix('grpc://')}" for address in _split(self.options.get("endpoint"))]
        levels = self.options.get("levels") or DEFAULT_DELAY_LEVELS
        shards = open_shards(sources, levels, self.options.get("snapshot"))
        found = [finding for shard in shards for finding in shard.snapshot.findings]
        if found and self._is_true("strict"):
            place = f"{found[0].path} at {found[0].position}: {found[0].words}"
            raise DataLoss(f"{len(found)} places are damaged, the first is {place}")
        return shards

    def _is_true(self, name: str) -> bool:
        return (self.options.get(name) or "").lower() == "true"

    def _rows(self) -> int:
        text = str(self.options.get("rows") or _ROWS)
        if not text.isdigit() or not int(text):
            raise InvalidArgument([Violation("rows", f"{text!r} is not a whole number above 0")])
        return int(text)

    def _now_ms(self) -> int | None:
        text = self.options.get("now_ms")
        if text is not None and not text.isdigit():
            raise InvalidArgument([Violation("now_ms", f"{text!r} is not a Unix time in milliseconds")])
        return None if text is None else int(text)


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


class DueTimeReader(DataSourceReader):
    """Plans tasks on the driver; a partition contains everything for its task."""

    def __init__(
        self,
        table: str,
        schema: pa.Schema,
        shards: Sequence[ShardImage],
        rows: int,
        now_ms: int | None,
        *,
        pushes: bool = False,
    ) -> None:
        self._table = table
        self._schema = schema
        self._shards = shards
        self._rows = rows
        self._now_ms = now_ms
        self._pushes = pushes
        self._row_filter = RowFilter()

    def __getstate__(self) -> dict[str, Any]:
        """Spark sends the reader with each task, and no task uses it."""
        return {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        if self._pushes:
            self._row_filter = RowFilter.of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        empty = snapshot_tables.RowsTask(pa.RecordBatch.from_pylist([], self._schema))
        return [Partition(task) for task in self._plan() or [empty]]

    def _plan(self) -> Sequence[ReadTask]:
        if self._table == "queue_entries":
            return queue_entries.plan(self._shards, self._schema, self._row_filter, self._rows)
        if self._table == "pending":
            return pending.plan(self._shards, self._schema, self._row_filter, self._rows)
        if self._table == "pending_minutes":
            return pending_minutes.plan(self._shards, self._schema, self._row_filter, self._rows, self._now_ms)
        if self._table == "messages":
            return messages.plan(self._shards, self._schema, self._row_filter)
        if self._table == "deliveries":
            return journal.plan(self._shards, self._schema, self._row_filter)
        if self._table == "ends":
            return ends.plan(self._shards, self._schema, self._row_filter)
        if self._table == "transactions":
            return transactions.plan(self._shards, self._schema, self._row_filter)
        if self._table == "transaction_ends":
            return transactions.plan_ends(self._shards, self._schema, self._row_filter)
        if self._table == "occurrences":
            return occurrences.plan(self._shards, self._schema, self._row_filter)
        if self._table == "damage":
            return damage.plan(self._shards, self._schema, self._row_filter)
        if self._table == "lanes":
            return snapshot_tables.plan_lanes(self._shards, self._schema, self._row_filter)
        return snapshot_tables.plan_findings(self._shards, self._schema, self._row_filter)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        return partition.task.batches()


def register(spark: SparkSession) -> None:
    """Registers `spark.read.format("duetime")`."""
    spark.dataSource.register(DueTimeSource)
