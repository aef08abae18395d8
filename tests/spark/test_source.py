"""The data source on directories that real brokers wrote: their manifests list the contents."""

from pathlib import Path

import pytest
from duetime_format.names import SCHEDULE_TOPIC
from duetime_spark import take_snapshots
from duetime_spark.jobs import backlog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.format.golden import NAMES, params, pending_timers, summary, units, unpack


@pytest.fixture(scope="module", params=params(count=1))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(request.param, tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(NAMES[-1], tmp_path_factory.mktemp("one"))


def table(spark: SparkSession, root: Path, name: str, **options: str) -> DataFrame:
    return spark.read.format("duetime").options(table=name, **options).load(str(root))


def tuples(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_queue_entries_are_the_units_of_the_manifest(spark: SparkSession, golden: Path) -> None:
    found = tuples(table(spark, golden, "queue_entries", rows="2000"))
    expected = []
    for unit in units(golden.name):
        is_lane = unit["topic"] == SCHEDULE_TOPIC
        tags = (None, unit["tagsCode"], False) if is_lane else (unit["tagsCode"], None, None)
        place = (unit["topic"], unit["queueId"], unit["queueOffset"], unit["physicalOffset"], unit["size"])
        expected.append((0, *place, *tags))
    assert found == sorted(expected, key=repr)


def test_lanes_are_the_manifests(spark: SparkSession, golden: Path) -> None:
    expected = summary(golden.name)
    rows = {row["level"]: row for row in table(spark, golden, "lanes").collect()}
    pending = {str(level): row["pending"] for level, row in rows.items() if level < 1_000}
    assert pending == expected["pendingPerDelayLevel"]
    marks = {
        str(level): row["watermark"] for level, row in rows.items() if str(level) in expected["delayOffsetAfterLoad"]
    }
    assert marks == expected["delayOffsetAfterLoad"]
    assert {row["snapshot_position"] for row in rows.values()} == {expected["commitLog"]["maxPhysicalOffset"]}
    assert (rows[1_000]["pending"] if 1_000 in rows else 0) == len(pending_timers(golden.name))


def test_columns_come_in_the_order_that_is_asked_for(spark: SparkSession, one: Path) -> None:
    frame = table(spark, one, "queue_entries", columns="size, topic")
    assert frame.columns == ["size", "topic"]
    reader = spark.read.format("duetime").option("table", "queue_entries").schema("topic STRING, size INT")
    assert tuples(reader.load(str(one)).select("size", "topic")) == tuples(frame)


CONDITIONS = {
    "topic = 'SCHEDULE_TOPIC_XXXX' AND due_at_ms BETWEEN 1795224800000 AND 1795225900000": lambda row: (
        row["topic"] == SCHEDULE_TOPIC and 1795224800000 <= row["due_at_ms"] <= 1795225900000
    ),
    "queue IN (1, 3) AND offset > 20": lambda row: row["queue"] in (1, 3) and row["offset"] > 20,
    "shard = 1": lambda row: row["shard"] == 1,
    "queue = 4 AND offset >= 3 AND offset < 9": lambda row: row["queue"] == 4 and 3 <= row["offset"] < 9,
    "size > 400 AND position <= 3000000": lambda row: row["size"] > 400 and row["position"] <= 3_000_000,
    "tags_code IS NULL AND due_at_ms < 1795224800000": lambda row: (
        row["tags_code"] is None and row["due_at_ms"] < 1795224800000
    ),
}


@pytest.fixture(scope="module")
def entries(spark: SparkSession, one: Path) -> list[Row]:
    return table(spark, one, "queue_entries").collect()


# The others are proofs: test_plans.py has more filters, without a session.
GATE = list(CONDITIONS)[:2]


@pytest.mark.parametrize(
    "condition", [pytest.param(one, marks=[] if one in GATE else [pytest.mark.proof]) for one in CONDITIONS]
)
def test_pushed_filters_equal_sparks(spark: SparkSession, one: Path, entries: list[Row], condition: str) -> None:
    expected = [tuple(row) for row in entries if CONDITIONS[condition](row)]
    for pushdown in ("true", "false"):
        frame = table(spark, one, "queue_entries", rows="1000", pushdown=pushdown)
        assert tuples(frame.where(condition)) == sorted(expected, key=repr), pushdown


def test_scans_of_one_frame_keep_their_own_filters(spark: SparkSession, one: Path, entries: list[Row]) -> None:
    frame = table(spark, one, "queue_entries", rows="1000")
    both = frame.where("topic = 'DkLogs'").union(frame.where("queue = 0"))
    expected = [row for row in entries if row["topic"] == "DkLogs"] + [row for row in entries if row["queue"] == 0]
    assert tuples(both) == sorted(map(tuple, expected), key=repr)


def test_pushed_filters_leave_tasks_out(spark: SparkSession, one: Path) -> None:
    def tasks(pushdown: str) -> int:
        frame = table(spark, one, "queue_entries", rows="1000", pushdown=pushdown)
        return frame.where("topic = 'DkLogs'").rdd.getNumPartitions()

    assert tasks("true") < tasks("false")


def test_reads_at_one_snapshot_see_the_same(spark: SparkSession, one: Path, tmp_path: Path) -> None:
    pinned = take_snapshots([str(one)])
    frame = table(spark, one, "queue_entries", snapshot=pinned)
    assert frame.count() == summary(one.name)["consumeQueueUnits"]
    with pytest.raises(PySparkException, match="it is not of"):
        table(spark, tmp_path, "queue_entries", snapshot=pinned).count()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "queues"}, "there is no table 'queues'"),
        (
            {"table": "lanes", "columns": "level,delay"},
            "table lanes has no column delay; it has shard, level, delay_ms",
        ),
        ({"table": "lanes", "level": "1s"}, "there is no such option"),
        ({"table": "lanes", "levels": "1x"}, "delay '1x' is not a whole number"),
        ({"table": "lanes", "path": "/nowhere"}, "/nowhere is not a store directory: it does not exist"),
        ({"table": "lanes", "path": "", "endpoint": "127.0.0.1:1"}, "grpc://127.0.0.1:1 does not answer"),
    ],
)
def test_bad_options_are_reported(spark: SparkSession, one: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        spark.read.format("duetime").options(**{"path": str(one), **options}).load().count()


def test_pending_entries_are_those_behind_the_watermarks(spark: SparkSession, golden: Path) -> None:
    expected = summary(golden.name)
    marks = {int(level): offset for level, offset in expected["delayOffsetAfterLoad"].items()}
    places = [
        (unit["queueId"] + 1, unit["queueOffset"], unit["physicalOffset"], unit["size"], unit["tagsCode"])
        for unit in units(golden.name)
        if unit["topic"] == SCHEDULE_TOPIC and unit["queueOffset"] >= marks.get(unit["queueId"] + 1, 0)
    ]
    topics = {
        unit["physicalOffset"]: unit["properties"]["REAL_TOPIC"]
        for unit in units(golden.name)
        if "REAL_TOPIC" in unit["properties"]
    }
    found = table(spark, golden, "pending", rows="150").collect()
    names = ("level", "offset", "position", "size", "due_at_ms")
    lanes = [tuple(row[name] for name in names) for row in found if row["level"] < 1_000]
    assert sorted(lanes) == sorted(places)
    assert {row["position"]: row["topic"] for row in found}.items() <= topics.items()
    assert sum(row["level"] == 1_000 for row in found) == len(pending_timers(golden.name))


@pytest.mark.proof
def test_pending_entries_without_topics_are_the_same(spark: SparkSession, one: Path) -> None:
    columns = "level,offset,due_at_ms"
    lean = table(spark, one, "pending", columns=columns, rows="300")
    assert tuples(lean) == tuples(table(spark, one, "pending").select(*columns.split(",")))


def test_messages_are_the_records_of_the_manifest(spark: SparkSession, golden: Path) -> None:
    columns = (
        "topic,queue,offset,position,size,id,stored_at_ms,born_at_ms,born_host,body_crc,body_size,properties,damage"
    )
    rows = {row["position"]: row for row in table(spark, golden, "messages", columns=columns).collect()}
    assert len(rows) == summary(golden.name)["commitLog"]["records"]
    assert not any(row["damage"] for row in rows.values())
    for unit in units(golden.name):
        row = rows[unit["physicalOffset"]]
        place = (unit["topic"], unit["queueId"], unit["queueOffset"], unit["physicalOffset"], unit["size"])
        times = (unit["storeTimestamp"], unit["bornTimestamp"], unit["bornHost"])
        assert tuple(row)[:11] == (*place, unit["uniqKey"], *times, unit["bodyCRC"], unit["bodyLength"])
        assert row["properties"] == unit["properties"]


def test_messages_of_a_time_are_those_of_all(spark: SparkSession, one: Path) -> None:
    everything = table(spark, one, "messages", columns="position,stored_at_ms,topic").collect()
    at_ms = sorted(row["stored_at_ms"] for row in everything)[len(everything) // 2]
    found = table(spark, one, "messages", columns="position,stored_at_ms,topic")
    expected = [tuple(row) for row in everything if row["stored_at_ms"] >= at_ms and row["topic"] == "DkLogs"]
    assert expected
    assert tuples(found.where(f"stored_at_ms >= {at_ms} AND topic = 'DkLogs'")) == sorted(expected, key=repr)


@pytest.mark.parametrize("now_ms", [None, pytest.param(4_000_000_000_000, marks=pytest.mark.proof)])
def test_sums_by_minute_are_those_of_the_entries(spark: SparkSession, golden: Path, now_ms: int | None) -> None:
    options = {"rows": "150", **({"now_ms": str(now_ms)} if now_ms else {})}
    lanes = table(spark, golden, "lanes").select("snapshot_at_ms").distinct().collect()
    moment_ms = now_ms or lanes[0]["snapshot_at_ms"]
    found = backlog.merged(table(spark, golden, "pending_minutes", **options))
    expected = backlog.transform(table(spark, golden, "pending"), {0: moment_ms}).select(*found.columns)
    assert tuples(found) == tuples(expected)
    sums = found.agg({"count": "sum", "overdue_count": "sum"}).collect()[0]
    # A broker that was killed has restored some that its files still call pending.
    assert (sums["sum(overdue_count)"] == sums["sum(count)"]) == (now_ms is not None)


@pytest.mark.proof
def test_sums_without_topics_or_of_one_level_are_of_the_same(spark: SparkSession, one: Path) -> None:
    frame = table(spark, one, "pending_minutes", columns="level,minute,count")
    assert frame.agg({"count": "sum"}).collect()[0][0] == table(spark, one, "pending").count()
    some = table(spark, one, "pending_minutes").where("level = 5 AND topic IS NOT NULL")
    expected = table(spark, one, "pending").where("level = 5 AND topic IS NOT NULL").count()
    assert expected > 0
    assert some.agg({"count": "sum"}).collect()[0][0] == expected
