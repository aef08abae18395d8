"""`duetime topics`: list, create and describe topics."""

from typing import Annotated, Any

import typer

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server
from duetime.cli.output import iso, length, local, print_json, print_table
from duetime.client.message import delay_ms, moment
from duetime.v1 import gateway_pb2

topics = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

_HELP = """List the topics; with a command, create or describe one.

\b
Examples:
  duetime topics
  duetime topics create orders --queues 8
  duetime topics describe orders --json
"""
_Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 127 characters of [%|a-zA-Z0-9_-].")]


@topics.callback(help=_HELP)
def list_topics(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """See _HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (server, as_json)  # options before the command apply to it too
        return
    listed = call(server, "ListTopics", gateway_pb2.ListTopicsRequest()).topics
    if as_json:
        for topic in listed:
            print_json(_topic_object(topic))
    elif listed:
        rows = [(one.name, str(one.queue_count), _max_delay(one), local(moment(one.created_at_ms))) for one in listed]
        print_table(["topic", "#queues", "#most delay", "created"], rows)
    else:
        print("no topics yet; the first `duetime send TOPIC BODY` creates one")


@topics.command()
def create(
    context: typer.Context,
    name: _Name,
    queues: Annotated[int, typer.Option(help="How many queues, 1 to 1,024. Default: the server's.")] = 0,
    max_delay: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Most delay of its messages: 2h, 30d. Default: ten years.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create a topic. One that exists with the same number of queues and most delay is left as it is.

    \b
    Examples:
      duetime topics create orders --queues 8
      duetime topics create reminders --max-delay 30d
    """
    before_server, before_json = context.obj
    max_delay_ms = delay_ms(max_delay, "--max-delay") if max_delay else 0
    request = gateway_pb2.CreateTopicRequest(name=name, queue_count=queues, max_delay_ms=max_delay_ms)
    topic = call(server or before_server, "CreateTopic", request)
    if as_json or before_json:
        print_json(_topic_object(topic))
    else:
        limit = f", and a most delay of {_max_delay(topic)}" if topic.max_delay_ms else ""
        print(f"topic {topic.name} has {topic.queue_count} queues{limit}")


@topics.command()
def describe(context: typer.Context, name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Show a topic's queues: their shards and offsets.

    \b
    Examples:
      duetime topics describe orders
    """
    before_server, before_json = context.obj
    described = call(server or before_server, "DescribeTopic", gateway_pb2.DescribeTopicRequest(name=name))
    queues = [(queue.queue, queue.shard, queue.min_offset, queue.max_offset) for queue in described.queues]
    if as_json or before_json:
        names = ("queue", "shard", "min_offset", "max_offset")
        print_json(
            _topic_object(described.topic) | {"queues": [dict(zip(names, queue, strict=True)) for queue in queues]}
        )
        return
    topic = described.topic
    limit = f", most delay {_max_delay(topic)}" if topic.max_delay_ms else ""
    print(f"topic {topic.name}, {topic.queue_count} queues{limit}, created {local(moment(topic.created_at_ms))}")
    rows = [tuple(map(str, (*queue, queue[3] - queue[2]))) for queue in queues]
    print_table(["#queue", "#shard", "#min offset", "#max offset", "#messages"], rows)


def _topic_object(topic: gateway_pb2.Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "queue_count": topic.queue_count,
        "max_delay_ms": topic.max_delay_ms or None,
        "created_at": iso(moment(topic.created_at_ms)),
    }


def _max_delay(topic: gateway_pb2.Topic) -> str:
    return length(topic.max_delay_ms) if topic.max_delay_ms else "-"
