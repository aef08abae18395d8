"""Schedules in the pipeline: the table of their occurrences, and the proof of their chains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime_core.chains import NO_NEXT, OTHER_TIME
from duetime_format import layout, record
from duetime_format.levels import DelayLevels
from duetime_format.schedules import ALL, schedule_of
from duetime_shard.disk import LocalFiles
from duetime_spark.decoding.topics import find_pauses
from duetime_spark.jobs import audit_schedules
from duetime_spark.jobs.audit_schedules import DELIVERED_TWICE, SEVERAL_PENDING, ScheduleProof, ScheduleViolation
from duetime_spark.moment import take_moment
from duetime_spark.pages import print_outcome
from duetime_spark.report import page
from duetime_spark.running import JobOptions, run
from duetime_spark.shards.snapshot import ShardImage, ShardSnapshot, take_snapshot
from duetime_spark.tables import occurrences, schemas
from duetime_spark.tables.filters import RowFilter
from duetime_store.offline.verify import verify
from duetime_store.writing.occurrences import paused
from pyspark.sql import SparkSession

from tests.spark.frames import context
from tests.store.conftest import HandClock, sent
from tests.store.conftest import Shard as Store
from tests.store.scheduling import LANE, MINUTE_MS, begin, every
from tests.store.test_verify_schedules import passing

TEXT = "1s 5s"
LEVELS = DelayLevels.parse(TEXT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Deliveries of four schedules in time and late; one is paused, and one has ended."""
    store = Store(tmp_path / "store", HandClock(), delay_levels=TEXT)
    now_ms = store.clock.now_ms()
    times = (now_ms + MINUTE_MS, now_ms + 2 * MINUTE_MS)
    begin(store, every(store.store, MINUTE_MS, name="each"))
    begin(store, every(store.store, MINUTE_MS, name="late", missed=ALL))
    begin(store, every(store.store, 0, name="listed", at_ms=times, planned=times[0]))
    at_ms = now_ms - now_ms % MINUTE_MS + MINUTE_MS
    begin(store, every(store.store, 0, name="zoned", cron="* * * * *", zone="Asia/Kathmandu", planned=at_ms))
    begin(store, paused(every(store.store, MINUTE_MS, name="paused")))
    store.put(sent("with LE\x01 in it", body=b"LE\x01DT_SCHEDULE\x01"))
    passing(store, 2)
    passing(store, 1, 3 * MINUTE_MS)
    passing(store, 2, 1)
    store.checkpoint()
    store.crash()
    return store


def rows_of(root: Path) -> list[dict[str, Any]]:
    files = LocalFiles(root)
    snapshot = ShardSnapshot.from_dict(take_snapshot(files, LEVELS).to_dict())
    tasks = occurrences.plan([ShardImage(files, snapshot)], schemas.SCHEMAS["occurrences"], RowFilter())
    return [row for task in tasks for found in task.batches() for row in found.to_pylist()]


