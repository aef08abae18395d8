"""`duetime top`: a live view of a cluster: rates, lateness, next due times, lanes, groups."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from duetime import deadlines
from duetime.cli.common import WATCH
from duetime.cli.gateway import CALL_TIMEOUT_S
from duetime.cli.lanes import is_used, lane_object, lateness, state_of
from duetime.cli.options import Json, Server, interval_s
from duetime.cli.output import fitting, iso, length, local, moment_or_none, now_ms, print_json
from duetime.client.connection import GatewayConnection
from duetime.client.errors import DueTimeError, PermissionDenied
from duetime.v1 import consumer_pb2, gateway_pb2

# Groups described at a time; if there are more, the first by name.
GROUPS_MAX = 32
QUIT = b"q"
_KEYS_MAX = 64
_LANES = [
    "#shard",
    "#lane",
    "#delay",
    "#pending",
    "#due?3",
    "next due?4",
    "state",
    "#delivered/s",
    "#durable late p50/p99 ms?2",
]
_GROUPS = ["group", "#lag", "#in flight?2", "#waiting?3", "#retries", "#dead letters?1", "#received/s", "#done/s?4"]
# Lines in addition to the rows of the tables.
_LINES_BESIDE = 9


@dataclass(frozen=True)
class ClusterSample:
    """The state of a cluster at one time."""

    # Read from a monotonic clock.
    at_s: float
    lanes: Sequence[gateway_pb2.Lane]
    unreachable_shards: Sequence[int]
    groups: Sequence[consumer_pb2.GroupDescription]
    groups_left_out: int = 0


@dataclass(frozen=True)
class Rates:
    """Rates between two samples, per second."""

    # Delayed messages accepted by lanes, and messages delivered by lanes; by shard and lane.
    accepted: dict[tuple[int, int], float]
    restored: dict[tuple[int, int], float]


def top(
    interval: Annotated[
        str, typer.Option("--interval", metavar="LENGTH", help="The refresh interval, such as 500ms or 5s.")
    ] = WATCH,
    once: Annotated[bool, typer.Option("--once", help="Print one screen after one interval, and end.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Watch a cluster: rates, lateness, lanes, groups.

    `q` or Ctrl-C ends it. Scheduled are accepted messages with a delay; delivered are those that reached their topics
    when due. A temporarily unavailable server does not end it, except at the start. In a pipe: like --once.

    \b
    Examples:
      duetime top
      duetime top --interval 500ms
      duetime top --once --json | jq .restored_per_s
    """
    console, every_s = Console(highlight=False, markup=False), interval_s("--interval", interval)
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(server, every_s, as_json, console, once=once or not console.is_terminal))


async def _run(server: str | None, interval: float, as_json: bool, console: Console, *, once: bool) -> None:
    ended = asyncio.Event()
    connection = GatewayConnection(server)
    try:
        before = await _look(connection)
        if once or as_json:
            while not await _is_set(ended, interval):
                now = await _look(connection)
                rates = _rates(before, now)
                if as_json:
                    print_json(screen_object(now, rates))
                    sys.stdout.flush()
                else:
                    console.print(screen(connection.server, now, rates, console))
                before = now
                if once:
                    return
        else:
            await _live(connection, interval, before, console, ended)
    finally:
        await connection.close()


async def _live(
    connection: GatewayConnection, interval: float, before: ClusterSample, console: Console, ended: asyncio.Event
) -> None:
    with _keys(ended), Live(console=console, screen=True, auto_refresh=False) as live:
        shown: RenderableType = Text(f"connecting to {connection.server}; q or Ctrl-C ends")
        live.update(shown, refresh=True)
        while not await _is_set(ended, interval):
            try:
                now = await _look(connection)
            except DueTimeError as error:
                live.update(Group(Text(f"{error}", style="red"), shown), refresh=True)
                continue
            shown = screen(connection.server, now, _rates(before, now), console)
            live.update(shown, refresh=True)
            before = now


async def _is_set(event: asyncio.Event, wait_s: float) -> bool:
    """Whether the event is set within `wait_s`."""
    with suppress(TimeoutError):
        async with deadlines.within(wait_s):
            await event.wait()
    return event.is_set()


