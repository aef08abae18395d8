"""`duetime groups limit`: limits that all receivers of a group share."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from duetime_format import rates
from duetime_format.limits import PER_KEY_MAX
from duetime_format.printing import echo

from duetime.cli import options
from duetime.cli.gateway import call
from duetime.cli.options import Json, Server, inherited
from duetime.cli.output import print_json
from duetime.v1 import consumer_pb2

_Name = Annotated[str, typer.Argument(metavar="GROUP")]


def limit(
    context: typer.Context,
    name: _Name,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Deliveries per second, minute, hour or day: `50/s`, `3000/m`, `100/h`, `5000/d`. `,burst=N`: N at "
            "once after a rest. Default: those of one second.",
        ),
    ] = None,
    per_key: Annotated[
        int | None,
        typer.Option(
            "--per-key", metavar="N", min=1, max=PER_KEY_MAX, help="Messages with one sharding key received at a time."
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="In this topic. Default: in each topic without its own limit.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the limit.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Limit the deliveries to a group.

    All receivers of the group share the limit. Redeliveries count too. The other messages wait; nothing is lost. The
    options replace the limit that the topic has, or that of all topics. Without an option, prints the limits. Limits
    that tasks declare count where the group has none of these.

    \b
    Examples:
      duetime groups limit billing --rate 50/s
      duetime groups limit billing --per-key 1
      duetime groups limit billing --topic invoices --rate 3000/m,burst=1
      duetime groups limit billing --none
    """
    server, as_json = inherited(context, server, as_json)
    is_set = rate is not None or per_key is not None
    if is_set and none:
        raise typer.BadParameter("--rate and --per-key set a limit, and --none removes it")
    if not is_set and not none:
        if topic is not None:
            raise typer.BadParameter("--topic takes --rate, --per-key or --none")
        described = call(server, "DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))
        group: consumer_pb2.Group = described.group
    else:
        request = consumer_pb2.LimitGroupRequest(name=name)
        request.limit.topic, request.limit.per_key = options.given("--topic", topic), per_key or 0
        if rate is not None:
            _fill(request.limit.rate, rate)
        group = call(server, "LimitGroup", request)
    if as_json:
        print_json({"group": name, **limits_object(group)})
        return
    for line in limit_lines(group.limits.limits) or ["has no limit"]:
        echo(f"group {name} {line}")


def limit_lines(found: Iterable[consumer_pb2.GroupLimit]) -> list[str]:
    """A line for each limit."""
    return [
        f"receives at most {rates.limit_text(one)} {f'in {one.topic}' if one.topic else 'in each topic'}"
        f"{', declared by its tasks' if one.declared else ''}"
        for one in found
    ]


def limited(group: consumer_pb2.Group) -> str:
    """The limits in a table."""
    return "; ".join(f"{one.topic} {rates.limit_text(one)}".strip() for one in group.limits.limits) or "-"


def limits_object(group: consumer_pb2.Group) -> dict[str, Any]:
    """The limits in JSON."""
    return {
        "limits": [
            {
                "topic": one.topic or None,
                "rate": rates.rate_of(one) or None,
                "per_key": one.per_key or None,
                "declared": one.declared,
            }
            for one in group.limits.limits
        ]
    }


def _fill(rate: consumer_pb2.DeliveryRate, text: str) -> None:
    """Raises: BadParameter."""
    try:
        rates.fill(rate, text)
    except ValueError as error:
        raise typer.BadParameter(f"--rate: {error}") from error
