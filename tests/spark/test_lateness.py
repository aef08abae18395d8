"""The job `lateness` on a handful of rows."""

from typing import Any

import pyarrow as pa
from duetime_spark.jobs import lateness
from duetime_spark.jobs.columns import percentiles
from pyspark.sql import SparkSession

from tests.spark.frames import context

DUE = 1_700_000_040_000
LANES = [{"shard": 0, "level": 1, "delay_ms": 1_000}, {"shard": 0, "level": 2, "delay_ms": 5_000}]


def restored(offset: int, late_ms: int, accept_ms: int = 0, **fields: Any) -> dict[str, Any]:
    """A restored message of level 1 that was born so long before it was accepted."""
    row = {
        "shard": 0,
        "topic": "orders",
        "queue": 0,
        "offset": offset,
        "real_topic": "orders",
        "lane_level": 1,
        "lane_due_at_ms": DUE,
        "born_at_ms": DUE - 1_000 - accept_ms,
        "stored_at_ms": DUE + late_ms,
        "reconsume_times": 0,
    }
    return {**row, **fields}


def run(spark: SparkSession, messages: list[dict[str, Any]], deliveries: list[dict[str, Any]] | None = None) -> Any:
    tables = {"messages": messages, "lanes": LANES, "deliveries": deliveries or []}
    return lateness.run(context(spark, tables, late_ms=100))


def test_lateness_is_reported_by_level_topic_and_minute(spark: SparkSession) -> None:
    other = restored(0, 7, topic="bills", real_topic="bills", lane_level=2)
    later = restored(3, 50, lane_due_at_ms=DUE + 60_000, stored_at_ms=DUE + 60_050, born_at_ms=DUE + 59_000)
    found = run(spark, [restored(0, 1), restored(1, 2), restored(2, 90), later, other])
    assert [(row.level, row.topic, row.at_ms, row.count, row.p50_ms, row.max_ms) for row in found.minutes] == [
        (1, "orders", DUE, 3, 2, 90),
        (2, "bills", DUE, 1, 7, 7),
        (1, "orders", DUE + 60_000, 1, 50, 50),
    ]
    assert [(row.level, row.topic, row.count, row.p50_ms, row.p99_ms) for row in found.topics] == [
        (1, "orders", 4, 2, 90),
        (2, "bills", 1, 7, 7),
    ]
    assert (found.total.count, found.total.p50_ms, found.total.max_ms, found.total.late_count) == (5, 7, 90, 0)


def test_the_longest_part_of_the_way_is_the_cause(spark: SparkSession) -> None:
    """(due to stored, born to accepted, stored to first received) and the cause; each has a topic of its own."""
    cases = [
        (100, 0, None, None),
        (101, 0, None, "scan"),
        (0, 101, None, "accept"),
        (0, 0, 101, "consumer"),
        (200, 300, 250, "accept"),
        (200, 100, 250, "consumer"),
        (200, 200, 200, "accept"),
        (0, -5_000, None, None),
    ]
    messages, received = [], []
    for number, (late_ms, accept_ms, after_ms, _) in enumerate(cases):
        topic = f"topic-{number}"
        messages.append(restored(0, late_ms, accept_ms, topic=topic, real_topic=topic))
        place = {"shard": 0, "queue_topic": topic, "queue": 0, "offset": 0}
        if after_ms is not None:
            first_ms = DUE + late_ms + after_ms
            received += [{**place, "received_at_ms": at_ms} for at_ms in (first_ms, first_ms + 9_000)]
    told = {row.topic: row for row in run(spark, messages, received).topics}
    for number, case in enumerate(cases):
        row = told[f"topic-{number}"]
        causes = {name for name in lateness.CAUSES if getattr(row, f"late_{name}")}
        assert (causes, row.late_count) == (({case[3]}, 1) if case[3] else (set(), 0)), case


def test_records_without_a_lateness_are_left_out(spark: SparkSession) -> None:
    again = {"topic": "%RETRY%billing", "real_topic": "%RETRY%billing"}
    rows = [
        restored(0, 1, 90_000, **again),
        restored(1, 1, 90_000, reconsume_times=2),
        restored(2, -1),
        restored(0, 500, topic="DT_QUARANTINE"),
        restored(3, 1, lane_level=None, lane_due_at_ms=None),
        restored(4, 1, lane_level=None, lane_due_at_ms=None, sys_flag=8),
        {"shard": 0, "topic": "SCHEDULE_TOPIC_XXXX", "queue": 0, "offset": 0, "real_topic": "orders", "level": 1},
        {"shard": 0, "topic": "orders", "queue": 0, "offset": 9},
    ]
    found = run(spark, rows)
    assert (found.total.count, found.total.late_count, found.total.early_count, found.undated_count) == (3, 0, 1, 1)


def test_nothing_restored_is_an_answer(spark: SparkSession) -> None:
    found = run(spark, [])
    assert (found.total, found.topics, found.minutes_left_out) == (None, [], 0)
    assert found.to_dict()["late_ms"] == 100


def test_percentiles_are_exact_by_nearest_rank(spark: SparkSession) -> None:
    rows = [(value, 1) for value in range(1, 1001)] + [(5_000, 1)]
    table = pa.table({"key": [1] * len(rows), "value": [value for value, _ in rows], "count": [n for _, n in rows]})
    row = percentiles(spark.createDataFrame(table), ["key"], "value", "count").first()
    assert row is not None
    assert row.asDict() == {"key": 1, "count": 1001, "p50_ms": 501, "p99_ms": 991, "p999_ms": 1000, "max_ms": 5000}
