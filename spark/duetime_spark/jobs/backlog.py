"""Pending messages by shard, level and topic, their due times, and whether restores keep up."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from duetime_format.lanes import place_of
from duetime_format.units import UNIT
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from duetime_spark.jobs.columns import HOUR_MS, MINUTE_MS, SECOND_MS, floor_to, is_restored, of_shard
from duetime_spark.jobs.context import JobContext

MINUTES_AHEAD, HOURS_AHEAD = 24 * 60, 30 * 24
MEASURED_MS = 600_000
_MINUTES = (
    "shard,level,topic,minute,count,bytes,oldest_due_at_ms,overdue_count,overdue_bytes,next_due_at_ms,paused_count"
)
_SUMS = "count", "bytes", "overdue_count", "overdue_bytes", "paused_count"
_PLACES = "shard,level,topic,offset,position"
_RESTORED = "shard,topic,real_topic,lane_level,stored_at_ms,sys_flag"


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """Pending messages of one topic in one lane of one shard; `level` from 1,000 on: messages for any time.

    topic: None if the record has none or is damaged. Entries restored, and their records removed by retention, while
    the job ran are counted without bytes and due time. `paused_count` of them are occurrences of paused schedules,
    which have no due time either.
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
    paused_count: int = 0


@dataclass(frozen=True, slots=True)
class LaneBacklog:
    """A lane by its shard's snapshot: `pending_count` counts entries neither restored nor ended, unreadable ones
    included. Messages for any time have no common delay; their `watermark` counts entries no longer pending."""

    shard: int
    level: int
    delay_ms: int | None
    watermark: int
    max_offset: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class DuePeriodCount:
    """Messages due within the minute or hour from `at_ms` on."""

    at_ms: int
    level: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Restores needed, compared with restores in the log's last ten minutes.

    needed_per_s: for the fullest minute ahead, from `needed_at_ms` on; without overdue messages.
    measured_per_s, measured_peak_per_s: over the ten minutes, and in their fullest second. They show the past load;
    the cluster may be able to do more.
    """

    needed_per_s: float
    needed_at_ms: int | None
    measured_per_s: float
    measured_peak_per_s: int


@dataclass(frozen=True, slots=True)
class BacklogJobResult:
    """The result; lists are by shard, level and topic, or by moment and level. Empty minutes and hours are left out.
    The `paused_count` occurrences of paused schedules are pending, and in no minute or hour."""

    now_ms: int
    pending_count: int
    pending_bytes: int
    overdue_count: int
    overdue_by_ms: int
    next_due_at_ms: int | None
    forecast: Forecast
    lanes: list[LaneBacklog]
    pending: list[PendingSummary]
    due_minutes: list[DuePeriodCount]
    due_hours: list[DuePeriodCount]
    later_count: int
    paused_count: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def transform(pending: DataFrame, moments: Mapping[int, int]) -> DataFrame:
    """Pending entries by (shard, level, topic, minute): the sums of table `pending_minutes`, from rows of `pending`.

    Adds: count, bytes, oldest_due_at_ms, overdue_count and overdue_bytes (due at or before the shard's moment),
    next_due_at_ms (after it), paused_count. Entries of paused schedules have no minute.
    """
    is_paused, due = F.coalesce("is_paused", F.lit(False)), F.col("due_at_ms")
    dated = pending.withColumn("is_paused", is_paused).withColumn("due_at_ms", F.when(~is_paused, due))
    is_overdue = due <= of_shard(moments)
    minute = floor_to("due_at_ms", MINUTE_MS).alias("minute")
    found = dated.groupBy("shard", "level", "topic", minute, "is_paused").agg(
        F.count(F.lit(1)).alias("count"),
        F.sum(F.coalesce("size", F.lit(0))).alias("bytes"),
        F.min(due).alias("oldest_due_at_ms"),
        F.count(F.when(is_overdue, 1)).alias("overdue_count"),
        F.sum(F.when(is_overdue, F.col("size")).otherwise(0)).alias("overdue_bytes"),
        F.min(F.when(~is_overdue, due)).alias("next_due_at_ms"),
        F.count(F.when(F.col("is_paused"), 1)).alias("paused_count"),
    )
    return found.drop("is_paused")


def merged(minutes: DataFrame) -> DataFrame:
    """One row of each (shard, level, topic, minute)."""
    sums, lowest = _SUMS, ("oldest_due_at_ms", "next_due_at_ms")
    return minutes.groupBy("shard", "level", "topic", "minute").agg(
        *[F.sum(name).alias(name) for name in sums], *[F.min(name).alias(name) for name in lowest]
    )


def summed(minutes: DataFrame, now_ms: int) -> DataFrame:
    """Sums of `transform`'s rows by grain, in one query; keys summed over are null.

    topic    by (shard, level, topic)
    minute   by (at_ms, level): each of MINUTES_AHEAD minutes from the current one on
    hour     by (at_ms, level): each of HOURS_AHEAD hours
    """
    none, minute, hour = F.lit(None), F.col("minute"), F.expr("minute div 60")
    next_minutes = (minute - now_ms // MINUTE_MS).between(0, MINUTES_AHEAD - 1)
    next_hours = (hour - now_ms // HOUR_MS).between(0, HOURS_AHEAD - 1)
    grains = [
        _grain("topic", None, F.col("shard"), F.col("topic"), none),
        _grain("minute", next_minutes, none, none, minute * MINUTE_MS),
        _grain("hour", next_hours, none, none, hour * HOUR_MS),
    ]
    keyed = minutes.withColumn("key", F.explode(F.array_compact(F.array(*grains)))).select(
        "key.*", "level", *_SUMS, "oldest_due_at_ms", "next_due_at_ms"
    )
    return keyed.groupBy("grain", "at_ms", "shard", "level", "topic").agg(
        *[F.sum(name).alias(name) for name in _SUMS],
        F.min("oldest_due_at_ms").alias("oldest_due_at_ms"),
        F.min("next_due_at_ms").alias("next_due_at_ms"),
    )


def _grain(name: str, condition: Column | None, shard: Column, topic: Column, at_ms: Column) -> Column:
    key = F.struct(
        F.lit(name).alias("grain"),
        at_ms.cast("bigint").alias("at_ms"),
        shard.cast("int").alias("shard"),
        topic.cast("string").alias("topic"),
    )
    return key if condition is None else F.when(condition, key)


def ahead(minutes: DataFrame, end_ms: int) -> DataFrame:
    """One row: `fullest`, the highest count of a minute and the negative of its number, and `later_count`, the number
    of messages due from `end_ms` on."""
    per_minute = (
        minutes.where("minute IS NOT NULL")
        .groupBy("minute")
        .agg(F.sum("count").alias("count"), F.sum(F.col("count") - F.col("overdue_count")).alias("waiting"))
    )
    return per_minute.agg(
        F.max(F.struct("waiting", (-F.col("minute")).alias("minute"))).alias("fullest"),
        F.sum(F.when(F.col("minute") * MINUTE_MS >= end_ms, F.col("count"))).alias("later_count"),
    )


def restored_per_second(messages: DataFrame, until_ms: int) -> DataFrame:
    """(second, count) of messages restored in the ten minutes up to a moment."""
    stored = F.col("stored_at_ms")
    recent = messages.where((stored > until_ms - MEASURED_MS) & (stored <= until_ms) & is_restored())
    return recent.groupBy(floor_to("stored_at_ms", SECOND_MS).alias("second")).agg(F.count(F.lit(1)).alias("count"))


def run(context: JobContext) -> BacklogJobResult:
    moments = context.moments
    now_ms = max(moments.values(), default=0)
    minutes = merged(context.table("pending_minutes", _MINUTES)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows: dict[str, list[dict[str, Any]]] = {"topic": [], "minute": [], "hour": []}
        for row in summed(minutes, now_ms).orderBy("at_ms", "shard", "level", "topic").collect():
            rows[row["grain"]].append(row.asDict())
        rest = ahead(minutes, (now_ms // HOUR_MS + HOURS_AHEAD) * HOUR_MS).first()
    finally:
        minutes.unpersist()
    pending = [_pending(row, moments.get(row["shard"])) for row in rows["topic"]]
    if any(row.topic is None for row in pending):
        context.findings.extend(unreadable(context.table("pending", _PLACES), context.left(), context.listed))
    lanes = [
        LaneBacklog(row["shard"], row["level"], row["delay_ms"], row["watermark"], row["max_offset"], row["pending"])
        for row in context.lanes
    ]
    return BacklogJobResult(
        now_ms=now_ms,
        pending_count=sum(row.count for row in pending),
        pending_bytes=sum(row.bytes for row in pending),
        overdue_count=sum(row.overdue_count for row in pending),
        overdue_by_ms=max((row.overdue_by_ms for row in pending), default=0),
        next_due_at_ms=min((row.next_due_at_ms for row in pending if row.next_due_at_ms is not None), default=None),
        forecast=_forecast(context, _fullest(rest)),
        lanes=lanes,
        pending=pending,
        due_minutes=_due(rows["minute"]),
        due_hours=_due(rows["hour"]),
        later_count=(rest and rest["later_count"]) or 0,
        paused_count=sum(row.paused_count for row in pending),
    )


def unreadable(pending: DataFrame, left: frozenset[int], most: int) -> list[dict[str, Any]]:
    """Findings: entries whose units name no readable record. Shards in `left` are excluded: retention may be why."""
    lost = pending.where("topic IS NULL AND position IS NOT NULL").where(~F.col("shard").isin(*left))
    rows = lost.orderBy("shard", "level", "offset").limit(most).collect()
    return [
        {
            "shard": row["shard"],
            "path": "consumequeue/{}/{}".format(*place_of(row["level"])),
            "position": row["offset"] * UNIT.size,
            "size": UNIT.size,
            "words": f"entry {row['offset']} names no readable record at position {row['position']}",
        }
        for row in rows
    ]


def _pending(row: dict[str, Any], moment_ms: int | None) -> PendingSummary:
    oldest_ms = row["oldest_due_at_ms"]
    overdue_by_ms = 0 if moment_ms is None or oldest_ms is None else max(0, moment_ms - oldest_ms)
    names = ("shard", "level", "topic", "count", "bytes", "oldest_due_at_ms", "overdue_count", "next_due_at_ms")
    own = {name: row[name] for name in (*names, "paused_count")}
    return PendingSummary(**own, overdue_by_ms=overdue_by_ms)


def _due(rows: list[dict[str, Any]]) -> list[DuePeriodCount]:
    """Without overdue messages."""
    found = [
        DuePeriodCount(
            row["at_ms"], row["level"], row["count"] - row["overdue_count"], row["bytes"] - row["overdue_bytes"]
        )
        for row in rows
    ]
    return [due for due in found if due.count]


def _fullest(rest: Row | None) -> tuple[int, int]:
    """(count, minute) of the minute with the most due messages; (0, 0) if no messages will be due."""
    fullest = rest and rest["fullest"]
    return (fullest["waiting"], -fullest["minute"]) if fullest and fullest["waiting"] else (0, 0)


def _forecast(context: JobContext, needed: tuple[int, int]) -> Forecast:
    """Measured up to the newest record of all shards, not up to `now_ms`: later there are no restores."""
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
