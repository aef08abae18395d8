"""`duetime backlog --spark`: the counts of Spark's latest report, and the drift of the live counters."""

from typing import Any

from duetime_format.printing import echo

from duetime.cli.output import about, iso, local, moment_or_none, now_ms, print_table, size
from duetime.v1 import backlog_pb2

_TOPIC_COLUMNS = [
    *("#shard", "#level", "topic", "#pending", "#bytes?2", "oldest due?1", "#overdue", "next due?3", "#paused?4")
]
_DRIFT_COLUMNS = ["#shard", "#level", "#report", "#live", "#drift"]
_AHEAD_MS = {"10 minutes": 600_000, "hour": 3_600_000, "24 hours": 86_400_000}


def print_report(found: backlog_pb2.GetBacklogReportResponse) -> None:
    """The report for people."""
    report = found.report
    taken_ms = max((one.at_ms for one in report.snapshots), default=report.now_ms)
    age = about(max(0, now_ms() - taken_ms))
    echo(f"report of {local(moment_or_none(taken_ms))}, {age} old, from {', '.join(report.sources)}")
    overdue = f"{report.overdue_count:,} overdue"
    if report.overdue_count:
        overdue += f" by up to {about(report.overdue_by_ms)}"
    paused = f", {report.paused_count:,} of paused schedules" if report.paused_count else ""
    echo(f"{report.pending_count:,} pending ({size(report.pending_bytes)}), {overdue}{paused}")
    dues = [
        f"{sum(due.count for due in report.due_minutes if due.at_ms < report.now_ms + ahead_ms):,} within {words}"
        for words, ahead_ms in _AHEAD_MS.items()
    ]
    echo(f"falling due: {', '.join(dues)}; next {local(moment_or_none(report.next_due_at_ms))}")
    forecast = report.forecast
    if forecast.needed_at_ms:
        needed = f"{forecast.needed_per_s:,.1f}/s at {local(moment_or_none(forecast.needed_at_ms))}"
        echo(
            f"peak delivery rate needed {needed}; recently {forecast.measured_per_s:,.1f}/s, "
            f"{forecast.measured_peak_per_s:,}/s in the busiest second"
        )
    echo(f"live counters now: {found.live_count:,} pending; drift {found.drift:,}")
    if report.pending:
        print_table(_TOPIC_COLUMNS, [_topic_row(row) for row in report.pending])
    if report.pending_left_out:
        echo(f"and {report.pending_left_out:,} smaller ones")
    drifting = [lane for lane in found.lanes if lane.drift]
    if drifting:
        rows = [(one.shard, one.level, one.report_count, one.live_count, one.drift) for one in drifting]
        print_table(_DRIFT_COLUMNS, [tuple(f"{value:,}" for value in row) for row in rows])


def _topic_row(row: backlog_pb2.PendingTopic) -> tuple[str, ...]:
    return (
        str(row.shard),
        str(row.level),
        row.topic,
        f"{row.count:,}",
        size(row.bytes),
        local(moment_or_none(row.oldest_due_at_ms)),
        f"{row.overdue_count:,}",
        local(moment_or_none(row.next_due_at_ms)),
        f"{row.paused_count:,}",
    )


def report_object(found: backlog_pb2.GetBacklogReportResponse) -> dict[str, Any]:
    """The report for machines. Names are those of the contract; times are text."""
    report, forecast = found.report, found.report.forecast
    return {
        "created_at": iso(moment_or_none(report.created_at_ms)),
        "sources": list(report.sources),
        "snapshot_id": report.snapshot_id,
        "snapshots": [
            {"shard": o.shard, "position": o.position, "at": iso(moment_or_none(o.at_ms))} for o in report.snapshots
        ],
        "now": iso(moment_or_none(report.now_ms)),
        "pending_count": report.pending_count,
        "pending_bytes": report.pending_bytes,
        "overdue_count": report.overdue_count,
        "overdue_by_ms": report.overdue_by_ms,
        "next_due_at": iso(moment_or_none(report.next_due_at_ms)),
        "forecast": {
            "needed_per_s": forecast.needed_per_s,
            "needed_at": iso(moment_or_none(forecast.needed_at_ms)),
            "measured_per_s": forecast.measured_per_s,
            "measured_peak_per_s": forecast.measured_peak_per_s,
        },
        "pending": [_topic_object(row) for row in report.pending],
        "pending_left_out": report.pending_left_out,
        "due_minutes": _dues(report.due_minutes),
        "due_hours": _dues(report.due_hours),
        "later_count": report.later_count,
        "paused_count": report.paused_count,
        "lanes": [
            {
                "shard": one.shard,
                "level": one.level,
                "report_count": one.report_count,
                "live_count": one.live_count,
                "drift": one.drift,
            }
            for one in found.lanes
        ],
        "report_count": found.report_count,
        "live_count": found.live_count,
        "drift": found.drift,
        "unreachable_shards": list(found.unreachable_shards),
    }


def _topic_object(row: backlog_pb2.PendingTopic) -> dict[str, Any]:
    return {
        "shard": row.shard,
        "level": row.level,
        "topic": row.topic,
        "count": row.count,
        "bytes": row.bytes,
        "oldest_due_at": iso(moment_or_none(row.oldest_due_at_ms)),
        "overdue_count": row.overdue_count,
        "overdue_by_ms": row.overdue_by_ms,
        "next_due_at": iso(moment_or_none(row.next_due_at_ms)),
        "paused_count": row.paused_count,
    }


def _dues(dues: Any) -> list[dict[str, Any]]:
    return [{"at": iso(moment_or_none(due.at_ms)), "count": due.count, "bytes": due.bytes} for due in dues]