def test_paused_ones_are_pending_and_not_due(
    spark: SparkSession, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(spark, JobOptions("backlog"), take_moment([str(store.root)], TEXT)).to_dict()
    report = verify(store.root, LEVELS)
    assert (report.schedules, report.paused_schedules) == (4, 1)
    (row,) = found["pending"]
    assert (row["topic"], row["count"], row["paused_count"]) == ("orders", 4, 1)
    assert (found["pending_count"], found["paused_count"], found["later_count"]) == (4, 1, 0)
    assert sum(lane["pending_count"] for lane in found["lanes"]) == 4
    assert sum(one["count"] for one in found["due_hours"]) == 3
    assert found["next_due_at_ms"] - found["now_ms"] <= MINUTE_MS
    print_outcome("backlog", found)
    assert "paused" in capsys.readouterr().out
    assert "1 of paused schedules" in page(found)


def test_pauses_are_found_by_the_property_of_an_occurrence(store: Store) -> None:
    own = b'"paused":true'
    store.open()
    store.put(sent("body", body=own * 3, DT_SCHEDULE='{"name":"copy","paused":true}'))
    begin(store, every(store.store, MINUTE_MS, name='"paused":true'), body=own)
    begin(store, paused(every(store.store, MINUTE_MS, name="late")), body=own)
    data, records = store.store.log.read(0, store.store.log.end), []
    at = 0
    while at < len(data):
        records.append((at, layout.size_at(data[at : at + layout.RECORD_BYTES_MIN])))
        at += records[-1][1]
    positions, sizes = np.array(records).T
    found = find_pauses(data[7:], 7, positions, sizes)
    own_names = [schedule_of(record.decode(data[at : at + size]).properties) for at, size in records]
    assert [one.name for one, is_paused in zip(own_names, found, strict=True) if is_paused] == ["paused", "late"]


def audited(spark: SparkSession, root: Path) -> dict[str, Any]:
    return run(spark, JobOptions("audit"), take_moment([str(root)], TEXT)).to_dict()


def test_table_has_each_record_of_a_schedule(store: Store) -> None:
    rows = rows_of(store.root)
    assert {row["schedule"] for row in rows} == {"each", "late", "listed", "zoned", "paused"}
    assert {(row["shard"], row["topic"], row["level"]) for row in rows} == {(0, "orders", LANE)}
    assert np.all(np.diff([row["position"] for row in rows]) > 0)
    (waiting,) = [row for row in rows if row["schedule"] == "paused"]
    assert (waiting["planned_at_ms"], waiting["is_delivered"]) == (None, False)
    each = [row for row in rows if row["schedule"] == "each"]
    assert [row["is_delivered"] for row in each] == [False, *[False, True] * 3]
    # The next one is stored with the delivered one, at the time of the rule.
    for after, delivered in zip(each[1::2], each[2::2], strict=True):
        assert after["planned_at_ms"] == delivered["next_at_ms"]
    ended = [row for row in rows if row["schedule"] == "listed"]
    assert [row["is_last"] for row in ended if row["is_delivered"]] == [False, True]
    assert not any(row["next_at_ms"] for row in rows if row["schedule"] == "zoned")


def test_audit_proves_chains(spark: SparkSession, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(spark, store.root)
    delivered = [row for row in rows_of(store.root) if row["is_delivered"]]
    zoned = [row for row in delivered if row["schedule"] == "zoned"]
    proof = ScheduleProof(
        0, schedules=4, delivered=len(delivered), unjudged=len(zoned), violation_count=0, is_proven=True
    )
    assert [ScheduleProof(**row) for row in found["schedules"]] == [proof]
    assert (found["is_proven"], found["schedule_violations"]) == (True, [])
    print_outcome("audit", found)
    assert "Schedules" in capsys.readouterr().out
    assert "planned by a time zone" in page(found)


def _row(name: str, position: int, planned: int, *, delivered: bool = False, **own: Any) -> dict[str, Any]:
    row = {"shard": 0, "topic": "orders", "schedule": name, "made_at_ms": 1, "planned_at_ms": planned}
    row |= {"is_delivered": delivered, "level": LANE, "offset": planned, "position": position, "is_last": False}
    return {**row, "next_at_ms": planned + 1 if delivered else None, **own}


def test_audit_names_faults(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        *(_row("sound", 1, 1), _row("sound", 2, 2), _row("sound", 3, 1, delivered=True)),
        *(_row("broken", 11, 1), _row("broken", 12, 1, delivered=True)),
        *(_row("other", 21, 1), _row("other", 22, 3), _row("other", 23, 1, delivered=True)),
        *(_row("again", 31, 9, made_at_ms=2), _row("again", 32, 1, delivered=True)),
        *(_row("twice", 41, 2), _row("twice", 42, 1, delivered=True)),
        *(_row("twice", 43, 2, offset=8), _row("twice", 44, 1, delivered=True, offset=9)),
        *(_row("ended", 51, 1), _row("ended", 52, 1, delivered=True, is_last=True, next_at_ms=None)),
        # Retention has appended it again.
        *(_row("moved", 61, 2), _row("moved", 62, 2)),
        *(_row("paused", 71, 1), _row("paused", 72, 0, planned_at_ms=None), _row("paused", 73, 1, delivered=True)),
    ]
    waiting = [{"shard": 0, "level": LANE, "offset": offset} for offset in (2, 8)]
    proofs, violations = audit_schedules.run(context(spark, {"occurrences": rows, "pending": waiting}))
    # `sound` and `moved` share a pending entry with `twice`.
    assert [(one.schedules, one.delivered, one.violation_count) for one in proofs] == [(3, 8, 5)]
    assert violations == [
        ScheduleViolation(DELIVERED_TWICE, 0, "orders", "twice", 1, 44),
        ScheduleViolation(NO_NEXT, 0, "orders", "again", 1, 32),
        ScheduleViolation(NO_NEXT, 0, "orders", "broken", 1, 12),
        ScheduleViolation(OTHER_TIME, 0, "orders", "other", 1, 23),
        ScheduleViolation(SEVERAL_PENDING, 0, "orders", "twice", 2, 43),
    ]
