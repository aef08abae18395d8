"""Expressions shared by jobs: restored messages, minutes, exact percentiles."""

from collections.abc import Mapping, Sequence

from duetime_format.layout import SYS_TRANSACTION
from duetime_format.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

# Thousandths, so that ranks are whole numbers.
PERCENTILES = {"p50_ms": 500, "p99_ms": 990, "p999_ms": 999}


def is_restored() -> Column:
    """Whether a row of `messages` came out of a lane. A broker writes no mark of the lane and keeps REAL_TOPIC; a
    committed transaction keeps it too, and is excluded by its sysFlag."""
    ours = F.col("lane_level").isNotNull() & (F.col("topic") != QUARANTINE_TOPIC)
    is_plain = F.coalesce("sys_flag", F.lit(0)).bitwiseAND(SYS_TRANSACTION) == 0
    by_broker = F.col("lane_level").isNull() & F.col("real_topic").eqNullSafe(F.col("topic")) & is_plain
    # Separate conditions become filters applied by readers of the log: most rows are dropped there.
    return (F.col("topic") != SCHEDULE_TOPIC) & (F.col("topic") != TIMER_TOPIC) & (ours | by_broker)


def floor_to(name: str, unit_ms: int) -> Column:
    """A moment's number of whole units since 1970; moments are not negative."""
    return F.expr(f"{name} div {unit_ms}")


def of_shard(moments: Mapping[int, int]) -> Column:
    """The moment of a row's shard: Unix ms; null for a shard without one."""
    values = set(moments.values())
    if len(values) == 1:
        return F.lit(values.pop()).cast("bigint")
    chosen = F.lit(None).cast("bigint")
    for shard, at_ms in moments.items():
        chosen = F.when(F.col("shard") == shard, F.lit(at_ms).cast("bigint")).otherwise(chosen)
    return chosen


def percentiles(
    histogram: DataFrame, keys: Sequence[str], value: str, count: str, sums: Sequence[str] = ()
) -> DataFrame:
    """Exact percentiles of each group, from rows (keys, value, count, sums).

    Gives: keys, `count`, the columns of PERCENTILES, `max_ms`, and the sums. A percentile is the lowest value not
    exceeded by this share of the group (nearest rank).
    """
    small = histogram.groupBy(*keys, value).agg(
        F.sum(count).alias("_count"), *[F.sum(name).alias(name) for name in sums]
    )
    group = Window.partitionBy(*keys)
    up_to_here = group.orderBy(value).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    until = F.sum("_count").over(up_to_here)
    ranked = small.withColumn("_until", until).withColumn("_total", F.sum("_count").over(group))
    found = [
        F.min(F.when(F.col("_until") * 1000 >= F.col("_total") * thousandths, F.col(value))).alias(name)
        for name, thousandths in PERCENTILES.items()
    ]
    return ranked.groupBy(*keys).agg(
        F.sum("_count").alias("count"),
        *found,
        F.max(value).alias("max_ms"),
        *[F.sum(name).alias(name) for name in sums],
    )
