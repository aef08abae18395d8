"""The job `backlog` on a handful of rows."""

from typing import Any

from duetime_spark.jobs import backlog
from duetime_spark.jobs.backlog import DuePeriodCount, PendingSummary
from pyspark.sql import SparkSession

from tests.spark.frames import context

NOW = 1_700_000_040_000  # a whole minute, and no whole hour
MINUTE, HOUR = 60_000, 3_600_000


def entry(level: int, due_at_ms: int, topic: str = "orders", shard: int = 0, size: int = 100) -> dict[str, Any]:
    return {"shard": shard, "level": level, "topic": topic, "size": size, "due_at_ms": due_at_ms}


def lane(level: int = 1, shard: int = 0, at_ms: int | None = NOW) -> dict[str, Any]:
    told = {"delay_ms": 1000 * level, "min_offset": 0, "watermark": 5, "max_offset": 9, "pending": 4}
    return {"shard": shard, "level": level, "snapshot_position": 1, "snapshot_at_ms": at_ms, **told}


def restored(stored_at_ms: int, topic: str = "orders") -> dict[str, Any]:
    return {"shard": 0, "topic": topic, "real_topic": "orders", "lane_level": 1, "stored_at_ms": stored_at_ms}


def test_pending_is_summed_by_shard_level_and_topic(spark: SparkSession) -> None:
    entries = [
        entry(1, NOW - 5_000),
        entry(1, NOW),
        entry(1, NOW + 1),
        entry(1, NOW + 70_000, size=50),
        entry(2, NOW + 7, "bills"),
        entry(1, NOW + 9, shard=1),
    ]
    found = backlog.run(context(spark, {"pending": entries, "lanes": [lane(), lane(shard=1)]}))
    assert found.pending == [
        PendingSummary(0, 1, "orders", 4, 350, NOW - 5_000, 2, 5_000, NOW + 1),
        PendingSummary(0, 2, "bills", 1, 100, NOW + 7, 0, 0, NOW + 7),
        PendingSummary(1, 1, "orders", 1, 100, NOW + 9, 0, 0, NOW + 9),
    ]
    assert (found.pending_count, found.pending_bytes, found.overdue_count) == (6, 550, 2)
    assert (found.overdue_by_ms, found.next_due_at_ms, found.now_ms) == (5_000, NOW + 1, NOW)
    assert found.lanes[0].pending_count == 4


def test_the_future_is_counted_by_minute_and_by_hour(spark: SparkSession) -> None:
    entries = [
        entry(1, NOW - 1),
        entry(1, NOW),
        entry(1, NOW + 59_999),
        entry(1, NOW + 60_000),
        entry(2, NOW + 60_000, size=7),
        entry(1, NOW + 24 * HOUR - 1),
        entry(1, NOW + 24 * HOUR),
        entry(3, NOW + 31 * 24 * HOUR),
    ]
    found = backlog.run(context(spark, {"pending": entries, "lanes": [lane()]}))
    assert found.due_minutes == [
        DuePeriodCount(NOW, 1, 1, 100),
        DuePeriodCount(NOW + MINUTE, 1, 1, 100),
        DuePeriodCount(NOW + MINUTE, 2, 1, 7),
        DuePeriodCount(NOW + 24 * HOUR - MINUTE, 1, 1, 100),
    ]
    hour = NOW // HOUR * HOUR
    assert found.due_hours == [
        DuePeriodCount(hour, 1, 2, 200),
        DuePeriodCount(hour, 2, 1, 7),
        DuePeriodCount(hour + 24 * HOUR, 1, 2, 200),
    ]
    assert found.later_count == 1


def test_overdue_counts_against_each_shards_own_time(spark: SparkSession) -> None:
    entries = [entry(1, NOW + 10), entry(1, NOW + 10, shard=1)]
    tables = {"pending": entries, "lanes": [lane(), lane(shard=1, at_ms=NOW + 20)]}
    assert [row.overdue_by_ms for row in backlog.run(context(spark, tables)).pending] == [0, 10]
    assert [row.overdue_by_ms for row in backlog.run(context(spark, tables, now_ms=NOW + 11)).pending] == [1, 1]


def test_forecast_compares_the_fullest_minute_with_restored_messages(spark: SparkSession) -> None:
    entries = [entry(1, NOW + MINUTE + second * 100) for second in range(120)] + [entry(1, NOW - 1)] * 500
    old, other, aside = restored(NOW - 600_000), restored(NOW), restored(NOW, "DT_QUARANTINE")
    plain = {"shard": 0, "topic": "orders", "stored_at_ms": NOW}
    broker = {"shard": 0, "topic": "orders", "real_topic": "orders", "stored_at_ms": NOW - 1000}
    half = {"shard": 0, "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "real_topic": "orders", "stored_at_ms": NOW}
    messages = [old, other, other, aside, plain, broker, half]
    found = backlog.run(context(spark, {"pending": entries, "lanes": [lane()], "messages": messages})).forecast
    assert (found.needed_per_s, found.needed_at_ms) == (2.0, NOW + MINUTE)
    assert (found.measured_per_s, found.measured_peak_per_s) == (0.005, 2)


def test_entries_that_left_meanwhile_are_counted(spark: SparkSession) -> None:
    left = {"shard": 0, "level": 1, "topic": None, "size": None, "due_at_ms": None}
    found = backlog.run(context(spark, {"pending": [left, left, entry(1, NOW + 5)], "lanes": [lane()]}))
    assert found.pending == [
        PendingSummary(0, 1, None, 2, 0, None, 0, 0, None),
        PendingSummary(0, 1, "orders", 1, 100, NOW + 5, 0, 0, NOW + 5),
    ]
    assert (found.pending_count, found.later_count, found.forecast.needed_at_ms) == (3, 0, NOW)


def test_nothing_pending_is_an_answer(spark: SparkSession) -> None:
    found = backlog.run(context(spark, {"lanes": [lane(at_ms=None)]}))
    assert (found.pending_count, found.next_due_at_ms, found.due_minutes, found.later_count) == (0, None, [], 0)
    assert found.forecast.needed_at_ms is None
    assert found.to_dict()["forecast"] == {
        "needed_per_s": 0.0,
        "needed_at_ms": None,
        "measured_per_s": 0.0,
        "measured_peak_per_s": 0,
    }
