"""`duetime backlog`: the total pending, by the live counters and by Spark's newest report."""

import sys
import time
from typing import Annotated, Any

import typer

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server
from duetime.cli.output import iso, length, local, moment_or_none, print_json, print_table
from duetime.client.message import moment
from duetime.v1 import backlog_pb2, gateway_pb2

Spark = Annotated[bool, typer.Option("--spark", help="Compare with the newest report of `duetime spark backlog`.")]

_LANE_COLUMNS = ["#shard", "#level", "#delay", "#pending", "oldest due", "#overdue by", "next due"]
_TOPIC_COLUMNS = ["#shard", "#level", "topic", "#pending", "#bytes", "oldest due", "#overdue", "next due"]
_DRIFT_COLUMNS = ["#shard", "#level", "#report", "#live", "#drift"]
_AHEAD_MS = {"10 minutes": 600_000, "hour": 3_600_000, "24 hours": 86_400_000}
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def backlog(spark: Spark = False, server: Server = None, as_json: Json = False) -> None:
    """Show the total pending: how many messages, what is overdue, what is due next.

    The counters are the shards' own, as of now. With --spark: the newest report, counted from the log, by topic, and
    how far the counters differ from it, allowing for what has come and gone since (drift: 0 is right).

    \b
    Examples:
      duetime backlog
      duetime backlog --spark
      duetime backlog --spark --json | jq .drift
    """
    if spark:
        found = call(server, "GetBacklogReport", backlog_pb2.GetBacklogReportRequest())
        print_json(_report_object(found)) if as_json else _print_report(found)
        unreachable = found.unreachable_shards
    else:
        listed = call(server, "ListLanes", gateway_pb2.ListLanesRequest())
        print_json(_live_object(listed)) if as_json else _print_live(listed)
        unreachable = listed.unreachable_shards
    for shard in unreachable:
        print(f"duetime: shard {shard} does not answer; its messages are missing", file=sys.stderr)
    if unreachable:
        raise typer.Exit(1)


def _print_live(listed: gateway_pb2.ListLanesResponse) -> None:
    now_ms, lanes = _now_ms(), [lane for lane in listed.lanes if lane.pending_count]
    oldest_ms = min((lane.oldest_due_at_ms for lane in lanes), default=0)
    next_ms = min((lane.next_due_at_ms for lane in lanes if lane.next_due_at_ms), default=0)
    parts = [f"{sum(lane.pending_count for lane in lanes):,} pending"]
    if 0 < oldest_ms < now_ms:
        parts.append(f"the oldest is overdue by {_about(now_ms - oldest_ms)}")
    if next_ms:
        parts.append(f"next due {local(moment(next_ms))}")
    print(", ".join(parts))
    if lanes:
        print_table(_LANE_COLUMNS, [_lane_row(lane, now_ms) for lane in lanes])


def _lane_row(lane: gateway_pb2.Lane, now_ms: int) -> tuple[str, ...]:
    overdue_ms = now_ms - lane.oldest_due_at_ms
    return (
        str(lane.shard),
        str(lane.level),
        length(lane.delay_ms),
        f"{lane.pending_count:,}",
        local(moment_or_none(lane.oldest_due_at_ms)),
        _about(overdue_ms) if lane.oldest_due_at_ms and overdue_ms > 0 else "-",
        local(moment_or_none(lane.next_due_at_ms)),
    )


def _live_object(listed: gateway_pb2.ListLanesResponse) -> dict[str, Any]:
    return {
        "at": iso(moment(_now_ms())),
        "pending_count": sum(lane.pending_count for lane in listed.lanes),
        "oldest_due_at": _first(lane.oldest_due_at_ms for lane in listed.lanes),
        "next_due_at": _first(lane.next_due_at_ms for lane in listed.lanes),
        "lanes": [
            {
                "shard": lane.shard,
                "level": lane.level,
                "delay_ms": lane.delay_ms,
                "pending_count": lane.pending_count,
                "oldest_due_at": iso(moment_or_none(lane.oldest_due_at_ms)),
                "next_due_at": iso(moment_or_none(lane.next_due_at_ms)),
            }
            for lane in listed.lanes
            if lane.pending_count
        ],
        "unreachable_shards": list(listed.unreachable_shards),
    }


def _print_report(found: backlog_pb2.GetBacklogReportResponse) -> None:
    report = found.report
    taken_ms = max((one.at_ms for one in report.snapshots), default=report.now_ms)
    age = _about(max(0, _now_ms() - taken_ms))
    print(f"report of {local(moment_or_none(taken_ms))}, {age} old, from {', '.join(report.sources)}")
    overdue = f"{report.overdue_count:,} overdue"
    if report.overdue_count:
        overdue += f" by up to {_about(report.overdue_by_ms)}"
    print(f"{report.pending_count:,} pending ({_size(report.pending_bytes)}), {overdue}")
    dues = [
        f"{sum(due.count for due in report.due_minutes if due.at_ms < report.now_ms + ahead_ms):,} within {words}"
        for words, ahead_ms in _AHEAD_MS.items()
    ]
    print(f"falling due: {', '.join(dues)}; next {local(moment_or_none(report.next_due_at_ms))}")
    forecast = report.forecast
    if forecast.needed_at_ms:
        needed = f"{forecast.needed_per_s:,.1f}/s at {local(moment_or_none(forecast.needed_at_ms))}"
        print(
            f"restores needed at most {needed}; of late {forecast.measured_per_s:,.1f}/s, "
            f"{forecast.measured_peak_per_s:,}/s in the fullest second"
        )
    print(f"live counters now: {found.live_count:,} pending; drift {found.drift:,}")
    if report.pending:
        print_table(_TOPIC_COLUMNS, [_topic_row(row) for row in report.pending])
    if report.pending_left_out:
        print(f"and {report.pending_left_out:,} smaller ones")
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
        _size(row.bytes),
        local(moment_or_none(row.oldest_due_at_ms)),
        f"{row.overdue_count:,}",
        local(moment_or_none(row.next_due_at_ms)),
    )


def _report_object(found: backlog_pb2.GetBacklogReportResponse) -> dict[str, Any]:
    """Names are those of the contract; moments are text."""
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
    }


def _dues(dues: Any) -> list[dict[str, Any]]:
    return [{"at": iso(moment_or_none(due.at_ms)), "count": due.count, "bytes": due.bytes} for due in dues]


def _first(moments_ms: Any) -> str | None:
    return iso(moment_or_none(min((at_ms for at_ms in moments_ms if at_ms), default=0)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _about(length_ms: int) -> str:
    """In at most two units: `3h 5m`, `12s`, `340ms`."""
    if length_ms < 1_000:
        return f"{length_ms}ms"
    rest = length_ms // 1_000
    parts: list[str] = []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, seconds)
        if count and len(parts) < 2:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def _size(count: int) -> str:
    """`1.2 GB` for 1,234,567,890."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_BYTE_UNITS[unit]}" if unit else f"{count} B"
