"""`duetime topics`: list, create, describe, pause and delete topics."""

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli import options, pauses
from duetime.cli.gateway import call, reach
from duetime.cli.options import Json, Server, Yes, inherited, watched
from duetime.cli.output import iso, length, local, print_json, print_table
from duetime.client.administering.admin import AsyncAdmin
from duetime.client.administering.described import DeletedTopic, LiteTopic
from duetime.client.message import moment
from duetime.v1 import consumer_pb2, gateway_pb2

topics = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)

_HELP = """List, create, describe and delete topics.

\b
Examples:
  duetime topics
  duetime topics create orders --queues 8
  duetime topics describe orders --json
  duetime topics pause orders --until 08:00
  duetime topics delete orders --dry-run
"""
# The rest of a topic may be large.
_DELETE_TIMEOUT = "2m"
_TYPES = {name.removeprefix("TOPIC_TYPE_").lower(): number for name, number in gateway_pb2.TopicType.items()}
_NAMES = {number: name for name, number in _TYPES.items()}
_Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 127 characters of [%|a-zA-Z0-9_-].")]


@topics.callback(help=_HELP)
@watched
def list_topics(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """See _HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (server, as_json)  # options before the command apply to it too
        return
    _list(server, as_json)


@topics.command("list")
@watched
def list_command(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """List the topics; the default command.

    \b
    Examples:
      duetime topics list --json | jq -r .topic
    """
    _list(*inherited(context, server, as_json))


def _list(server: str | None, as_json: bool) -> None:
    answer: gateway_pb2.ListTopicsResponse = call(server, "ListTopics", gateway_pb2.ListTopicsRequest())
    listed, paused = answer.topics, {pause.topic: pause for pause in answer.pauses}
    if as_json:
        for topic in listed:
            print_json(_topic_object(topic, paused.get(topic.name)))
    elif listed:
        rows = [
            (one.name, str(one.queue_count), _max_delay(one), local(moment(one.created_at_ms)),
             *([pauses.until_text(paused[one.name]) if one.name in paused else "-"] if paused else []))
            for one in listed
        ]  # fmt: skip
        print_table(["topic", "#queues", "#most delay?1", "created?2", *(["paused?3"] if paused else [])], rows)
    else:
        echo("no topics yet; the first `duetime send TOPIC BODY` creates one")
    for shard in answer.unreachable_shards:
        echo(f"duetime: shard {shard} does not answer; its pauses are missing", err=True)


@topics.command()
def create(
    context: typer.Context,
    name: _Name,
    queues: Annotated[int, typer.Option(help="The number of queues, 1 to 1,024. Default: the server's.")] = 0,
    max_delay: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Longest delay of its messages: 2h, 30d. Default: ten years.")
    ] = None,
    message_type: Annotated[
        str,
        typer.Option("--type", help="Type of its messages: normal, fifo, delay, transaction, lite, priority or any."),
    ] = "any",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create a topic.

    An existing topic with the same number of queues, longest delay and type is left unchanged.

    \b
    Examples:
      duetime topics create orders --queues 8
      duetime topics create reminders --max-delay 30d
      duetime topics create events --type fifo
      duetime topics create alerts --type priority --queues 8
    """
    if message_type not in _TYPES:
        raise typer.BadParameter(f"{message_type!r} is not one of {', '.join(_TYPES)}", param_hint="--type")
    server, as_json = inherited(context, server, as_json)
    max_delay_ms = options.length("--max-delay", max_delay) if max_delay else 0
    request = gateway_pb2.CreateTopicRequest(
        name=name,
        queue_count=queues,
        max_delay_ms=max_delay_ms,
        message_type=_TYPES[message_type],  # type: ignore[arg-type]
    )
    topic = call(server, "CreateTopic", request)
    if as_json:
        print_json(_topic_object(topic))
    else:
        limit = f", longest delay {_max_delay(topic)}" if topic.max_delay_ms else ""
        echo(f"topic {topic.name} has {topic.queue_count} queues{limit}{_type(topic, ', for ')}")


@topics.command()
@watched
def describe(context: typer.Context, name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Show a topic's queues: their shards and offsets.

    \b
    Examples:
      duetime topics describe orders
    """
    server, as_json = inherited(context, server, as_json)
    described = call(server, "DescribeTopic", gateway_pb2.DescribeTopicRequest(name=name))
    queues = [(queue.queue, queue.shard, queue.min_offset, queue.max_offset) for queue in described.queues]
    topic, pause = described.topic, described.pause if described.HasField("pause") else None
    if as_json:
        names = ("queue", "shard", "min_offset", "max_offset")
        print_json(_topic_object(topic, pause) | {"queues": [dict(zip(names, queue, strict=True)) for queue in queues]})
        return
    limit = f", longest delay {_max_delay(topic)}" if topic.max_delay_ms else ""
    about = f"{topic.queue_count} queues{limit}{_type(topic, ', for ')}"
    echo(f"topic {topic.name}, {about}, created {local(moment(topic.created_at_ms))}")
    if pause is not None:
        echo(pauses.topic_pause_text(pause))
    rows = [tuple(map(str, (*queue, queue[3] - queue[2]))) for queue in queues]
    print_table(["#queue", "#shard", "#min offset", "#max offset", "#messages"], rows)


@topics.command()
@watched
def lite(
    context: typer.Context,
    name: _Name,
    group: Annotated[str, typer.Option(help="Also count the messages that this group has not received.")] = "",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List the lite topics of a topic, by name.

    \b
    Examples:
      duetime topics lite rooms --group chat
      duetime topics lite rooms --json | jq -r .lite_topic
    """
    server, as_json = inherited(context, server, as_json)
    found = asyncio.run(_lites(server, name, group))
    if as_json:
        for one in found:
            print_json({"lite_topic": one.name, "messages": one.message_count, "unread": one.unread_count})
    elif found:
        columns = ["lite topic", "#messages", *(["#unread?1"] if group else [])]
        print_table(columns, [(one.name, f"{one.message_count:,}", *_unread(one)) for one in found])
    else:
        echo(f"topic {name} has no lite topics; the first `duetime send {name} BODY --lite-topic NAME` creates one")


def _unread(one: LiteTopic) -> list[str]:
    return [] if one.unread_count is None else [f"{one.unread_count:,}"]


async def _lites(server: str | None, topic: str, group: str) -> list[LiteTopic]:
    async with AsyncAdmin(await reach(server)) as admin:
        return [one async for one in admin.lite_topics(topic, group)]


topics.command("pause")(pauses.pause_topic)
topics.command("resume")(pauses.resume_topic)


@topics.command()
def delete(
    context: typer.Context,
    name: _Name,
    force: Annotated[bool, typer.Option("--force", help="Include undelivered messages.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; count the messages that would end.")
    ] = False,
    yes: Yes = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Delete a topic.

    Rejected while messages of it are pending, unread by a group, under a lease, in retry, dead letters or undecided.
    With --force pending messages are cancelled, transactions rolled back and dead letters discarded. After an
    interruption, the same command continues.

    \b
    Examples:
      duetime topics delete orders --dry-run
      duetime topics delete orders --yes
      duetime topics delete orders --force --yes --json
    """
    server, as_json = inherited(context, server, as_json)
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "a deleted topic can't be recovered: give --yes, or --dry-run to count its messages"
            )
        _print_deleted(name, _delete(server, name, force=force, dry_run=True), as_json, dry_run=True)
        typer.confirm(f"Delete topic {name} for good?", abort=True)
    _print_deleted(name, _delete(server, name, force=force, dry_run=dry_run), as_json, dry_run=dry_run)


def _delete(server: str | None, name: str, *, force: bool, dry_run: bool) -> DeletedTopic:
    """Deletes the topic. A repeated call continues the work; its timeout is longer than that of other calls."""

    async def work() -> DeletedTopic:
        async with AsyncAdmin(await reach(server), timeout=_DELETE_TIMEOUT) as admin:
            return await admin.delete_topic(name, force=force, dry_run=dry_run)

    return asyncio.run(work())


def _print_deleted(name: str, deleted: DeletedTopic, as_json: bool, *, dry_run: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": name,
                "deleted": not dry_run,
                "cancelled": deleted.pending,
                "rolled_back": deleted.transactions,
                "groups": [asdict(one) for one in deleted.groups],
            }
        )
        return
    would = "would be " if dry_run else ""
    echo(f"topic {name} {would}deleted")
    if deleted.pending:
        echo(f"{deleted.pending:,} pending messages {would}cancelled")
    if deleted.transactions:
        echo(f"{deleted.transactions:,} transactions {would}rolled back")
    if deleted.groups:
        rows = [
            (one.group, *(f"{count:,}" for count in (one.unread, one.in_flight, one.retrying, one.dead_letters)))
            for one in deleted.groups
        ]
        print_table(["group", "#unread", "#in flight?1", "#in retry?2", "#dead letters?3"], rows)


def _topic_object(topic: gateway_pb2.Topic, pause: consumer_pb2.GroupPause | None = None) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "queue_count": topic.queue_count,
        "max_delay_ms": topic.max_delay_ms or None,
        "type": _NAMES.get(topic.message_type, "any"),
        "created_at": iso(moment(topic.created_at_ms)),
        "pause": pauses.topic_pause_object(pause),
    }


def _type(topic: gateway_pb2.Topic, before: str) -> str:
    return f"{before}{_NAMES.get(topic.message_type, '')} messages" if topic.message_type else ""


def _max_delay(topic: gateway_pb2.Topic) -> str:
    return length(topic.max_delay_ms) if topic.max_delay_ms else "-"
