"""`duetime groups`: list, create, describe, change, reset and delete consumer groups; and their retries."""

import asyncio
from contextlib import suppress
from itertools import zip_longest
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli import grouplimits, options, pauses, retries
from duetime.cli.gateway import CALL_TIMEOUT_S, call, reach
from duetime.cli.options import DryRun, Json, Server, inherited, watched
from duetime.cli.output import iso, local, moment_or_none, print_json, print_table
from duetime.cli.policies import backoff_of, policy_of
from duetime.client.connection import GatewayConnection
from duetime.client.errors import NotFound, PermissionDenied
from duetime.client.message import at_ms, moment
from duetime.v1 import consumer_pb2, message_pb2

groups = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)

_HELP = """List, create, describe, reset and delete groups.

\b
Examples:
  duetime groups
  duetime groups create billing --start latest --backoff exponential:1s..10m --max-attempts 5
  duetime groups describe billing
  duetime groups reset billing orders --to 2026-01-01T12:00 --dry-run
  duetime groups retries billing --error timeout
  duetime groups pause billing --until 08:00
  duetime groups limit billing --rate 50/s
"""
_EARLIEST, _LATEST = "earliest", "latest"
_STARTS = {
    consumer_pb2.GROUP_START_EARLIEST: _EARLIEST,
    consumer_pb2.GROUP_START_LATEST: _LATEST,
}
# Groups of a list with counted lag, retries and dead letters (one call each), and concurrent calls.
DESCRIBED_MAX = 256
DESCRIBED_AT_ONCE = 16
_COLUMNS = [
    "group", "#lag", "#retries", "#dead letters", "start?4", "ordered?2", "#deliveries?3", "backoff", "created?1",
]  # fmt: skip
_QUEUE_COLUMNS = [
    "topic", "#queue", "#shard?2", "#acknowledged?3", "#next?1", "#end?4", "#lag", "#in flight?6", "#waiting?7",
    "oldest unacknowledged?5",
]  # fmt: skip

_Name = Annotated[str, typer.Argument(metavar="GROUP", help="1 to 120 characters of [%|a-zA-Z0-9_-].")]
_Retry = Annotated[
    str | None,
    typer.Option(
        "--backoff",
        "--retry",
        metavar="BACKOFF",
        help="Delays between deliveries of a failed message: `levels` (RocketMQ's: 10s, 30s, 1m, ... 2h), "
        "`exponential:1s..10m` (also `,factor=3,jitter=0.1`), or delays such as `1s,5s,30s`.",
    ),
]
_MaxAttempts = Annotated[
    int | None,
    typer.Option(metavar="N", help="Deliveries before a message becomes a dead letter: 1 to 1,000. Default: 17."),
]


