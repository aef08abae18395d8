"""`duetime groups pause`, `duetime topics pause` and their `resume`: receivers that get nothing for a while."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli import options
from duetime.cli.gateway import call
from duetime.cli.options import Json, Server, inherited
from duetime.cli.output import iso, local, moment_or_none, print_json
from duetime.client.errors import InvalidArgument
from duetime.client.message import at_ms, delay_ms, moment
from duetime.v1 import consumer_pb2, gateway_pb2

_Name = Annotated[str, typer.Argument(metavar="GROUP")]
_TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):[0-5][0-9]")


_Until = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="The end: 08:00 (local, today or tomorrow), a length from now such as 30m, or a time such as "
        "2026-01-01T12:00. Default: until `resume`.",
    ),
]


def pause(
    context: typer.Context,
    name: _Name,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="In this topic only. Default: in all.")] = None,
    until: _Until = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Pause a group: its receivers get nothing.

    Received messages can still be acknowledged, and failed ones wait for their retries. Nothing is lost: the messages
    wait until the pause ends. It survives restarts.

    \b
    Examples:
      duetime groups pause billing
      duetime groups pause billing --until 08:00
      duetime groups pause billing --topic orders --until 30m
    """
    server, as_json = inherited(context, server, as_json)
    request = consumer_pb2.PauseGroupRequest(name=name, topic=options.given("--topic", topic))
    if until is not None:
        _end(request, until)
    _print(name, call(server, "PauseGroup", request).pauses, as_json)


def resume(
    context: typer.Context,
    name: _Name,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="End the pause of this topic. Default: all pauses.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Resume a paused group.

    \b
    Examples:
      duetime groups resume billing
    """
    server, as_json = inherited(context, server, as_json)
    request = consumer_pb2.ResumeGroupRequest(name=name, topic=options.given("--topic", topic))
    _print(name, call(server, "ResumeGroup", request).pauses, as_json)


def pause_topic(
    context: typer.Context, name: _TopicName, until: _Until = None, server: Server = None, as_json: Json = False
) -> None:
    """Pause a topic for all groups.

    Receivers get nothing of it. Messages can still be sent, become due, and wait until the pause ends. Received ones
    can be acknowledged. The pause survives restarts.

    \b
    Examples:
      duetime topics pause orders
      duetime topics pause orders --until 08:00
    """
    server, as_json = inherited(context, server, as_json)
    request = gateway_pb2.PauseTopicRequest(name=name)
    if until is not None:
        _end(request, until)
    _print_topic(name, call(server, "PauseTopic", request).pauses, as_json)


def resume_topic(context: typer.Context, name: _TopicName, server: Server = None, as_json: Json = False) -> None:
    """Resume a paused topic.

    Pauses of single groups remain.

    \b
    Examples:
      duetime topics resume orders
    """
    server, as_json = inherited(context, server, as_json)
    pauses = call(server, "ResumeTopic", gateway_pb2.ResumeTopicRequest(name=name)).pauses
    _print_topic(name, pauses, as_json)


def pause_lines(pauses: Iterable[consumer_pb2.GroupPause]) -> list[str]:
    """A line for each pause."""
    return [
        f"paused{f' in {one.topic}' if one.topic else ''}{' for all groups' if one.all_groups else ''} since "
        f"{local(moment(one.since_ms))}, {until_text(one)}"
        for one in pauses
    ]


def paused(described: consumer_pb2.GroupDescription | None) -> str:
    """The pauses in a table."""
    found = described.pauses if described is not None else ()
    return "; ".join(f"{one.topic} {until_text(one)}".strip() for one in found) or "-"


def pauses_object(described: consumer_pb2.GroupDescription | None) -> dict[str, Any]:
    return {"pauses": None if described is None else [_object(one) for one in described.pauses]}


def _print(name: str, pauses: Iterable[consumer_pb2.GroupPause], as_json: bool) -> None:
    if as_json:
        print_json({"group": name, "pauses": [_object(one) for one in pauses]})
        return
    for line in pause_lines(pauses) or ["not paused"]:
        echo(f"group {name} is {line}")


def _print_topic(name: str, pauses: Iterable[consumer_pb2.GroupPause], as_json: bool) -> None:
    found = next(iter(pauses), None)
    if as_json:
        print_json({"topic": name, "pause": topic_pause_object(found)})
    else:
        echo(f"topic {name} is {topic_pause_text(found)}")


def topic_pause_text(found: consumer_pb2.GroupPause | None) -> str:
    """The pause of a topic, in a sentence."""
    if found is None:
        return "not paused"
    return f"paused for all groups since {local(moment(found.since_ms))}, {until_text(found)}"


def topic_pause_object(found: consumer_pb2.GroupPause | None) -> dict[str, Any] | None:
    """The pause of a topic in JSON."""
    if found is None:
        return None
    return {"since": iso(moment(found.since_ms)), "until": iso(moment_or_none(found.until_ms))}


def _object(one: consumer_pb2.GroupPause) -> dict[str, Any]:
    until = iso(moment_or_none(one.until_ms))
    return {
        "topic": one.topic or None,
        "since": iso(moment(one.since_ms)),
        "until": until,
        "all_groups": one.all_groups,
    }


def until_text(one: consumer_pb2.GroupPause) -> str:
    return f"until {local(moment(one.until_ms))}" if one.until_ms else "until it is resumed"


def _end(request: consumer_pb2.PauseGroupRequest | gateway_pb2.PauseTopicRequest, text: str) -> None:
    """Sets the end of the pause. Raises: BadParameter."""
    if _CLOCK.fullmatch(text):
        request.until_ms = at_ms(_next(text, datetime.now()))
        return
    try:
        request.for_ms = delay_ms(text, "--until")
    except InvalidArgument:
        others = "a time of day such as 08:00, a length such as 30m, or "
        request.until_ms = at_ms(options.moment("--until", text, others))


def _next(clock: str, now: datetime) -> datetime:
    """The next local time with this time of day."""
    hour, minute = map(int, clock.split(":"))
    found = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return found if found > now else found + timedelta(days=1)
