"""Reports: results of Spark's jobs on backlog, lateness and audit, beside the current live counters."""

import asyncio

from duetime.v1 import backlog_pb2, gateway_pb2, reports_pb2
from duetime_core.clock import Clock
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime_console.asking import asked
from duetime_console.gateway import GatewayError
from duetime_console.rendering import page

# Rows of a table; the rest is counted.
ROWS_MAX = 200
_AHEAD_MS = {"10 minutes": 600_000, "hour": 3_600_000, "24 hours": 86_400_000}


async def reports(request: Request) -> Response:
    found, lanes = await asyncio.gather(
        asked(request, "GetReports", reports_pb2.GetReportsRequest()),
        asked(request, "ListLanes", gateway_pb2.ListLanesRequest()),
    )
    error = found if isinstance(found, GatewayError) else None
    shown = reports_pb2.GetReportsResponse() if error else found
    clock: Clock = request.app.state.clock
    return page(
        request,
        "reports.html",
        error=error,
        backlog=shown.backlog if shown.HasField("backlog") else None,
        lateness=shown.lateness if shown.HasField("lateness") else None,
        audit=shown.audit if shown.HasField("audit") else None,
        unreachable_shards=list(shown.unreachable_shards),
        now_ms=clock.now_ms(),
        taken_ms=taken_ms,
        ahead=_ahead(shown.backlog.report),
        most=max((due.count for due in shown.backlog.report.due_hours), default=1),
        rows_max=ROWS_MAX,
        lanes_error=lanes if isinstance(lanes, GatewayError) else None,
        lanes=[] if isinstance(lanes, GatewayError) else [each for each in lanes.lanes if each.late_p99_ms >= 0],
        status=error.status if error else 200,
    )


def taken_ms(origin: backlog_pb2.BacklogReport | reports_pb2.ReportOrigin) -> int:
    """The time of a report's latest shard; 0: no shard had a record."""
    return max((each.at_ms for each in origin.snapshots), default=0)


def _ahead(report: backlog_pb2.BacklogReport) -> dict[str, int]:
    """Messages due within some lengths of time."""
    return {
        words: sum(due.count for due in report.due_minutes if due.at_ms < report.now_ms + ahead_ms)
        for words, ahead_ms in _AHEAD_MS.items()
    }


ROUTES = [Route("/reports", reports, methods=["GET"])]
