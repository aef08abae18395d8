"""A job's input: tables at one snapshot, and the moment that counts as now."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession


class Tables(Protocol):
    """Reads the tables of the data source, all at one snapshot."""

    def __call__(self, table: str, columns: str) -> DataFrame:
        """The comma-separated columns of a table; a query reads what this gives once (source.py says why)."""


@dataclass(frozen=True)
class Context:
    """A job's surroundings.

    Args:
        lanes: the rows of the table `lanes`, by shard and level, which the driver knows without Spark.
        now_ms: Unix ms that count as now; None: each shard's moment of the snapshot.
        late_ms: a message that takes longer is late.
        listed: most entries in a list that may grow with the data; counts are always complete.
        whole: lists are complete, for files.
        left: shards whose logs have lost segments to retention since the snapshot, as of now.
        findings: damage that the job finds, as rows of table `findings`.
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
        """(shard, topic, queue, offset) of dead letters that were redriven or discarded; their records remain."""
        return self.table("gone", "shard,topic,queue,offset")

    @property
    def moments(self) -> dict[int, int]:
        """The moment that counts as now, for each shard: Unix ms, 0 where nothing was ever stored."""
        shards: dict[int, int] = {}
        for lane in self.lanes:
            at_ms = lane["snapshot_at_ms"] or 0 if self.now_ms is None else self.now_ms
            shards[lane["shard"]] = max(at_ms, shards.get(lane["shard"], 0))
        return shards
