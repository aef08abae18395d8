"""`duetime lanes`: pending messages, next due times and schedulers by lane; pauses and resumes lanes."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server, inherited, watched
from duetime.cli.output import iso, length, local, moment_or_none, print_json, print_table
from duetime.client.errors import InvalidArgument, NotFound
from duetime.client.message import delay_ms
from duetime.v1 import gateway_pb2

_HELP = """Show the lanes: pending, next due and lateness.

Lanes from 1000 on are for any time, all others for delay levels. Lanes without a message since their store's start are
hidden without --all, except in JSON.

Durable late is the time from due to durable in the topic, including the flush, over a lane's last 1,024 messages, in
ms. The `late` of one message ends at its store time, before the flush.

\b
Examples:
  duetime lanes
  duetime lanes --wide --watch
  duetime lanes --json | jq 'select(.pending_count > 0)'
  duetime lanes pause 30m
"""
# Columns with a rank are left out on a narrow terminal, see print_table.
_COLUMNS = [
    "#shard", "#lane", "#delay", "#pending", "next due?7", "state", "#durable late p50/p99?6", "oldest due?5",
    "owner?4", "#delivered?3", "#watermark?2", "#quarantined?1",
]  # fmt: skip

lanes = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)

_Lane = Annotated[str, typer.Argument(metavar="LANE", help="The lane's number, or the delay of its level: 30m.")]
_Shard = Annotated[int | None, typer.Option("--shard", min=0, metavar="N", help="Only on this shard.")]


@lanes.callback(help=_HELP)
@watched
def list_lanes(
    context: typer.Context,
    show_all: Annotated[bool, typer.Option("--all", help="Include lanes that had no message.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """See _HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (server, as_json)  # options before the command apply to it too
        return
    listed: gateway_pb2.ListLanesResponse = call(server, "ListLanes", gateway_pb2.ListLanesRequest())
    shown = [lane for lane in listed.lanes if show_all or is_used(lane)]
    if as_json:
        for lane in listed.lanes:
            print_json(lane_object(lane))
    elif shown:
        print_table(_COLUMNS, [_row(lane) for lane in shown])
    elif listed.lanes:
        echo(f"none of the {len(listed.lanes)} lanes had a message; --all shows them")
    for shard in listed.unreachable_shards:
        echo(f"duetime: shard {shard} does not answer; its lanes are missing", err=True)
    if listed.unreachable_shards:
        raise typer.Exit(1)


@lanes.command()
def pause(
    context: typer.Context, lane: _Lane, shard: _Shard = None, server: Server = None, as_json: Json = False
) -> None:
    """Pause a lane: its messages wait, even when due.

    The lane's scheduler obeys within a second; the pause survives restarts, and ends with a resume. Nothing is lost;
    messages due meanwhile are late. Messages are accepted and can be cancelled as usual.

    \b
    Examples:
      duetime lanes pause 30m
      duetime lanes pause 1000 --shard 1
    """
    _set_paused(context, lane, shard, server, as_json, paused=True)


@lanes.command()
def resume(
    context: typer.Context, lane: _Lane, shard: _Shard = None, server: Server = None, as_json: Json = False
) -> None:
    """Resume a paused lane.

    Messages due meanwhile are delivered at once, in order.

    \b
    Examples:
      duetime lanes resume 30m
      duetime lanes resume 1000 --shard 1
    """
    _set_paused(context, lane, shard, server, as_json, paused=False)


def _set_paused(
    context: typer.Context, lane: str, shard: int | None, server: str | None, as_json: bool, *, paused: bool
) -> None:
    server, as_json = inherited(context, server, as_json)
    level = int(lane) if lane.isascii() and lane.isdigit() else _level_of(lane, server)
    request = gateway_pb2.PauseLaneRequest(level=level, shard=shard)
    answer = call(server, "PauseLane" if paused else "ResumeLane", request)
    word = "paused" if paused else "resumed"
    if as_json:
        for one in answer.shards:
            print_json({"shard": one, "lane": level, "paused": paused})
    else:
        echo(f"lane {level} is {word} on shard{'s' * (len(answer.shards) > 1)} {', '.join(map(str, answer.shards))}")


def _level_of(text: str, server: str | None) -> int:
    """The level with this delay. Raises: BadParameter: it is not a delay. NotFound: no level has it."""
    try:
        wanted_ms = delay_ms(text)
    except InvalidArgument:
        raise typer.BadParameter(f"{text!r} is neither a lane's number nor a delay such as 30m") from None
    known: Iterable[gateway_pb2.Lane] = call(server, "ListLanes", gateway_pb2.ListLanesRequest()).lanes
    levels = {lane.delay_ms: lane.level for lane in known if lane.delay_ms}
    if wanted_ms not in levels:
        delays = ", ".join(length(one) for one in sorted(levels))
        text = f"no level has the delay {text}; levels: {delays}; name lanes for any time by number"
        raise NotFound(text, reason="LANE_NOT_FOUND")
    return levels[wanted_ms]


def is_used(lane: gateway_pb2.Lane) -> bool:
    """Whether it has or had messages, or is paused."""
    return bool(lane.pending_count or lane.paused or lane.quarantined_count or lane.late_p50_ms >= 0)


def state_of(lane: gateway_pb2.Lane) -> str:
    """The state of the lane, in a word."""
    return "paused" if lane.paused else "served" if lane.owner else "-"


def lateness(lane: gateway_pb2.Lane) -> str:
    """The median and the 99th percentile."""
    return "-" if lane.late_p50_ms < 0 else f"{lane.late_p50_ms:.1f}/{lane.late_p99_ms:.1f}"


def _row(lane: gateway_pb2.Lane) -> tuple[str, ...]:
    return (
        str(lane.shard),
        str(lane.level),
        length(lane.delay_ms) if lane.delay_ms else "any",
        f"{lane.pending_count:,}",
        local(moment_or_none(lane.next_due_at_ms)),
        state_of(lane),
        lateness(lane),
        local(moment_or_none(lane.oldest_due_at_ms)),
        lane.owner or "-",
        f"{lane.restored_count:,}",
        f"{lane.watermark:,}",
        f"{lane.quarantined_count:,}",
    )


def lane_object(lane: gateway_pb2.Lane) -> dict[str, Any]:
    """A lane for machines."""
    late_p50_ms, late_p99_ms = (None if ms < 0 else ms for ms in (lane.late_p50_ms, lane.late_p99_ms))
    return {
        "shard": lane.shard,
        "lane": lane.level,
        "level": lane.level if lane.delay_ms else None,
        "delay_ms": lane.delay_ms,
        "pending_count": lane.pending_count,
        "oldest_due_at": iso(moment_or_none(lane.oldest_due_at_ms)),
        "next_due_at": iso(moment_or_none(lane.next_due_at_ms)),
        "watermark": lane.watermark,
        "max_offset": lane.max_offset,
        "owner": lane.owner or None,
        "paused": lane.paused,
        "durable_late_p50_ms": late_p50_ms,
        "durable_late_p99_ms": late_p99_ms,
        # The names of earlier releases.
        "late_p50_ms": late_p50_ms,
        "late_p99_ms": late_p99_ms,
        "restored_count": lane.restored_count,
        "quarantined_count": lane.quarantined_count,
    }