@contextmanager
def _keys(ended: asyncio.Event) -> Iterator[None]:
    """Sets the event when `q` is pressed. If single keys can't be read, Ctrl-C remains."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    number, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def pressed() -> None:
        keys = os.read(number, _KEYS_MAX)
        # Empty: the terminal is gone.
        if not keys or QUIT in keys.lower():
            ended.set()

    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


async def _look(connection: GatewayConnection) -> ClusterSample:
    """Raises: DueTimeError."""

    async def describe(name: str) -> consumer_pb2.GroupDescription | None:
        # A group deleted meanwhile, or another user's, is None.
        with suppress(DueTimeError):
            request = consumer_pb2.DescribeGroupRequest(name=name)
            described: consumer_pb2.GroupDescription = await connection.call("DescribeGroup", request, CALL_TIMEOUT_S)
            return described
        return None

    listed = await connection.call("ListLanes", gateway_pb2.ListLanesRequest(), CALL_TIMEOUT_S)
    try:
        groups = (await connection.call("ListGroups", consumer_pb2.ListGroupsRequest(), CALL_TIMEOUT_S)).groups
    except PermissionDenied:
        groups = []
    at_s = time.monotonic()
    described = await asyncio.gather(*(describe(group.name) for group in groups[:GROUPS_MAX]))
    found = [one for one in described if one is not None]
    return ClusterSample(at_s, listed.lanes, listed.unreachable_shards, found, max(0, len(groups) - GROUPS_MAX))


def _rates(before: ClusterSample, now: ClusterSample) -> Rates:
    """A decreased count belongs to a restarted store: it has no rate."""
    took_s = max(now.at_s - before.at_s, 0.001)
    earlier = {(lane.shard, lane.level): lane for lane in before.lanes}
    accepted: dict[tuple[int, int], float] = {}
    restored: dict[tuple[int, int], float] = {}
    for lane in now.lanes:
        key = lane.shard, lane.level
        if key in earlier:
            accepted[key] = max(0, lane.max_offset - earlier[key].max_offset) / took_s
            restored[key] = max(0, lane.restored_count - earlier[key].restored_count) / took_s
    return Rates(accepted, restored)


def screen(server: str, now: ClusterSample, rates: Rates, console: Console) -> RenderableType:
    """The whole screen, at most as high as the terminal."""
    due = [lane.next_due_at_ms for lane in now.lanes if lane.next_due_at_ms]
    late = [lane for lane in now.lanes if lane.late_p50_ms >= 0]
    worst = max(late, key=lambda lane: lane.late_p99_ms, default=None)
    lines = [
        f"DueTime at {server}, {local(moment_or_none(now_ms()))}",
        f"pending {sum(lane.pending_count for lane in now.lanes):,}, "
        f"overdue {sum(lane.due_count for lane in now.lanes):,}, next due {local(moment_or_none(min(due, default=0)))}",
        f"scheduled {sum(rates.accepted.values()):,.1f}/s, delivered {sum(rates.restored.values()):,.1f}/s, "
        f"durable late {lateness(worst) if worst else '-'} ms (p50/p99 of the latest lane)",
    ]
    lines += [f"shard {shard} does not answer; its lanes are missing" for shard in now.unreachable_shards]
    room = max(console.height - _LINES_BESIDE - len(now.unreachable_shards), 4) if console.is_terminal else sys.maxsize
    groups = sorted(now.groups, key=_lag, reverse=True)[: max(room // 2, 2)]
    used = sorted(filter(is_used, now.lanes), key=lambda lane: -lane.pending_count)[: max(room - len(groups), 2)]
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if used:
        parts.append(fitting(_LANES, [_lane_row(lane, rates) for lane in used], console)[0])
    if groups:
        parts.append(fitting(_GROUPS, [_group_row(group) for group in groups], console)[0])
    if now.groups_left_out:
        parts.append(Text(f"{now.groups_left_out:,} more groups"))
    return Group(*parts)


def _lane_row(lane: gateway_pb2.Lane, rates: Rates) -> tuple[str, ...]:
    return (
        str(lane.shard),
        str(lane.level),
        length(lane.delay_ms) if lane.delay_ms else "any",
        f"{lane.pending_count:,}",
        f"{lane.due_count:,}",
        local(moment_or_none(lane.next_due_at_ms)),
        state_of(lane),
        f"{rates.restored.get((lane.shard, lane.level), 0.0):,.1f}",
        lateness(lane),
    )


def _lag(group: consumer_pb2.GroupDescription) -> int:
    return sum(queue.lag for queue in group.queues)


def _group_row(group: consumer_pb2.GroupDescription) -> tuple[str, ...]:
    return (
        group.group.name,
        f"{_lag(group):,}",
        f"{sum(queue.in_flight for queue in group.queues):,}",
        f"{sum(queue.waiting for queue in group.queues):,}",
        f"{group.waiting_retries:,}",
        f"{group.dead_letters:,}",
        f"{group.receives_per_s:,.1f}",
        f"{group.acks_per_s:,.1f}",
    )


def screen_object(now: ClusterSample, rates: Rates) -> dict[str, Any]:
    """The screen for machines."""
    due = [lane.next_due_at_ms for lane in now.lanes if lane.next_due_at_ms]
    return {
        "at": iso(moment_or_none(now_ms())),
        "pending_count": sum(lane.pending_count for lane in now.lanes),
        "overdue_count": sum(lane.due_count for lane in now.lanes),
        "next_due_at": iso(moment_or_none(min(due, default=0))),
        "accepted_per_s": round(sum(rates.accepted.values()), 3),
        "restored_per_s": round(sum(rates.restored.values()), 3),
        "lanes": [
            lane_object(lane) | {"restored_per_s": round(rates.restored.get((lane.shard, lane.level), 0.0), 3)}
            for lane in now.lanes
            if is_used(lane)
        ],
        "groups": [
            {
                "group": one.group.name,
                "lag": _lag(one),
                "in_flight": sum(queue.in_flight for queue in one.queues),
                "waiting": sum(queue.waiting for queue in one.queues),
                "waiting_retries": one.waiting_retries,
                "dead_letters": one.dead_letters,
                "receives_per_s": one.receives_per_s,
                "acks_per_s": one.acks_per_s,
            }
            for one in now.groups
        ],
        "unreachable_shards": list(now.unreachable_shards),
    }
