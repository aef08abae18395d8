"""The latest reports of Spark's jobs in the clients' contract, with the live counters beside the counted figures."""

import asyncio
from typing import Any, TypeVar

from duetime.v1 import backlog_pb2
from duetime.v1 import reports_pb2 as pb
from duetime_core.metadata import Database, JobReport, JobReportTable
from duetime_core.metadata.reports import AUDIT, LATENESS
from google.protobuf import json_format

from duetime_gateway.administration.backlog import BacklogComparer, LiveLanes, beside, drifts, live_lanes
from duetime_gateway.shards.shards import Shards

Found = TypeVar("Found", pb.LatenessReport, pb.AuditReport)


def lateness_of(report: JobReport) -> pb.LatenessReport:
    """Raises: ParseError: the summary is not a lateness report's."""
    return _filled(pb.LatenessReport(), report, dict(report.summary))


def audit_of(report: JobReport, live: LiveLanes) -> pb.AuditReport:
    """Raises: ParseError: the summary is not an audit's."""
    summary = dict(report.summary)
    lanes = [
        json_format.ParseDict(lane, backlog_pb2.BacklogLane(), ignore_unknown_fields=True)
        for lane in summary.pop("lanes", [])
    ]
    found = _filled(pb.AuditReport(), report, summary)
    found.lanes.extend(drifts(lanes, live.lanes))
    found.live_count = sum(lane.live_count for lane in found.lanes)
    found.drift = sum(lane.drift for lane in found.lanes)
    return found


def _filled(message: Found, report: JobReport, summary: dict[str, Any]) -> Found:
    """Fills the message from the summary; unknown fields of newer jobs are dropped."""
    damage_count = summary.pop("damage_count", 0)
    json_format.ParseDict(summary, message, ignore_unknown_fields=True)
    message.origin.CopyFrom(
        pb.ReportOrigin(
            created_at_ms=report.created_at_ms,
            sources=report.sources,
            snapshot_id=report.snapshot_id,
            damage_count=damage_count,
        )
    )
    for one in report.snapshots:
        message.origin.snapshots.add(shard=one.shard, position=one.position, at_ms=one.at_ms)
    return message


class JobReports:
    """The latest reports of all jobs."""

    def __init__(self, database: Database, shards: Shards, backlog: BacklogComparer) -> None:
        self._reports = JobReportTable(database)
        self._shards = shards
        self._backlog = backlog

    async def get(self) -> pb.GetReportsResponse:
        """Raises: Unavailable: the database does not answer."""
        backlog = await self._backlog.newest()
        lateness, audit = await asyncio.gather(self._reports.newest(LATENESS), self._reports.newest(AUDIT))
        response = pb.GetReportsResponse()
        if lateness is not None:
            response.lateness.CopyFrom(lateness_of(lateness))
        if backlog is None and audit is None:
            return response
        live = await live_lanes(self._shards)
        response.unreachable_shards.extend(live.unreachable_shards)
        if backlog is not None:
            response.backlog.CopyFrom(beside(backlog, live))
        if audit is not None:
            response.audit.CopyFrom(audit_of(audit, live))
        return response