@groups.callback(help=_HELP)
@watched
def list_groups(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """See _HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (server, as_json)  # options before the command apply to it too
        return
    _list(server, as_json)


@groups.command("list")
@watched
def list_command(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """List the groups: lag, retries, dead letters.

    Lag counts unacknowledged messages: not delivered yet, in flight, or delivered and due again. Retries are failed
    messages that wait for their next attempt; they are not part of the lag.

    \b
    Examples:
      duetime groups list --json | jq -r .group
    """
    _list(*inherited(context, server, as_json))


def _list(server: str | None, as_json: bool) -> None:
    listed = asyncio.run(_described(server))
    for group, described in listed if as_json else ():
        print_json(_group_object(group) | _counts(described) | pauses.pauses_object(described))
    if listed and not as_json:
        are_paused = any(described and described.pauses for _, described in listed)
        are_limited = any(group.limits.limits for group, _ in listed)
        rows = [
            (group.name, *map(_counted, _counts(described).values()), _start(group),
             "yes" if group.ordered else "-", str(group.retry.max_attempts), backoff_of(group.retry),
             local(moment(group.created_at_ms)), *([pauses.paused(described)] if are_paused else []),
             *([grouplimits.limited(group)] if are_limited else []))
            for group, described in listed
        ]  # fmt: skip
        more = [*(["paused?5"] if are_paused else []), *(["limit?6"] if are_limited else [])]
        print_table([*_COLUMNS, *more], rows)
    elif not listed and not as_json:
        echo("no groups yet; `duetime groups create GROUP` or a first receiver creates one")
    if len(listed) > DESCRIBED_MAX:
        echo(f"duetime: only the first {DESCRIBED_MAX} groups have counts", err=True)
    for shard in sorted({shard for _, described in listed if described for shard in described.counting_shards}):
        echo(f"duetime: shard {shard} is counting; its waiting retries are missing", err=True)
    missing = {shard for _, described in listed if described for shard in described.unreachable_shards}
    for shard in sorted(missing):
        echo(f"duetime: shard {shard} does not answer; its queues are missing", err=True)
    if missing:
        raise typer.Exit(1)


async def _described(server: str | None) -> list[tuple[consumer_pb2.Group, consumer_pb2.GroupDescription | None]]:
    """All groups by name; None: deleted meanwhile, another user's, or beyond DESCRIBED_MAX."""
    connection, turns = GatewayConnection(await reach(server)), asyncio.Semaphore(DESCRIBED_AT_ONCE)

    async def describe(name: str) -> consumer_pb2.GroupDescription | None:
        with suppress(NotFound, PermissionDenied):
            async with turns:
                request = consumer_pb2.DescribeGroupRequest(name=name)
                found: consumer_pb2.GroupDescription = await connection.call("DescribeGroup", request, CALL_TIMEOUT_S)
                return found
        return None

    try:
        listed = (await connection.call("ListGroups", consumer_pb2.ListGroupsRequest(), CALL_TIMEOUT_S)).groups
        described = await asyncio.gather(*(describe(group.name) for group in listed[:DESCRIBED_MAX]))
    finally:
        await connection.close()
    return list(zip_longest(listed, described))


def _counts(described: consumer_pb2.GroupDescription | None) -> dict[str, int | None]:
    """Counts in the order of the table; None: unknown."""
    if described is None:
        return {"lag": None, "waiting_retries": None, "dead_letters": None}
    return {
        "lag": sum(queue.lag for queue in described.queues),
        "waiting_retries": described.waiting_retries,
        "dead_letters": described.dead_letters,
    }


def _counted(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


@groups.command()
def create(
    context: typer.Context,
    name: _Name,
    start: Annotated[
        str, typer.Option(metavar="WHERE", help="earliest, latest, or a time: messages stored then or later.")
    ] = _EARLIEST,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="One lease per queue at a time; a failed message blocks its queue.")
    ] = False,
    retry: _Retry = None,
    max_attempts: _MaxAttempts = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create a group.

    An existing group with the same settings is left unchanged.

    \b
    Examples:
      duetime groups create billing
      duetime groups create audit --start latest --backoff 1s,5s,30s --max-attempts 4
      duetime groups create ledger --ordered --start 2026-01-01T00:00Z
    """
    server, as_json = inherited(context, server, as_json)
    group = consumer_pb2.Group(name=name, ordered=ordered, retry=policy_of(retry, max_attempts))
    if start == _LATEST:
        group.start = consumer_pb2.GROUP_START_LATEST
    elif start != _EARLIEST:
        group.start = consumer_pb2.GROUP_START_TIME
        group.start_at_ms = at_ms(options.moment("--start", start, "earliest, latest, or "))
    made = call(server, "CreateGroup", consumer_pb2.CreateGroupRequest(group=group))
    _print_group(made, as_json)


@groups.command("set")
def set_policy(
    context: typer.Context,
    name: _Name,
    retry: _Retry = None,
    max_attempts: _MaxAttempts = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Change a group's retry policy.

    It applies to failures from now on, unless a message or a handler has its own policy. Omitted options keep their
    values.

    \b
    Examples:
      duetime groups set billing --backoff exponential:1s..10m,factor=3 --max-attempts 8
    """
    server, as_json = inherited(context, server, as_json)
    if retry is None and max_attempts is None:
        raise typer.BadParameter("give --backoff, --max-attempts or both")
    listed = call(server, "ListGroups", consumer_pb2.ListGroupsRequest()).groups
    policy = next((group.retry for group in listed if group.name == name), message_pb2.RetryPolicy())
    if retry is not None:
        max_attempts = max_attempts if max_attempts is not None else policy.max_attempts
        policy = policy_of(retry, max_attempts)
    elif max_attempts is not None:
        policy.max_attempts = max_attempts
    changed = call(server, "UpdateGroup", consumer_pb2.UpdateGroupRequest(name=name, retry=policy))
    _print_group(changed, as_json)


@groups.command()
@watched
def describe(context: typer.Context, name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Show a group's offsets, members and rates.

    A queue's lag counts unacknowledged messages: not delivered yet, in flight, or delivered and due again.

    \b
    Examples:
      duetime groups describe billing
      duetime groups describe billing --json | jq '[.queues[].lag] | add'
    """
    server, as_json = inherited(context, server, as_json)
    described = call(server, "DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))
    if as_json:
        print_json(_description_object(described))
    else:
        _print_description(described)
    for shard in described.unreachable_shards:
        echo(f"duetime: shard {shard} does not answer; its queues are missing", err=True)
    if described.unreachable_shards:
        raise typer.Exit(1)


@groups.command()
def reset(
    context: typer.Context,
    name: _Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE", help="earliest, latest, a time (messages stored since), or with --queue an offset."
        ),
    ],
    queue: Annotated[int | None, typer.Option(help="This queue only. Default: all.")] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Reset a group's offsets in a topic.

    Messages before the offset count as done; those after it are delivered (again).

    Retries of messages that are delivered again end. Others stay: to drop or repeat the due ones, reset %RETRY%NAME,
    which is a topic of its own.

    \b
    Examples:
      duetime groups reset billing orders --to earliest --dry-run
      duetime groups reset billing orders --to 2026-01-01T12:00 --yes
      duetime groups reset billing orders --queue 2 --to 1500 --yes
    """
    server, as_json = inherited(context, server, as_json)
    if dry_run == yes:
        raise typer.BadParameter("give --dry-run to see the changes, or --yes to make them")
    request = consumer_pb2.ResetGroupRequest(name=name, topic=topic, queue=queue, dry_run=dry_run)
    if to == _EARLIEST:
        request.earliest = True
    elif to == _LATEST:
        request.latest = True
    elif to.isascii() and to.isdigit():
        if queue is None:
            raise typer.BadParameter(f"--to {to} is an offset in one queue: give --queue")
        request.offset = int(to)
    else:
        request.at_ms = at_ms(options.moment("--to", to, "earliest, latest, an offset or "))
    answer = call(server, "ResetGroup", request)
    if as_json:
        for one in answer.queues:
            print_json(_reset_object(topic, one))
        return
    rows = [
        (str(one.queue), str(one.shard), f"{one.from_offset:,}", f"{one.to_offset:,}",
         f"{one.to_offset - one.from_offset:+,}", f"{one.leases_ended:,}", f"{one.retries_ended:,}")
        for one in answer.queues
    ]  # fmt: skip
    print_table(["#queue", "#shard", "#from", "#to", "#moves", "#leases ended", "#retries ended"], rows)
    echo("dry run: nothing was changed" if dry_run else f"group {name} continues from these offsets in {topic}")


groups.command("limit")(grouplimits.limit)
groups.command("pause")(pauses.pause)
groups.command("resume")(pauses.resume)
groups.command("retries")(watched(retries.list_retries))
groups.command("retry-now")(retries.retry_now)
groups.command("discard-retries")(retries.discard_retries)


@groups.command()
def delete(
    context: typer.Context,
    name: _Name,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if receivers were seen within the last minute.")
    ] = False,
    server: Server = None,
) -> None:
    """Delete a group and its offsets.

    Its waiting retries end. A later group of the same name starts fresh: it finds the old dead letters, but receives no
    retries.

    \b
    Examples:
      duetime groups delete billing
    """
    server, _ = inherited(context, server, False)
    listed = call(server, "ListGroups", consumer_pb2.ListGroupsRequest()).groups
    # Deleted in any case: a shard unavailable at the first delete may still have the group's offsets.
    call(server, "DeleteGroup", consumer_pb2.DeleteGroupRequest(name=name, force=force))
    existed = any(group.name == name for group in listed)
    echo(f"group {name} is deleted" if existed else f"group {name} did not exist")


def _print_group(group: consumer_pb2.Group, as_json: bool) -> None:
    if as_json:
        print_json(_group_object(group))
    else:
        echo(_sentence(group))


def _sentence(group: consumer_pb2.Group) -> str:
    order = ", ordered" if group.ordered else ""
    times = (
        f"at most {group.retry.max_attempts} deliveries, retries {backoff_of(group.retry)} "
        "(unless a message or a handler has its own policy)"
    )
    return f"group {group.name} starts {_start(group)}{order}; {times}"


def _start(group: consumer_pb2.Group) -> str:
    return _STARTS.get(group.start) or f"at {local(moment(group.start_at_ms))}"


def _print_description(described: consumer_pb2.GroupDescription) -> None:
    echo(f"{_sentence(described.group)}; created {local(moment(described.group.created_at_ms))}")
    lag, in_flight, waiting = (
        sum(getattr(queue, name) for queue in described.queues) for name in ("lag", "in_flight", "waiting")
    )
    known = "answering shards only: " if described.unreachable_shards else ""
    echo(
        f"{known}lag {lag:,}, in flight {in_flight:,}, waiting {waiting:,}, {_retries(described)}, "
        f"dead letters {described.dead_letters:,}, lapsed {described.lapsed_messages:,}; "
        f"over the last minute {described.receives_per_s:,.1f} received and {described.acks_per_s:,.1f} acknowledged "
        "per second"
    )
    for line in grouplimits.limit_lines(described.group.limits.limits):
        echo(line)
    for line in pauses.pause_lines(described.pauses):
        echo(line)
    if described.queues:
        print_table(_QUEUE_COLUMNS, [_queue_row(queue) for queue in described.queues])
    elif not known:
        echo("nothing has been received yet; offsets that `duetime pull --group` commits are not shown")
    if described.members:
        rows = [(one.name, one.topic, local(moment_or_none(one.seen_at_ms))) for one in described.members]
        print_table(["member", "topic?1", "last seen"], rows)


def _retries(described: consumer_pb2.GroupDescription) -> str:
    """The count of waiting retries, and the time of the next attempt."""
    due = moment_or_none(described.next_retry_at_ms)
    text = f"waiting retries {described.waiting_retries:,}" + (f" (the next at {local(due)})" if due else "")
    shards = ", ".join(map(str, described.counting_shards))
    return f"{text} without shard {shards}, which is counting" if shards else text


def _queue_row(queue: consumer_pb2.GroupQueue) -> tuple[str, ...]:
    numbers = (
        queue.committed_offset, queue.next_offset, queue.max_offset, queue.lag, queue.in_flight, queue.waiting,
    )  # fmt: skip
    place = (queue.topic, str(queue.queue), str(queue.shard))
    return (*place, *(f"{number:,}" for number in numbers), local(moment_or_none(queue.oldest_unacked_at_ms)))


def _group_object(group: consumer_pb2.Group) -> dict[str, Any]:
    return {
        "group": group.name,
        "start": _STARTS.get(group.start, "time"),
        "start_at": iso(moment_or_none(group.start_at_ms)),
        "ordered": group.ordered,
        "max_attempts": group.retry.max_attempts,
        "backoff": backoff_of(group.retry),
        "created_at": iso(moment(group.created_at_ms)),
        **grouplimits.limits_object(group),
    }


def _description_object(described: consumer_pb2.GroupDescription) -> dict[str, Any]:
    return _group_object(described.group) | {
        "queues": [
            {
                "topic": queue.topic,
                "queue": queue.queue,
                "shard": queue.shard,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "next_offset": queue.next_offset,
                "committed_offset": queue.committed_offset,
                "lag": queue.lag,
                "in_flight": queue.in_flight,
                "waiting": queue.waiting,
                "oldest_unacked_at": iso(moment_or_none(queue.oldest_unacked_at_ms)),
            }
            for queue in described.queues
        ],
        "members": [
            {"member": one.name, "topic": one.topic, "seen_at": iso(moment_or_none(one.seen_at_ms))}
            for one in described.members
        ],
        "acks_per_s": described.acks_per_s,
        "receives_per_s": described.receives_per_s,
        "dead_letters": described.dead_letters,
        "lapsed_messages": described.lapsed_messages,
        "waiting_retries": described.waiting_retries,
        "next_retry_at": iso(moment_or_none(described.next_retry_at_ms)),
        "counting_shards": list(described.counting_shards),
        "unreachable_shards": list(described.unreachable_shards),
        **pauses.pauses_object(described),
    }


def _reset_object(topic: str, one: consumer_pb2.ResetQueue) -> dict[str, Any]:
    return {
        "topic": topic,
        "queue": one.queue,
        "shard": one.shard,
        "from_offset": one.from_offset,
        "to_offset": one.to_offset,
        "leases_ended": one.leases_ended,
        "retries_ended": one.retries_ended,
    }
