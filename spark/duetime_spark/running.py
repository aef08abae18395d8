"""Runs a job over sources: one snapshot, one session, one result."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from duetime_spark.gone import GONE, gone_letters
from duetime_spark.jobs.context import JobContext
from duetime_spark.jobs.registry import JOBS, Result
from duetime_spark.moment import Moment
from duetime_spark.output import write

# Limit on damage in a result.
FINDINGS_MAX = 1_000
_FINDING = "shard,path,position,size,words"


@dataclass(frozen=True)
class JobOptions:
    """A job's options; see JobContext."""

    job: str
    now_ms: int | None = None
    late_ms: int = 100
    listed: int = 100
    out: str | None = None
    # Read and check every record, needed or not.
    is_strict: bool = False


@dataclass(frozen=True)
class JobOutcome:
    """A job's result at a moment."""

    order: JobOptions
    moment: Moment
    result: Result
    # Damage: (shard, path, position, size, words).
    findings: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        head = {"job": self.order.job, **self.moment.to_dict(), "findings": self.findings}
        return {**head, **self.result.to_dict()}


def run(spark: SparkSession, order: JobOptions, moment: Moment) -> JobOutcome:
    """The job's result; with `out` its tables are in files when this returns."""
    context = JobContext(
        spark,
        tables(spark, moment, order.now_ms),
        moment.lanes,
        now_ms=order.now_ms,
        late_ms=order.late_ms,
        listed=order.listed,
        whole=order.out is not None,
        left=moment.left,
    )
    job = JOBS[order.job]
    result = job.run(context)
    findings = moment.findings + context.findings
    if job.reads_all or order.is_strict:
        findings = with_damage(findings, context.table("damage", _FINDING))
    if order.out is not None:
        write(spark, order.out, order.job, moment, result, job.tables)
    return JobOutcome(order, moment, result, findings)


def with_damage(findings: list[dict[str, Any]], damage: DataFrame) -> list[dict[str, Any]]:
    """A snapshot's findings, and the first FINDINGS_MAX rows of table `damage`."""
    rows = [row.asDict() for row in damage.orderBy("shard", "path", "position").limit(FINDINGS_MAX).collect()]
    known = {(row["shard"], row["path"], row["position"]) for row in rows}
    return [one for one in findings if (one["shard"], one["path"], one["position"]) not in known] + rows


def tables(spark: SparkSession, moment: Moment, now_ms: int | None = None) -> Any:
    """A reader of tables, all at one moment; a query may read each DataFrame once."""

    def read(table: str, columns: str) -> DataFrame:
        if table == GONE:
            return gone_letters(spark, moment).select(*columns.split(","))
        reader = (
            spark.read.format("duetime").option("table", table).option("columns", columns).option("pushdown", "true")
        )
        if now_ms is not None:
            reader = reader.option("now_ms", str(now_ms))
        return reader.option("levels", moment.levels).option("snapshot", moment.text).load(",".join(moment.sources))

    return read
