"""Reports of Spark's jobs through the gateway: figures of each, with live counters beside the counted ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from duetime.v1 import backlog_pb2
from duetime.v1 import reports_pb2 as pb
from duetime_core.metadata import JobReport, JobReportTable, ShardMoment

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.test_backlog import NOW_MS, lanes_of, row
from tests.gateway.test_backlog import report as backlog_report

LATENESS = {"late_ms": 100, "count": 9, "p50_ms": 3, "p99_ms": 40, "p999_ms": 41, "max_ms": 50, "late_scan": 1}
AUDIT = {"is_proven": False, "accepted": 5, "pending": 4, "missing": 1, "violations": {"missing": 1}}


def report(job: str, summary: dict[str, Any], snapshot_id: str = "s1") -> JobReport:
    """`made_by_a_newer_job`: has fields unknown to this gateway."""
    summary = {**summary, "damage_count": 2, "made_by_a_newer_job": [1]}
    return JobReport(job, snapshot_id, NOW_MS + 9, ("file:///store",), (ShardMoment(0, 77, NOW_MS),), summary)


async def asked(gateway: Gateway) -> pb.GetReportsResponse:
    found: pb.GetReportsResponse = await gateway.stub.GetReports(pb.GetReportsRequest(), timeout=60)
    return found


async def test_missing_reports_are_absent(gateway: Gateway) -> None:
    assert await asked(gateway) == pb.GetReportsResponse()
    await JobReportTable(gateway.node.parts.database).put(report("lateness", LATENESS))
    found = await asked(gateway)
    assert (found.HasField("lateness"), found.HasField("backlog"), found.HasField("audit")) == (True, False, False)


async def test_figures_are_those_of_the_newest_snapshot(gateway: Gateway) -> None:
    reports = JobReportTable(gateway.node.parts.database)
    await reports.put(report("lateness", LATENESS))
    older = replace(report("lateness", {"count": 1}, "s0"), snapshots=(ShardMoment(0, 1, NOW_MS - 1),))
    await reports.put(older)
    late = (await asked(gateway)).lateness
    assert {name: getattr(late, name) for name in LATENESS} == LATENESS
    assert late.origin == pb.ReportOrigin(
        created_at_ms=NOW_MS + 9,
        sources=["file:///store"],
        snapshot_id="s1",
        snapshots=[backlog_pb2.SnapshotMoment(shard=0, position=77, at_ms=NOW_MS)],
        damage_count=2,
    )


async def test_audit_is_shown_beside_the_live_counters(gateway: Gateway) -> None:
    await gateway.send(*(message(delay_level=3) for _ in range(4)))
    lanes = await lanes_of(gateway)
    counted = [{**one, "counted": 3 if one["level"] == 3 else 0} for one in lanes]
    reports = JobReportTable(gateway.node.parts.database)
    await reports.put(report("audit", {**AUDIT, "lanes": counted}))
    await reports.put(backlog_report([row(3, "orders", 4)], lanes))
    await gateway.send(*(message(delay_level=5) for _ in range(2)))
    found = await asked(gateway)
    assert {name: getattr(found.audit, name) for name in ("is_proven", "accepted", "pending", "missing")} == {
        name: AUDIT[name] for name in ("is_proven", "accepted", "pending", "missing")
    }
    assert dict(found.audit.violations) == {"missing": 1}
    assert (found.audit.live_count, found.audit.drift, len(found.audit.lanes)) == (6, 1, 19)
    assert [(one.level, one.drift) for one in found.audit.lanes if one.drift] == [(3, 1)]
    assert (found.backlog.live_count, found.backlog.drift) == (6, 0)


async def test_unavailable_shard_is_named(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store:
        port = store.port
    async with Gateway(tmp_path, {0: port}, store_timeout_ms=500) as gateway:
        await JobReportTable(gateway.node.parts.database).put(report("audit", AUDIT))
        found = await asked(gateway)
        assert (list(found.unreachable_shards), found.audit.live_count, found.audit.accepted) == ([0], 0, 5)
