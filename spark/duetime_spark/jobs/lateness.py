"""Lateness: restored messages compared with their due times, and the slowest stage of late ones.

Stages are measured by time stamps. A lane record's store time is the due time less the level's delay, so

    born ──accept──▶ stored in the lane ──delay──▶ due ──scan──▶ stored in its topic ──consumer──▶ first received

are lengths between stamps. Records are stamped at the append, so the wait for the flush has no length of its own: it is
part of `scan` for records that wait for a flush, and of `consumer` for their readers. If another machine's clock
stamped the birth, `accept` is wrong by the difference of the clocks. Retries are born long before they enter a lane,
so they have no `accept`.
"""

from dataclasses import asdict, dataclass
from typing import Any

from duetime_format.names import RETRY_PREFIX
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from duetime_spark.jobs.columns import MINUTE_MS, floor_to, is_restored, percentiles
from duetime_spark.jobs.context import JobContext

CAUSES = ("accept", "scan", "consumer")
_MESSAGES = (
    "shard,topic,queue,offset,real_topic,lane_level,lane_due_at_ms,born_at_ms,stored_at_ms,reconsume_times,sys_flag"
)
_DELIVERIES = "shard,queue_topic,queue,offset,received_at_ms"
_MINUTES_LISTED, _ALL_MINUTES = 10_000, 2**31 - 1
_KEYS = ("level", "topic", "minute")
# The keys of each list of results.
GRAINS = {"total": (), "topics": ("level", "topic"), "level_minutes": ("level", "minute"), "minutes": _KEYS}


@dataclass(frozen=True, slots=True)
class LatenessSummary:
    """Restored messages of one level, topic and minute of due times; keys summed over are None.

    Percentiles are exact, of whole ms from due to stored. `late_count` counts messages with a stage longer than the
    threshold; `late_accept` to `late_consumer` count them by the longest stage.
    """

    level: int | None
    topic: str | None
    at_ms: int | None
    count: int
    p50_ms: int
    p99_ms: int
    p999_ms: int
    max_ms: int
    early_count: int
    late_count: int
    late_accept: int
    late_scan: int
    late_consumer: int


@dataclass(frozen=True, slots=True)
class LatenessJobResult:
    """The result. `undated_count`: restored by a broker, and thus without a due time.

    `minutes` has the newest minutes of each level and topic; `minutes_left_out` counts the others.
    """

    late_ms: int
    total: LatenessSummary | None
    topics: list[LatenessSummary]
    level_minutes: list[LatenessSummary]
    minutes: list[LatenessSummary]
    minutes_left_out: int
    undated_count: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def transform(messages: DataFrame, lanes: DataFrame, deliveries: DataFrame, late_ms: int) -> DataFrame:
    """Restored messages by (level, topic, minute, lateness_ms): count, early ones, and late ones by cause.

    level and minute are null for messages without a due time. Minutes of due times are counted since 1970.
    """
    received = deliveries.groupBy("shard", F.col("queue_topic").alias("topic"), "queue", "offset").agg(
        F.min("received_at_ms").alias("received_at_ms")
    )
    delays = F.broadcast(lanes.select("shard", F.col("level").alias("lane_level"), "delay_ms"))
    restored = (
        messages.where(is_restored())
        .join(delays, ["shard", "lane_level"], "left")
        .join(received, ["shard", "topic", "queue", "offset"], "left")
    )
    due, stored = F.col("lane_due_at_ms"), F.col("stored_at_ms")
    is_first = (F.col("reconsume_times") == 0) & ~F.col("topic").startswith(RETRY_PREFIX)
    parts = {
        "accept": F.when(is_first, due - F.col("delay_ms") - F.col("born_at_ms")),
        "scan": stored - due,
        "consumer": F.col("received_at_ms") - stored,
    }
    measured = restored.select(
        F.col("lane_level").alias("level"),
        "topic",
        floor_to("lane_due_at_ms", MINUTE_MS).alias("minute"),
        (stored - due).alias("lateness_ms"),
        *[F.coalesce(part, F.lit(0)).alias(name) for name, part in parts.items()],
    )
    longest = F.greatest(*CAUSES)
    is_late = F.col("lateness_ms").isNotNull() & (longest > late_ms)
    # The first of equal ones.
    first = F.when(F.col("accept") == longest, "accept").when(F.col("scan") == longest, "scan").otherwise("consumer")
    caused = measured.withColumn("cause", F.when(is_late, first))
    return caused.groupBy("level", "topic", "minute", "lateness_ms").agg(
        F.count(F.lit(1)).alias("count"),
        F.count(F.when(F.col("lateness_ms") < 0, 1)).alias("early_count"),
        F.count("cause").alias("late_count"),
        *[F.count(F.when(F.col("cause") == name, 1)).alias(f"late_{name}") for name in CAUSES],
    )


def summed(histogram: DataFrame) -> DataFrame:
    """Percentiles and sums of `transform`'s rows for each of GRAINS, in one query; keys summed over are null."""
    grains = [
        F.struct(
            F.lit(grain).alias("grain"), *[(F.col(key) if key in keys else F.lit(None)).alias(key) for key in _KEYS]
        )
        for grain, keys in GRAINS.items()
    ]
    sums = ["early_count", "late_count", *(f"late_{name}" for name in CAUSES)]
    dated = histogram.where("lateness_ms IS NOT NULL")
    spread = dated.withColumn("key", F.explode(F.array(*grains))).select("key.*", "lateness_ms", "count", *sums)
    return percentiles(spread, ["grain", *_KEYS], "lateness_ms", "count", sums)


def run(context: JobContext) -> LatenessJobResult:
    histogram = transform(
        context.table("messages", _MESSAGES),
        context.table("lanes", "shard,level,delay_ms"),
        context.table("deliveries", _DELIVERIES),
        context.late_ms,
    ).persist(StorageLevel.MEMORY_AND_DISK)
    most = _ALL_MINUTES if context.whole else _MINUTES_LISTED
    found = summed(histogram).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        undated = histogram.where("lateness_ms IS NULL").agg(F.sum("count")).first()
        rows: dict[str, list[LatenessSummary]] = {grain: [] for grain in GRAINS}
        for row in found.where("grain != 'minutes'").orderBy("minute", "level", "topic").collect():
            rows[row["grain"]].append(_of(row))
        minutes = found.where("grain = 'minutes'")
        newest = minutes.orderBy(F.desc("minute"), F.desc("level"), F.desc("topic")).limit(most).collect()
        left_out = minutes.count() - len(newest) if len(newest) == most else 0
    finally:
        found.unpersist()
        histogram.unpersist()
    return LatenessJobResult(
        late_ms=context.late_ms,
        total=next(iter(rows["total"]), None),
        topics=rows["topics"],
        level_minutes=rows["level_minutes"],
        minutes=[_of(row) for row in reversed(newest)],
        minutes_left_out=left_out,
        undated_count=(undated and undated[0]) or 0,
    )


def _of(row: Row) -> LatenessSummary:
    values = row.asDict()
    del values["grain"]
    minute = values.pop("minute")
    return LatenessSummary(**values, at_ms=None if minute is None else minute * MINUTE_MS)
