"""What is pending, by shard, level and topic, what falls due when, and whether restores keep up."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from duetime_core.ondisk.units import UNIT
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime_spark.jobs.columns import HOUR_MS, LANE_TOPIC, MINUTE_MS, SECOND_MS, floor_to, is_restored, of_shard
from duetime_spark.jobs.context import Context

MINUTES_AHEAD, HOURS_AHEAD = 24 * 60, 30 * 24
MEASURED_MS = 600_000
_MINUTES = "shard,level,topic,minute,count,bytes,oldest_due_at_ms,overdue_count,overdue_bytes,next_due_at_ms"
_PLACES = "shard,level,topic,offset,position"
_RESTORED = "shard,topic,real_topic,lane_level,stored_at_ms,sys_flag"


@dataclass(frozen=True, slots=True)
class Pending:
    """What is pending of one topic on one level of one shard; level 0: a broker's 5.x timers.

    topic: None where the record does not say or is damaged. Entries that were restored, and whose record retention
    took, while the job ran are counted without bytes and due time.
    """

    shard: int
    level: int
    topic: str | None
    count: int
    bytes: int
    oldest_due_at_ms: int | None
    overdue_count: int
    overdue_by_ms: int
    next_due_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as its shard tells it: `pending_count` is entries from the watermark on, unreadable ones included."""

    shard: int
    level: int
    delay_ms: int | None
    watermark: int
    max_offset: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class Due:
    """What falls due within the minute or hour that begins at `at_ms`."""

    at_ms: int
    level: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Restores needed, against those of the log's last ten minutes.

    needed_per_s: of the fullest minute ahead, which begins at `needed_at_ms`; what is overdue is not in it.
    measured_per_s, measured_peak_per_s: over the ten minutes, and in their fullest second: what was asked of the
    cluster, which may be less than what it can do.
    """

    needed_per_s: float
    needed_at_ms: int | None
    measured_per_s: float
    measured_peak_per_s: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """The result; lists are by shard, level and topic, or by moment and level. Empty minutes and hours are left out."""

    now_ms: int
    pending_count: int
    pending_bytes: int
    overdue_count: int
    overdue_by_ms: int
    next_due_at_ms: int | None
    forecast: Forecast
    lanes: list[Lane]
    pending: list[Pending]
    due_minutes: list[Due]
    due_hours: list[Due]
    later_count: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def transform(pending: DataFrame, moments: Mapping[int, int]) -> DataFrame:
    """Pending entries by (shard, level, topic, minute), from which all else follows: what table `pending_minutes` is,
    whose reader sums where it reads.

    Adds: count, bytes, oldest_due_at_ms, overdue_count and overdue_bytes (due at or before the shard's moment),
    next_due_at_ms (after it).
    """
    due = F.col("due_at_ms")
    is_overdue = due <= of_shard(moments)
    return pending.groupBy("shard", "level", "topic", floor_to("due_at_ms", MINUTE_MS).alias("minute")).agg(
        F.count(F.lit(1)).alias("count"),
        F.sum(F.coalesce("size", F.lit(0))).alias("bytes"),
        F.min(due).alias("oldest_due_at_ms"),
        F.count(F.when(is_overdue, 1)).alias("overdue_count"),
        F.sum(F.when(is_overdue, F.col("size")).otherwise(0)).alias("overdue_bytes"),
        F.min(F.when(~is_overdue, due)).alias("next_due_at_ms"),
    )


def merged(minutes: DataFrame) -> DataFrame:
    """One row of each (shard, level, topic, minute)."""
    sums, lowest = ("count", "bytes", "overdue_count", "overdue_bytes"), ("oldest_due_at_ms", "next_due_at_ms")
    return minutes.groupBy("shard", "level", "topic", "minute").agg(
        *[F.sum(name).alias(name) for name in sums], *[F.min(name).alias(name) for name in lowest]
    )


def by_topic(minutes: DataFrame) -> DataFrame:
    """By (shard, level, topic), from `transform`'s rows."""
    return minutes.groupBy("shard", "level", "topic").agg(
        F.sum("count").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.min("oldest_due_at_ms").alias("oldest_due_at_ms"),
        F.sum("overdue_count").alias("overdue_count"),
        F.min("next_due_at_ms").alias("next_due_at_ms"),
    )


def due_ahead(minutes: DataFrame, now_ms: int, unit_ms: int, units: int) -> DataFrame:
    """By (at_ms, level): what falls due in each of so many units from now's on; what is before now is left out."""
    first = now_ms // unit_ms
    per_unit = minutes.withColumn("unit", F.expr(f"minute div {unit_ms // MINUTE_MS}"))
    ahead = per_unit.where((F.col("unit") >= first) & (F.col("unit") < first + units))
    sums = ahead.groupBy((F.col("unit") * unit_ms).alias("at_ms"), "level").agg(
        F.sum(F.col("count") - F.col("overdue_count")).alias("count"),
        F.sum(F.col("bytes") - F.col("overdue_bytes")).alias("bytes"),
    )
    return sums.where(F.col("count") > 0)


def restored_per_second(messages: DataFrame, until_ms: int) -> DataFrame:
    """(second, count) of what was restored in the ten minutes up to a moment."""
    stored = F.col("stored_at_ms")
    recent = messages.where((stored > until_ms - MEASURED_MS) & (stored <= until_ms) & is_restored())
    return recent.groupBy(floor_to("stored_at_ms", SECOND_MS).alias("second")).agg(F.count(F.lit(1)).alias("count"))


def run(context: Context) -> Backlog:
    moments = context.moments
    now_ms = max(moments.values(), default=0)
    minutes = merged(context.table("pending_minutes", _MINUTES)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        pending = [
            Pending(**row.asDict(), overdue_by_ms=_overdue_by_ms(moments.get(row["shard"]), row["oldest_due_at_ms"]))
            for row in by_topic(minutes).orderBy("shard", "level", "topic").collect()
        ]
        due_minutes = _listed(due_ahead(minutes, now_ms, MINUTE_MS, MINUTES_AHEAD))
        due_hours = _listed(due_ahead(minutes, now_ms, HOUR_MS, HOURS_AHEAD))
        needed = _fullest_minute(minutes)
        end_ms = (now_ms // HOUR_MS + HOURS_AHEAD) * HOUR_MS
        later = minutes.where(F.col("minute") * MINUTE_MS >= end_ms).agg(F.sum("count")).first()
    finally:
        minutes.unpersist()
    if any(row.topic is None for row in pending):
        context.findings.extend(unreadable(context.table("pending", _PLACES), context.left(), context.listed))
    lanes = [
        Lane(row["shard"], row["level"], row["delay_ms"], row["watermark"], row["max_offset"], row["pending"])
        for row in context.lanes
    ]
    return Backlog(
        now_ms=now_ms,
        pending_count=sum(row.count for row in pending),
        pending_bytes=sum(row.bytes for row in pending),
        overdue_count=sum(row.overdue_count for row in pending),
        overdue_by_ms=max((row.overdue_by_ms for row in pending), default=0),
        next_due_at_ms=min((row.next_due_at_ms for row in pending if row.next_due_at_ms is not None), default=None),
        forecast=_forecast(context, needed),
        lanes=lanes,
        pending=pending,
        due_minutes=due_minutes,
        due_hours=due_hours,
        later_count=(later and later[0]) or 0,
    )


def unreadable(pending: DataFrame, left: frozenset[int], most: int) -> list[dict[str, Any]]:
    """Findings: entries whose units name no record that can be read. What has `left` with retention is none."""
    lost = pending.where("topic IS NULL AND position IS NOT NULL AND level > 0").where(~F.col("shard").isin(*left))
    rows = lost.orderBy("shard", "level", "offset").limit(most).collect()
    return [
        {
            "shard": row["shard"],
            "path": f"consumequeue/{LANE_TOPIC}/{row['level'] - 1}",
            "position": row["offset"] * UNIT.size,
            "size": UNIT.size,
            "words": f"entry {row['offset']} names no readable record at position {row['position']}",
        }
        for row in rows
    ]


def _overdue_by_ms(moment_ms: int | None, due_at_ms: int | None) -> int:
    return 0 if moment_ms is None or due_at_ms is None else max(0, moment_ms - due_at_ms)


def _listed(dues: DataFrame) -> list[Due]:
    return [Due(**row.asDict()) for row in dues.orderBy("at_ms", "level").collect()]


def _fullest_minute(minutes: DataFrame) -> tuple[int, int]:
    """(count, minute) of the minute in which the most falls due; (0, 0) where nothing will."""
    ahead = (
        minutes.where("minute IS NOT NULL")
        .groupBy("minute")
        .agg(F.sum(F.col("count") - F.col("overdue_count")).alias("count"))
    )
    fullest = ahead.orderBy(F.desc("count"), "minute").first()
    return (fullest["count"], fullest["minute"]) if fullest is not None and fullest["count"] else (0, 0)


def _forecast(context: Context, needed: tuple[int, int]) -> Forecast:
    """Measured up to the newest record of all shards, whatever counts as now: only then was anything restored."""
    until_ms = max((lane["snapshot_at_ms"] or 0 for lane in context.lanes), default=0)
    seconds = restored_per_second(context.table("messages", _RESTORED), until_ms)
    row = seconds.agg(F.sum("count").alias("all"), F.max("count").alias("most")).first()
    count, minute = needed
    return Forecast(
        needed_per_s=round(count * SECOND_MS / MINUTE_MS, 3),
        needed_at_ms=minute * MINUTE_MS if count else None,
        measured_per_s=round(((row and row["all"]) or 0) * SECOND_MS / MEASURED_MS, 3),
        measured_peak_per_s=(row and row["most"]) or 0,
    )
