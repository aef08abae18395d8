"""The job `audit` on a handful of rows: sound rows are proven, and each kind of violation is found and named."""

from typing import Any

import pytest
from duetime_spark.jobs.audit import BUCKET, AuditJobResult, AuditViolation, OffsetBucket, Proof
from duetime_spark.jobs.auditing import run
from pyspark.sql import SparkSession

from tests.spark.frames import context

DUE = 1_700_000_000_000
Rows = list[dict[str, Any]]


def lane(level: int = 1, first: int = 0, mark: int = 3, end: int = 5, pending: int | None = None) -> dict[str, Any]:
    waiting = end - mark if pending is None else pending
    return {"shard": 0, "level": level, "min_offset": first, "watermark": mark, "max_offset": end, "pending": waiting}


def entries(level: int, *offsets: int) -> Rows:
    """Lane units; their records are at 1000 x offset."""
    place = {"shard": 0, "topic": "SCHEDULE_TOPIC_XXXX", "queue": level - 1}
    return [{**place, "offset": at, "position": at * 1000, "due_at_ms": DUE + at} for at in offsets]


def records(level: int, *offsets: int) -> Rows:
    """Records that the units name."""
    place = {"shard": 0, "topic": "SCHEDULE_TOPIC_XXXX", "queue": level - 1, "real_topic": "orders"}
    return [{**place, "offset": at, "position": at * 1000, "id": f"ID{at}", "level": level} for at in offsets]


def copy(level: int, offset: int, topic: str = "orders", **fields: Any) -> dict[str, Any]:
    mark = {"lane_level": level, "lane_offset": offset, "lane_due_at_ms": DUE + offset}
    place = {"shard": 0, "topic": topic, "queue": 0, "real_topic": "orders", "position": 10**6 + offset}
    return {**place, **mark, "id": f"ID{offset}", "stored_at_ms": DUE + offset + 3, **fields}


def audit(spark: SparkSession, lanes: Rows, queue_entries: Rows, messages: Rows, **others: Rows) -> AuditJobResult:
    tables = {"lanes": lanes, "queue_entries": queue_entries, "messages": messages, **others}
    return run(context(spark, tables))


def together(*scenes: dict[str, Rows]) -> dict[str, Rows]:
    """Scene N on shard N, for one audit of all: each query takes longer than its rows."""
    found: dict[str, Rows] = {"lanes": [], "queue_entries": [], "messages": []}
    for shard, scene in enumerate(scenes):
        for table, rows in scene.items():
            found.setdefault(table, []).extend({**row, "shard": shard} for row in rows)
    return found


def timer_lane(end: int, pending: int, *, first: int = 0, judged_from: int = 0) -> dict[str, Any]:
    place = {"shard": 0, "level": 1000, "min_offset": first, "max_offset": end}
    return {**place, "pending": pending, "judged_from": judged_from}


def timers(*offsets: int) -> Rows:
    place = {"shard": 0, "topic": "rmq_sys_wheel_timer", "queue": 0}
    return [{**place, "offset": at, "position": at * 1000, "due_at_ms": DUE + at} for at in offsets]


def waiting(*offsets: int) -> Rows:
    return [{"shard": 0, "level": 1000, "offset": at, "position": at * 1000, "due_at_ms": DUE + at} for at in offsets]


def cancelled(level: int, *offsets: int) -> Rows:
    place = {"shard": 0, "level": level, "end": "cancelled", "position": 7}
    return [{**place, "offset": at, "due_at_ms": DUE + at} for at in offsets]


def replacing(level: int, offset: int) -> dict[str, Any]:
    return copy(level, offset, "rmq_sys_wheel_timer", stored_at_ms=DUE - 9_000)


