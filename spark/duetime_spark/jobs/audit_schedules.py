"""The proof of schedules: each occurrence is delivered once, and the next one is stored with it, at its planned time.

    record of n + 1, record of n delivered    neighbours among the records of a schedule (duetime_core.chains)

One occurrence of each schedule is pending. Times by the clock of a zone are counted, and not compared: they depend on
the release of the zones by which they were planned.
"""

from dataclasses import dataclass

from duetime_core.chains import NO_NEXT, OTHER_TIME
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from duetime_spark.jobs.context import JobContext

DELIVERED_TWICE, SEVERAL_PENDING = "delivered twice", "several pending"
_NAME = ("shard", "topic", "schedule")
_CHAIN = "shard,topic,schedule,made_at_ms,planned_at_ms,is_delivered,level,offset,position,is_last,next_at_ms"
_PENDING = "shard,topic,schedule,planned_at_ms,is_delivered,level,offset,position"
_COLUMNS = ("kind", *_NAME, "planned_at_ms", "position")


@dataclass(frozen=True, slots=True)
class ScheduleProof:
    """The schedules of one shard. `schedules` have a pending occurrence, paused ones too; `unjudged` of the `delivered`
    ones depend on a zone's rules."""

    shard: int
    schedules: int
    delivered: int
    unjudged: int
    violation_count: int
    is_proven: bool


@dataclass(frozen=True, slots=True)
class ScheduleViolation:
    """`position` is the delivered record's, or that of the latest pending one."""

    kind: str
    shard: int
    topic: str
    schedule: str
    planned_at_ms: int | None
    position: int


def run(context: JobContext) -> tuple[list[ScheduleProof], list[ScheduleViolation]]:
    """Proofs by shard, and the first violations of each kind."""
    counted = (
        _delivered(context)
        .groupBy("shard")
        .agg(
            F.count(F.lit(1)).alias("delivered"),
            F.count(F.when(F.col("next_at_ms").isNull() & ~F.col("is_last"), 1)).alias("unjudged"),
        )
    )
    delivered = {row["shard"]: row for row in counted.collect()}
    waiting = _pending(context).select(*_NAME).distinct().groupBy("shard").count()
    pending = {row["shard"]: row["count"] for row in waiting.collect()}
    if not delivered and not pending:
        return [], []
    found = _violations(context).persist()
    try:
        violations = {row["shard"]: row["count"] for row in found.groupBy("shard").count().collect()}
        listed = found.orderBy(*_COLUMNS).limit(context.listed).collect()
    finally:
        found.unpersist()
    proofs = []
    for shard in sorted(delivered.keys() | pending.keys()):
        row, count = delivered.get(shard), violations.get(shard, 0)
        proofs.append(
            ScheduleProof(
                shard=shard,
                schedules=pending.get(shard, 0),
                delivered=row["delivered"] if row is not None else 0,
                unjudged=row["unjudged"] if row is not None else 0,
                violation_count=count,
                is_proven=not count,
            )
        )
    return proofs, [ScheduleViolation(**row.asDict()) for row in listed]


def _delivered(context: JobContext) -> DataFrame:
    return context.table("occurrences", "shard,is_delivered,is_last,next_at_ms").where("is_delivered")


def _pending(context: JobContext) -> DataFrame:
    """The records of pending occurrences. Retention may have appended one again."""
    places = context.table("pending", "shard,level,offset")
    ours = context.table("occurrences", _PENDING).where("NOT is_delivered")
    return ours.join(places, ["shard", "level", "offset"], "left_semi")


def _violations(context: JobContext) -> DataFrame:
    """(kind, shard, topic, schedule, planned_at_ms, position)."""
    chain = context.table("occurrences", _CHAIN)
    turns = Window.partitionBy(*_NAME).orderBy("position")
    before = F.lag(F.struct("is_delivered", "made_at_ms", "planned_at_ms")).over(turns)
    delivered = chain.withColumn("after", before).where("is_delivered")
    after = F.col("after")
    is_own = after["planned_at_ms"].eqNullSafe(F.col("planned_at_ms"))
    is_next = ~after["is_delivered"] & (after["made_at_ms"] == F.col("made_at_ms")) & ~is_own
    has_next = F.coalesce(is_next, F.lit(False))
    kind = F.when(~has_next & ~F.col("is_last"), NO_NEXT).when(
        has_next & (after["planned_at_ms"] != F.col("next_at_ms")), OTHER_TIME
    )
    broken = delivered.withColumn("kind", kind).where(F.col("kind").isNotNull()).select(*_COLUMNS)
    again = (
        context.table("occurrences", _CHAIN)
        .where("is_delivered")
        .groupBy(*_NAME, "made_at_ms", "planned_at_ms")
        .agg(F.count_distinct("level", "offset").alias("copies"), F.max("position").alias("position"))
    )
    twice = again.where("copies > 1").withColumn("kind", F.lit(DELIVERED_TWICE)).select(*_COLUMNS)
    waiting = (
        _pending(context)
        .groupBy(*_NAME)
        .agg(
            F.count_distinct("level", "offset").alias("copies"),
            F.max("position").alias("position"),
            F.max_by("planned_at_ms", "position").alias("planned_at_ms"),
        )
    )
    several = waiting.where("copies > 1").withColumn("kind", F.lit(SEVERAL_PENDING)).select(*_COLUMNS)
    return broken.unionByName(twice).unionByName(several)
