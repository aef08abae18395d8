"""Spark's report through the gateway, beside the live counters, and as metrics."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import backlog_pb2 as pb
from duetime.v1 import gateway_pb2
from duetime_core.metadata import JobReport, JobReportTable, ShardMoment
from duetime_core.metadata.reports import condensed
from duetime_core.rpc.calls import translate
from duetime_core.testing import FakeClock
from duetime_gateway.administration import backlog
from duetime_gateway.administration.backlog import BacklogComparer, compare, message_of
from duetime_gateway.metrics import BacklogMetrics
from prometheus_client import CollectorRegistry

from tests.gateway.conftest import Gateway, error_of, message, real_store

NOW_MS = 1_700_000_000_000
METRICS = "duetime_gateway_backlog_"


def row(level: int, topic: str, count: int) -> dict[str, Any]:
    return {
        "shard": 0,
        "level": level,
        "topic": topic,
        "count": count,
        "bytes": 100 * count,
        "oldest_due_at_ms": NOW_MS - 5,
        "overdue_count": 1,
        "overdue_by_ms": 5,
        "next_due_at_ms": None,
    }


def lane(level: int, watermark: int, max_offset: int, pending: int, shard: int = 0) -> dict[str, Any]:
    return {
        "shard": shard,
        "level": level,
        "delay_ms": None,
        "watermark": watermark,
        "max_offset": max_offset,
        "pending_count": pending,
    }


def report(rows: list[dict[str, Any]], lanes: list[dict[str, Any]], **fields: Any) -> JobReport:
    result = {
        "now_ms": NOW_MS,
        "pending_count": sum(row["count"] for row in rows),
        "pending_bytes": 400,
        "overdue_count": 2,
        "overdue_by_ms": 5,
        "next_due_at_ms": None,
        "forecast": {
            "needed_per_s": 0.5,
            "needed_at_ms": NOW_MS + 60_000,
            "measured_per_s": 12.25,
            "measured_peak_per_s": 40,
        },
        "lanes": lanes,
        "pending": rows,
        "due_minutes": [{"at_ms": NOW_MS, "level": 1, "count": 3, "bytes": 300}],
        "due_hours": [],
        "later_count": 1,
        "made_by_a_newer_job": [1],
    }
    made = JobReport("backlog", "s1", NOW_MS + 9, ("file:///store",), (ShardMoment(0, 77, NOW_MS),), condensed(result))
    return replace(made, **fields)


def test_report_is_given_as_the_job_wrote_it() -> None:
    read = message_of(report([row(1, "orders", 3), row(2, "orders", 1)], [lane(1, 4, 7, 3)]))
    assert (read.job, read.snapshot_id, read.created_at_ms) == ("backlog", "s1", NOW_MS + 9)
    assert [(one.shard, one.position, one.at_ms) for one in read.snapshots] == [(0, 77, NOW_MS)]
    assert list(read.sources) == ["file:///store"]
    assert (read.now_ms, read.pending_count, read.pending_bytes, read.overdue_count) == (NOW_MS, 4, 400, 2)
    assert (read.next_due_at_ms, read.later_count, read.pending_left_out) == (0, 1, 0)
    assert read.pending[0] == pb.PendingTopic(
        shard=0,
        level=1,
        topic="orders",
        count=3,
        bytes=300,
        oldest_due_at_ms=NOW_MS - 5,
        overdue_count=1,
        overdue_by_ms=5,
    )
    assert read.lanes[0] == pb.BacklogLane(level=1, watermark=4, max_offset=7, pending_count=3, counted=3)
    assert list(read.due_minutes) == [pb.DueCount(at_ms=NOW_MS, count=3, bytes=300)]
    assert read.forecast == pb.BacklogForecast(
        needed_per_s=0.5, needed_at_ms=NOW_MS + 60_000, measured_per_s=12.25, measured_peak_per_s=40
    )


@pytest.mark.parametrize(
    ("live", "drift"),
    [
        ((4, 7, 3), 0),
        ((4, 17, 13), 0),
        ((6, 17, 11), 0),
        ((17, 17, 0), 0),
        ((4, 7, 4), 1),
        ((6, 17, 10), -1),
    ],
    ids=["same", "more came", "some went", "all went", "one too many", "one too few"],
)
def test_drift_is_not_explained_by_movement(live: tuple[int, int, int], drift: int) -> None:
    read = message_of(report([row(1, "orders", 2), row(1, "bills", 1)], [lane(1, 4, 7, 3), lane(9, 0, 0, 0)]))
    watermark, max_offset, pending = live
    now = gateway_pb2.Lane(shard=0, level=1, watermark=watermark, max_offset=max_offset, pending_count=pending)
    unknown = gateway_pb2.Lane(shard=5, level=1, max_offset=3, pending_count=3)
    compared = compare(read, [unknown, now])
    assert list(compared.lanes) == [pb.LaneDrift(level=1, report_count=3, live_count=pending, drift=drift)]
    assert (compared.report_count, compared.live_count, compared.drift) == (3, pending, drift)


def test_message_that_spark_did_not_find_is_drift() -> None:
    read = message_of(report([row(1, "orders", 2)], [lane(1, 4, 7, 3)]))
    assert compare(read, [gateway_pb2.Lane(level=1, watermark=4, max_offset=7, pending_count=3)]).drift == 1


async def test_without_a_report_none_is_found(gateway: Gateway) -> None:
    error = await error_of(gateway.stub.GetBacklogReport(pb.GetBacklogReportRequest(), timeout=60))
    assert translate(error, "gateway", "").reason == "REPORT_NOT_FOUND"
    assert gateway.node.registry.get_sample_value(METRICS + "drift") is None


async def lanes_of(gateway: Gateway) -> list[dict[str, Any]]:
    lanes = (await gateway.stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=60)).lanes
    return [lane(one.level, one.watermark, one.max_offset, one.pending_count, one.shard) for one in lanes]


async def test_newest_report_stands_beside_the_live_counters(gateway: Gateway) -> None:
    await gateway.send(*(message(delay_level=3) for _ in range(4)))
    reports = JobReportTable(gateway.node.parts.database)
    await reports.put(report([row(3, "orders", 4)], await lanes_of(gateway)))
    await gateway.send(*(message(delay_level=5) for _ in range(2)))
    found = await gateway.stub.GetBacklogReport(pb.GetBacklogReportRequest(), timeout=60)
    assert (found.report.snapshot_id, len(found.lanes)) == ("s1", 19)
    assert (found.report_count, found.live_count, found.drift) == (4, 6, 0)
    wrong = report([row(3, "orders", 3)], await lanes_of(gateway), snapshot_id="s2")
    await reports.put(replace(wrong, snapshots=(ShardMoment(0, 99, NOW_MS + 1),)))
    found = await gateway.stub.GetBacklogReport(pb.GetBacklogReportRequest(), timeout=60)
    assert (found.report.snapshot_id, found.drift) == ("s2", 1 + 2)
    drifting = [(one.level, one.drift) for one in found.lanes if one.drift]
    assert drifting == [(3, 1), (5, 2)]


async def test_report_that_is_written_again_is_read_again(gateway: Gateway) -> None:
    reports = JobReportTable(gateway.node.parts.database)
    for count in (4, 5):
        await reports.put(report([row(3, "orders", count)], [], created_at_ms=count))
        found = await gateway.stub.GetBacklogReport(pb.GetBacklogReportRequest(), timeout=60)
        assert found.report.pending_count == count


async def test_unavailable_shard_is_named(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store:
        port = store.port
    async with Gateway(tmp_path, {0: port}, store_timeout_ms=500) as gateway:
        await JobReportTable(gateway.node.parts.database).put(report([row(3, "orders", 4)], [lane(3, 0, 4, 4)]))
        found = await gateway.stub.GetBacklogReport(pb.GetBacklogReportRequest(), timeout=60)
        assert (list(found.unreachable_shards), found.live_count, found.drift) == ([0], 0, 0)


class Looking(FakeClock):
    """Ends the loop that sleeps on it after a number of looks."""

    def __init__(self, looks: int) -> None:
        super().__init__(NOW_MS)
        self.looks = looks
        self.between: list[Any] = []

    async def sleep(self, delay_ms: float) -> None:
        assert delay_ms == backlog.PERIOD_MS
        self.looks -= 1
        if not self.looks:
            raise StopLooking
        await self.between.pop(0)()
        self.move(delay_ms)


class StopLooking(Exception):
    pass


async def test_metrics_follow_the_newest_report_and_the_counters(gateway: Gateway) -> None:
    clock, registry = Looking(4), CollectorRegistry()
    reports = JobReportTable(gateway.node.parts.database)
    seen: list[Any] = []

    def look() -> None:
        names = ("report_age_seconds", "report_count", "live_count", "drift")
        seen.append([registry.get_sample_value(METRICS + name) for name in names])

    async def first() -> None:
        look()
        await gateway.send(*(message(delay_level=3) for _ in range(4)))
        await reports.put(report([row(3, "orders", 4)], await lanes_of(gateway)))

    async def second() -> None:
        look()
        await reports.put(
            report([], [], snapshot_id="bad", snapshots=(ShardMoment(0, 1, 2**42),), summary={"now_ms": []})
        )

    async def third() -> None:
        look()

    clock.between = [first, second, third]
    with pytest.raises(StopLooking):
        await BacklogComparer(
            gateway.node.parts.database, gateway.node.parts.shards, clock, BacklogMetrics(registry)
        ).run()
    assert seen[0] == [None] * 4
    assert seen[1] == [backlog.PERIOD_MS / 1000, 4, 4, 0]
    assert seen[2] == [2 * backlog.PERIOD_MS / 1000, 4, 4, 0]
