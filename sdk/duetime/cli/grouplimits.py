"""`duetime groups limit`: the rate at which a group receives."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from duetime_format import rates
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
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="In this topic. Default: in each topic without its own limit.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the limit.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Limit the rate at which a group receives.

    All receivers of the group share it. Redeliveries count too. The other messages wait; nothing is lost. Without an
    option, prints the limits.

    \b
    Examples:
      duetime groups limit billing --rate 50/s
      duetime groups limit billing --topic invoices --rate 3000/m,burst=1
      duetime groups limit billing --none
    """
    server, as_json = inherited(context, server, as_json)
    if rate is not None and none:
        raise typer.BadParameter("--rate sets a limit and --none removes it: use one")
    if rate is None and not none:
        if topic is not None:
            raise typer.BadParameter("--topic takes --rate or --none")
        described = call(server, "DescribeGroup", consumer_pb2.DescribeGroupRequest(name=name))
        group: consumer_pb2.Group = described.group
    else:
        request = consumer_pb2.LimitGroupRequest(name=name)
        request.limit.topic = options.given("--topic", topic)
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
    return [f"receives at most {_text(one)} {f'in {one.topic}' if one.topic else 'in each topic'}" for one in found]


def limited(group: consumer_pb2.Group) -> str:
    """The limits in a table."""
    return "; ".join(f"{one.topic} {_text(one)}".strip() for one in group.limits.limits) or "-"


def limits_object(group: consumer_pb2.Group) -> dict[str, Any]:
    """The limits in JSON."""
    return {"limits": [{"topic": one.topic or None, "rate": _text(one)} for one in group.limits.limits]}


def _text(one: consumer_pb2.GroupLimit) -> str:
    return rates.written(one.rate)


def _fill(rate: consumer_pb2.DeliveryRate, text: str) -> None:
    """Raises: BadParameter."""
    try:
        rates.fill(rate, text)
    except ValueError as error:
        raise typer.BadParameter(f"--rate: {error}") from error