def test_each_entry_has_one_end(spark: SparkSession) -> None:
    levels = {
        "lanes": [lane(mark=3, end=6, pending=2)],
        "queue_entries": entries(1, 0, 1, 2, 3, 4, 5),
        "messages": [copy(1, 0), replacing(1, 2)],
        "ends": cancelled(1, 1, 4),
    }
    # Restored, pending, cancelled, replaced and dead entries in any order.
    any_time = {
        "lanes": [timer_lane(6, 2)],
        "queue_entries": timers(0, 1, 2, 3, 4, 5),
        "messages": [copy(1000, 4), replacing(1000, 1), copy(1000, 3, "DT_QUARANTINE", stored_at_ms=0)],
        "ends": cancelled(1000, 2),
        "pending": waiting(0, 5),
    }
    # Records have left.
    cleaned = {
        "lanes": [timer_lane(6, 1, first=2, judged_from=4_000)],
        "queue_entries": timers(2, 3, 4, 5),
        "messages": [copy(1000, 1), copy(1000, 4)],
        "pending": waiting(5),
    }
    # Timers of a broker have no units.
    broker = {"lanes": [timer_lane(9, 6)], "pending": waiting(*range(6))}
    found = audit(spark, **together(levels, any_time, cleaned, broker))
    assert found.lanes == [
        Proof(0, 1, 6, 0, 2, 1, 0, 2, 1, 0, 0, 0, True),
        Proof(1, 1000, 6, 0, 2, 1, 1, 1, 1, 0, 0, 0, True),
        Proof(2, 1000, 6, 4, 1, 1, 0, 0, 0, 0, 0, 0, True),
        Proof(3, 1000, 6, 0, 6, 0, 0, 0, 0, 0, 0, 0, True),
    ]
    assert found.is_proven


def test_sound_rows_are_proven(spark: SparkSession) -> None:
    lanes = [lane(), lane(2, first=4, mark=7, end=7)]
    units = entries(1, 0, 1, 2, 3, 4) + entries(2, 3, 4, 5, 6)
    copies = [copy(1, 0), copy(1, 1), copy(1, 2, "DT_QUARANTINE", stored_at_ms=0)]
    # Two copies remain of records deleted from the lane.
    copies += [copy(2, offset) for offset in (2, 3, 4, 5, 6)]
    plain = {"shard": 0, "topic": "orders", "queue": 0, "position": 5, "id": "P", "stored_at_ms": DUE}
    found = audit(spark, lanes, units, [*copies, plain, *records(1, 0, 1, 2, 3, 4)])
    assert found.lanes == [
        Proof(0, 1, 5, 0, 2, 2, 1, 0, 0, 0, 0, 0, True),
        Proof(0, 2, 7, 2, 0, 5, 0, 0, 0, 0, 0, 0, True),
    ]
    assert found.total == Proof(None, None, 12, 2, 2, 7, 1, 0, 0, 0, 0, 0, True)
    assert (found.is_proven, found.violations, set(found.violation_counts.values())) == (True, [], {0})


