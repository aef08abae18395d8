"""Compares Spark's count of the backlog with the live counters: for clients, and every 15 s for metrics.

Spark counts from the log, the stores count continuously, and the two counts are taken at different times. A lane's
offsets give the entries added and removed in between. The remaining difference, the drift, is an error of one count.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import structlog
from duetime.v1 import backlog_pb2 as pb
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock
from duetime_core.errors import NotFound
from duetime_core.metadata import Database, JobReport, JobReportTable
from duetime_core.metadata.reports import BACKLOG
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing
from google.protobuf import json_format

from duetime_gateway.administration.lanes import lanes_of
from duetime_gateway.metrics import BacklogMetrics
from duetime_gateway.shards.shards import Shards

log = structlog.get_logger()
# Logger for errors that callers can trigger.
often = sparing()

PERIOD_MS = 15_000


def message_of(report: JobReport) -> pb.BacklogReport:
    """The report in the contract's form; unknown fields of newer jobs are dropped.

    Raises:
        ParseError: the summary is not a backlog's.
    """
    message = json_format.ParseDict(dict(report.summary), pb.BacklogReport(), ignore_unknown_fields=True)
    message.job, message.snapshot_id = report.job, report.snapshot_id
    message.created_at_ms = report.created_at_ms
    message.sources.extend(report.sources)
    for one in report.snapshots:
        message.snapshots.add(shard=one.shard, position=one.position, at_ms=one.at_ms)
    return message


class LiveLanes(NamedTuple):
    """The lanes as reported by the shards now, and the shards that do not answer."""

    lanes: Sequence[gateway_pb2.Lane]
    unreachable_shards: Sequence[int]


async def live_lanes(shards: Shards) -> LiveLanes:
    """Asks all shards for their lanes."""
    asked = shards.all()
    answers = await asyncio.gather(*(lanes_of(shard) for shard in asked))
    away = [shard.number for shard, lanes in zip(asked, answers, strict=True) if lanes is None]
    return LiveLanes([lane for lanes in answers for lane in lanes or ()], away)


def drifts(counted_lanes: Iterable[pb.BacklogLane], live: Iterable[gateway_pb2.Lane]) -> list[pb.LaneDrift]:
    """The drifts of the lanes found in both counts."""
    counted = {(lane.shard, lane.level): lane for lane in counted_lanes}
    found = []
    for now in sorted(live, key=lambda lane: (lane.shard, lane.level)):
        then = counted.get((now.shard, now.level))
        if then is None:
            continue
        came, went = now.max_offset - then.max_offset, now.watermark - then.watermark
        drift = now.pending_count - (then.counted + came - went)
        found.append(
            pb.LaneDrift(
                shard=now.shard,
                level=now.level,
                report_count=then.counted,
                live_count=now.pending_count,
                drift=drift,
            )
        )
    return found


def compare(report: pb.BacklogReport, live: Iterable[gateway_pb2.Lane]) -> pb.GetBacklogReportResponse:
    """Compares the lanes found in both counts, and their sums."""
    response = pb.GetBacklogReportResponse(report=report, lanes=drifts(report.lanes, live))
    response.report_count = sum(lane.report_count for lane in response.lanes)
    response.live_count = sum(lane.live_count for lane in response.lanes)
    response.drift = sum(lane.drift for lane in response.lanes)
    return response


def beside(report: pb.BacklogReport, live: LiveLanes) -> pb.GetBacklogReportResponse:
    """The report with the current figures of the shards."""
    response = compare(report, live.lanes)
    response.unreachable_shards.extend(live.unreachable_shards)
    return response


class BacklogComparer:
    """Keeps the latest report, read again only when it changes, and compares it with the shards."""

    def __init__(self, database: Database, shards: Shards, clock: Clock, metrics: BacklogMetrics) -> None:
        self._reports = JobReportTable(database)
        self._shards = shards
        self._clock = clock
        self._metrics = metrics
        self._known: tuple[tuple[int, int], pb.BacklogReport] | None = None

    async def get(self) -> pb.GetBacklogReportResponse:
        """Raises: NotFound: there is no report; Unavailable: the database does not answer."""
        report = await self.newest()
        if report is None:
            text = (
                "there is no backlog report yet: `duetime spark backlog STORES --database-url URL` writes one;"
                " with `duetime up` STORES is duetime-data/store-*, URL sqlite:///$PWD/duetime-data/metadata.db"
            )
            raise NotFound(text, reason="REPORT_NOT_FOUND")
        return beside(report, await live_lanes(self._shards))

    async def run(self) -> None:
        """Keeps the metrics up to date; failed reads are retried."""
        while True:
            _, error = await outcome(self._compare, "backlog")
            if error is not None:
                log.debug("backlog not compared", why=error.text)
            await self._clock.sleep(PERIOD_MS)

    async def _compare(self) -> None:
        try:
            report = await self.newest()
        except json_format.ParseError as error:
            often.warning("cannot read the backlog report", why=str(error))
            return
        if report is not None:
            self._metrics.show(beside(report, await live_lanes(self._shards)), self._clock.now_ms)

    async def newest(self) -> pb.BacklogReport | None:
        """Raises: Unavailable: the database does not answer."""
        key = await self._reports.newest_key(BACKLOG)
        if key is None:
            return None
        if self._known is None or self._known[0] != key:
            report = await self._reports.newest(BACKLOG)
            if report is None:
                return None
            self._known = key, message_of(report)
        return self._known[1]
