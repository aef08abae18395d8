"""The proof of lanes for any time: each entry has exactly one end, and being pending is one.

Their entries are restored in the order of due times, so no watermark divides them. The log may lack the end of an entry
if retention removed its record, or a broker wrote it before DueTime took over its timers: these have `expired`.
"""

from typing import Any

from duetime_format.lanes import TIMER_LANE_FIRST
from duetime_format.names import TIMER_TOPIC
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duetime_spark.jobs.audit import (
    DEAD,
    DUE_DIFFERS,
    ENDS,
    MISSING,
    TWICE,
    UNKNOWN,
    bucket,
    copies_of,
    ends_of,
    is_early,
    summed,
)

PENDING, EXPIRED = "pending", "expired"
ALL_ENDS = (*ENDS, PENDING)
_KEYS = ["shard", "level", "bucket"]


def entries_of(entries: DataFrame, lanes: DataFrame) -> DataFrame:
    """From rows of queue_entries: (shard, level, bucket, offset, position, due_at_ms, is_old)."""
    ours = entries.where(F.col("topic") == TIMER_TOPIC).where(F.col("due_at_ms").isNotNull())
    ours = ours.withColumn("level", F.col("queue") + TIMER_LANE_FIRST)
    marks = F.broadcast(lanes.select("shard", "level", "judged_from"))
    return ours.join(marks, ["shard", "level"]).select(
        *("shard", "level", bucket("offset"), "offset", "position", "due_at_ms"),
        (F.col("position") < F.col("judged_from")).alias("is_old"),
    )


def found_of(messages: DataFrame, ends: DataFrame, pending: DataFrame, lanes: DataFrame) -> DataFrame:
    """Ends of entries still in the lane: (shard, level, bucket, offset, position, id, due_at_ms, stored_at_ms,
    end)."""
    none = F.lit(None)
    waiting = pending.select(
        *("shard", "level", "offset", "position"),
        none.cast("string").alias("id"),
        "due_at_ms",
        none.cast("bigint").alias("stored_at_ms"),
        F.lit(PENDING).alias("end"),
    )
    every = copies_of(messages).unionByName(ends_of(ends)).unionByName(waiting)
    marks = F.broadcast(lanes.select("shard", "level", "min_offset"))
    known = every.where(F.col("level") >= TIMER_LANE_FIRST).join(marks, ["shard", "level"], "left")
    known = known.where(F.col("offset") >= F.coalesce("min_offset", F.lit(0)))
    return known.select(
        *("shard", "level", bucket("offset"), "offset", "position", "id"), "due_at_ms", "stored_at_ms", "end"
    )


def buckets_of(rows: DataFrame, *, with_ends: bool = False) -> DataFrame:
    """By (shard, level, bucket): the sums of a Bucket; for ends, also the number of each of ALL_ENDS, and `early`."""
    counts = [F.count(F.when(F.col("end") == end, 1)).alias(end) for end in ALL_ENDS] if with_ends else []
    if with_ends:
        counts.append(F.count(F.when(is_early(), 1)).alias("early"))
    return summed(rows.groupBy(*_KEYS), *counts)


def differences(entries: DataFrame, found: DataFrame, buckets: DataFrame) -> DataFrame:
    """Entry by entry, for some buckets: (shard, level, offset, position, due_at_ms, stored_at_ms, id, end, kind); kind
    is null if the entry has exactly one end, perhaps EXPIRED."""
    here = F.broadcast(buckets)
    ours = entries.join(here, _KEYS, "left_semi")
    ends = (
        found.join(here, _KEYS, "left_semi")
        .groupBy("shard", "level", "offset")
        .agg(
            F.count(F.lit(1)).alias("copies"),
            F.min("position").alias("copy_position"),
            F.min_by("due_at_ms", "position").alias("copy_due_at_ms"),
            F.min("stored_at_ms").alias("stored_at_ms"),
            F.min("id").alias("id"),
            F.min_by("end", "position").alias("end"),
        )
    )
    both = ours.join(ends, ["shard", "level", "offset"], "full_outer")
    has_end, has_entry = F.col("copies").isNotNull(), F.col("is_old").isNotNull()
    # Pending at the snapshot; retention has removed its unit since.
    is_gone = ~has_entry & (F.col("end") == PENDING)
    kind = (
        F.when(~has_end & ~F.col("is_old"), MISSING)
        .when(F.col("copies") > 1, TWICE)
        .when(~has_entry & ~is_gone & (F.col("end") != DEAD), UNKNOWN)
        .when((F.col("end") != DEAD) & (F.col("due_at_ms") != F.col("copy_due_at_ms")), DUE_DIFFERS)
    )
    return both.select(
        *("shard", "level", "offset"),
        F.coalesce("copy_position", "position").alias("position"),
        F.coalesce("copy_due_at_ms", "due_at_ms").alias("due_at_ms"),
        *("stored_at_ms", "id"),
        F.when(has_end, F.col("end")).otherwise(EXPIRED).alias("end"),
        kind.alias("kind"),
    )


def proof_of(lane: dict[str, Any], ends: dict[str, int], entry_count: int, kinds: dict[str, int]) -> dict[str, int]:
    """The fields of a Proof. `ends`: entries by end; `kinds`: violations by kind."""
    first = lane["min_offset"]
    # Places of the lane without an entry: their records were never found.
    none = max(lane["max_offset"] - first - entry_count, 0)
    return {
        "accepted": lane["max_offset"] - none,
        "expired": first + ends.get(EXPIRED, 0),
        "pending": ends.get(PENDING, 0),
        **{end: ends.get(end, 0) for end in ENDS},
        "missing": kinds.get(MISSING, 0),
    }
