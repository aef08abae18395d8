"""A job's input: tables at one snapshot, and the moment used as now."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession


class Tables(Protocol):
    """Reads the tables of the data source, all at one snapshot."""

    def __call__(self, table: str, columns: str) -> DataFrame:
        """The comma-separated columns of a table; a query may read the result only once (see source.py)."""


@dataclass(frozen=True)
class JobContext:
    """Input and options of a job.

    Args:
        lanes: the rows of the table `lanes`, by shard and level, read on the driver without Spark.
        now_ms: Unix ms used as now; None: each shard's moment of the snapshot.
        late_ms: above this time a message is late.
        listed: limit on entries of growing lists; counts are always complete.
        whole: lists are complete, for files.
        left: returns shards with segments removed by retention since the snapshot.
        findings: damage found by the job, as rows of table `findings`.
    """

    spark: SparkSession
    table: Tables
    lanes: list[dict[str, Any]]
    now_ms: int | None = None
    late_ms: int = 100
    listed: int = 100
    whole: bool = False
    left: Callable[[], frozenset[int]] = frozenset
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def gone(self) -> DataFrame:
        """(shard, topic, queue, offset) of redriven or discarded dead letters; their records remain."""
        return self.table("gone", "shard,topic,queue,offset")

    @property
    def moments(self) -> dict[int, int]:
        """The moment used as now, for each shard: Unix ms, 0 if nothing was ever stored."""
        shards: dict[int, int] = {}
        for lane in self.lanes:
            at_ms = lane["snapshot_at_ms"] or 0 if self.now_ms is None else self.now_ms
            shards[lane["shard"]] = max(at_ms, shards.get(lane["shard"], 0))
        return shards