def test_violations_are_named_with_ids_and_positions(spark: SparkSession) -> None:
    lanes = [lane(1, mark=6, end=6), lane(2, first=0, mark=1, end=1), lane(3, first=2, mark=2, end=2)]
    units = entries(1, 0, 1, 2, 3, 5) + entries(2, 0)
    copies = [
        copy(1, 1),
        copy(1, 1, position=7),
        copy(1, 2, lane_due_at_ms=DUE + 99, stored_at_ms=DUE + 99),
        copy(1, 3, stored_at_ms=DUE + 2),
        copy(1, 4),
        copy(1, 5),
        copy(2, 0),
        copy(3, 1),
        copy(3, 1, position=9),
    ]
    scene = {"lanes": lanes, "queue_entries": units, "messages": copies + records(1, 0, 1, 2, 3, 5)}
    any_time = {
        "lanes": [timer_lane(6, 1)],
        "queue_entries": timers(0, 1, 2, 3, 4, 5),
        "messages": [
            copy(1000, 0),
            copy(1000, 1),
            copy(1000, 2, lane_due_at_ms=DUE),
            copy(1000, 3, stored_at_ms=DUE - 1),
            copy(1000, 9),
        ],
        "ends": cancelled(1000, 1),
        "pending": waiting(5),
    }
    found = audit(spark, **together(scene, any_time))
    assert sorted((one.kind, one.offset) for one in found.violations if one.shard == 1) == [
        ("due differs", 2), ("early", 3), ("missing", 4), ("twice", 1), ("unknown entry", 9),
    ]  # fmt: skip
    violations = [one for one in found.violations if one.shard == 0]
    at = {"shard": 0, "level": 1}
    assert sorted(violations, key=lambda one: (one.kind, one.level)) == [
        AuditViolation(
            "due differs", **at, offset=2, id="ID2", position=10**6 + 2, due_at_ms=DUE + 99, stored_at_ms=DUE + 99
        ),
        AuditViolation("early", **at, offset=3, id="ID3", position=10**6 + 3, due_at_ms=DUE + 3, stored_at_ms=DUE + 2),
        AuditViolation("missing", **at, offset=0, id="ID0", position=0, due_at_ms=DUE, stored_at_ms=None),
        AuditViolation("twice", **at, offset=1, id="ID1", position=7, due_at_ms=DUE + 1, stored_at_ms=DUE + 4),
        AuditViolation(
            "twice", shard=0, level=3, offset=1, id="ID1", position=9, due_at_ms=DUE + 1, stored_at_ms=DUE + 4
        ),
        AuditViolation(
            "unknown entry", **at, offset=4, id="ID4", position=10**6 + 4, due_at_ms=DUE + 4, stored_at_ms=DUE + 7
        ),
    ]
    assert found.violation_counts == {"missing": 2, "twice": 3, "early": 2, "due differs": 2, "unknown entry": 2}
    assert [(row.is_proven, row.missing, row.early) for row in found.lanes] == [
        (False, 1, 1),
        (True, 0, 0),
        (False, 0, 0),
        (False, 1, 1),
    ]
    assert not found.is_proven


def test_records_restored_by_a_broker_are_matched_by_id(spark: SparkSession) -> None:
    units = entries(1, 0, 1, 2)
    birth = {"born_at_ms": 5, "body_crc": 6, "body_size": 7}
    lanes_records = [*records(1, 0), {**records(1, 1)[0], "id": "ID0"}, {**records(1, 2)[0], "id": None, **birth}]
    unmarked = {"lane_level": None, "lane_offset": None, "lane_due_at_ms": None}
    copies = [copy(1, 0, **unmarked), copy(1, 0, **unmarked), copy(1, 2, **unmarked, **{**birth, "id": None})]
    scene = {"lanes": [lane()], "queue_entries": units}
    found = audit(
        spark,
        **together({**scene, "messages": lanes_records + copies}, {**scene, "messages": lanes_records + copies[1:]}),
    )
    assert [row.is_proven for row in found.lanes] == [True, False]
    assert [(one.kind, one.shard, one.offset, one.id) for one in found.violations] == [("missing", 1, 1, "ID0")]


def test_copies_above_the_watermark_do_not_pend(spark: SparkSession) -> None:
    copies = [copy(1, 0), copy(1, 1), copy(1, 2), copy(1, 4)]
    units = entries(1, 0, 1, 2, 3, 4)
    scene = {"queue_entries": units, "messages": copies}
    found = audit(spark, **together({**scene, "lanes": [lane(pending=1)]}, {**scene, "lanes": [lane(pending=2)]}))
    assert found.lanes[0] == Proof(0, 1, 5, 0, 1, 4, 0, 0, 0, 0, 0, 0, True)
    assert not found.lanes[1].is_proven


@pytest.mark.parametrize(
    "offsets", [[0], [5], [5, 6, 7], [BUCKET - 2, BUCKET - 1], list(range(3 * BUCKET, 3 * BUCKET + 40))]
)
def test_a_whole_bucket_is_known_by_its_sums(offsets: list[int]) -> None:
    def bucket(found: list[int]) -> OffsetBucket:
        inside = [offset % BUCKET for offset in found]
        sums = (len(found), sum(inside), sum(at * at for at in inside))
        return OffsetBucket(*sums, digest=0, first=min(found), last=max(found))

    assert bucket(offsets).is_whole
    assert not bucket([*offsets, offsets[0]]).is_whole
    if len(offsets) > 2:
        assert not bucket([offsets[0], *offsets[2:]]).is_whole
        assert not bucket([offsets[0], offsets[0], *offsets[2:]]).is_whole
