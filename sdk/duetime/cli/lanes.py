"""`duetime lanes`: what is pending, what is due next, and who serves it."""

import sys
from typing import Any

import typer

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server
from duetime.cli.output import iso, length, local, moment_or_none, print_json, print_table
from duetime.v1 import gateway_pb2

_COLUMNS = [
    "#shard", "#lane", "#delay", "#pending", "oldest due", "next due", "#watermark", "owner",
    "#late p50 ms", "#late p99 ms", "#restored", "#quarantined",
]  # fmt: skip


def lanes(server: Server = None, as_json: Json = False) -> None:
    """Show the lanes: pending messages, next due time and lateness for each shard and lane.

    Lanes from 1000 on are those for any time, all others those of levels.

    Lateness is the time from due to durably stored in the topic, over a lane's last 1,024 messages.

    \b
    Examples:
      duetime lanes
      duetime lanes --json | jq 'select(.pending_count > 0)'
    """
    listed: gateway_pb2.ListLanesResponse = call(server, "ListLanes", gateway_pb2.ListLanesRequest())
    if as_json:
        for lane in listed.lanes:
            print_json(_lane_object(lane))
    else:
        print_table(_COLUMNS, [_row(lane) for lane in listed.lanes])
    for shard in listed.unreachable_shards:
        print(f"duetime: shard {shard} does not answer; its lanes are missing", file=sys.stderr)
    if listed.unreachable_shards:
        raise typer.Exit(1)


def _row(lane: gateway_pb2.Lane) -> tuple[str, ...]:
    return (
        str(lane.shard),
        str(lane.level),
        length(lane.delay_ms) if lane.delay_ms else "any",
        f"{lane.pending_count:,}",
        local(moment_or_none(lane.oldest_due_at_ms)),
        local(moment_or_none(lane.next_due_at_ms)),
        f"{lane.watermark:,}",
        (lane.owner or "-") + (" (paused)" if lane.paused else ""),
        _late(lane.late_p50_ms),
        _late(lane.late_p99_ms),
        f"{lane.restored_count:,}",
        f"{lane.quarantined_count:,}",
    )


def _lane_object(lane: gateway_pb2.Lane) -> dict[str, Any]:
    return {
        "shard": lane.shard,
        "lane": lane.level,
        "level": lane.level,
        "delay_ms": lane.delay_ms,
        "pending_count": lane.pending_count,
        "oldest_due_at": iso(moment_or_none(lane.oldest_due_at_ms)),
        "next_due_at": iso(moment_or_none(lane.next_due_at_ms)),
        "watermark": lane.watermark,
        "max_offset": lane.max_offset,
        "owner": lane.owner or None,
        "paused": lane.paused,
        "late_p50_ms": None if lane.late_p50_ms < 0 else lane.late_p50_ms,
        "late_p99_ms": None if lane.late_p99_ms < 0 else lane.late_p99_ms,
        "restored_count": lane.restored_count,
        "quarantined_count": lane.quarantined_count,
    }


def _late(late_ms: float) -> str:
    return "-" if late_ms < 0 else f"{late_ms:.1f}"
