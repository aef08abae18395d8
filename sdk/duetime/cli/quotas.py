"""`duetime quotas`: limits of users and topics."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server, grouped, show_help, watched
from duetime.cli.output import print_json, print_table
from duetime.v1 import quotas_pb2 as pb

quotas = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="""Limit the usage of users and topics.

\b
Examples:
  duetime quotas set user alice --messages-per-s 1000 --streams 50
  duetime quotas set user '*' --bytes-per-s 10000000
  duetime quotas set topic orders --messages-per-s 5000 --pending-count 1000000
  duetime quotas list
""",
)
_set = typer.Typer(
    rich_markup_mode=None, invoke_without_command=True, help="Set a quota; it replaces the previous one."
)
quotas.add_typer(_set, name="set")
quotas.callback()(show_help)
_set.callback()(show_help)


_Name = Annotated[str, typer.Argument(metavar="NAME")]
_Kind = Annotated[str, typer.Argument(metavar="user|topic")]
_Rate = Annotated[int, typer.Option(min=0, help="Sent messages per second.")]
_Bytes = Annotated[int, typer.Option(min=0, help="Sent bytes per second.")]
_Burst = Annotated[int, typer.Option(min=0, help="Burst size. Default: one second of the rate, at least 2,048.")]
_BurstBytes = Annotated[
    int, typer.Option(min=0, help="Burst size. Default: one second of the rate, at least 4 MiB + 64 KiB.")
]

_LIMITS = (
    "messages_per_s", "bytes_per_s", "burst_messages", "burst_bytes", "connections", "streams", "pending_count",
    "pending_bytes",
)  # fmt: skip
_USED = ("messages_per_s", "bytes_per_s", "connections", "streams", "pending_count", "pending_bytes")


@dataclass
class RateOptions:
    """The limits of sends."""

    messages_per_s: _Rate = 0
    bytes_per_s: _Bytes = 0
    burst_messages: _Burst = 0
    burst_bytes: _BurstBytes = 0


@_set.command()
@grouped
def user(
    name: _Name,
    rates: RateOptions,
    connections: Annotated[int, typer.Option(min=0, help="Concurrent connections.")] = 0,
    streams: Annotated[int, typer.Option(min=0, help="Concurrent streams and long polls.")] = 0,
    per_host: Annotated[
        bool, typer.Option(help="With NAME *: each host without a user name counts as a user.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Set a user's quota.

    NAME * stands for each user without a quota of their own.

    \b
    Examples:
      duetime quotas set user alice --messages-per-s 1000 --streams 50
      duetime quotas set user '*' --bytes-per-s 10000000
    """
    of = pb.QuotaOf(user=name)
    quota = pb.Quota(of=of, connections=connections, streams=streams, per_host=per_host, **asdict(rates))
    _send(server, quota, as_json)


@_set.command()
@grouped
def topic(
    name: _Name,
    rates: RateOptions,
    pending_count: Annotated[int, typer.Option(min=0, help="Pending messages.")] = 0,
    pending_bytes: Annotated[int, typer.Option(min=0, help="Bytes of the bodies of pending messages.")] = 0,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Set a topic's quota.

    The longest delay of a topic is a setting of `duetime topics create --max-delay`.

    \b
    Examples:
      duetime quotas set topic orders --messages-per-s 5000 --pending-count 1000000
    """
    of = pb.QuotaOf(topic=name)
    _send(server, pb.Quota(of=of, pending_count=pending_count, pending_bytes=pending_bytes, **asdict(rates)), as_json)


def _send(server: str | None, quota: pb.Quota, as_json: bool) -> None:
    _print([pb.QuotaUse(quota=call(server, "SetQuota", pb.SetQuotaRequest(quota=quota)))], as_json)


@quotas.command("list")
@watched
def list_quotas(server: Server = None, as_json: Json = False) -> None:
    """List all quotas and their usage.

    The usage covers all gateways, as last reported.

    \b
    Examples:
      duetime quotas list --watch
    """
    listed = call(server, "ListQuotas", pb.ListQuotasRequest()).quotas
    if listed or as_json:
        _print(listed, as_json)
    else:
        echo("no quotas are set: usage is unlimited")


@quotas.command()
@watched
def show(kind: _Kind, name: _Name, server: Server = None, as_json: Json = False) -> None:
    """Show one quota.

    \b
    Examples:
      duetime quotas show user alice
    """
    found = call(server, "ListQuotas", pb.ListQuotasRequest(of=_of(kind, name))).quotas
    if found or as_json:
        _print(found, as_json)
    else:
        echo(f"{kind} {name} has no quota of its own")


@quotas.command()
def remove(kind: _Kind, name: _Name, server: Server = None) -> None:
    """Remove a quota.

    \b
    Examples:
      duetime quotas remove topic orders
    """
    call(server, "RemoveQuota", pb.RemoveQuotaRequest(of=_of(kind, name)))
    echo(f"{kind} {name} has no quota of its own")


def _of(kind: str, name: str) -> pb.QuotaOf:
    if kind not in ("user", "topic"):
        raise typer.BadParameter(f"{kind!r} is neither user nor topic")
    return pb.QuotaOf(user=name) if kind == "user" else pb.QuotaOf(topic=name)


def _print(found: Any, as_json: bool) -> None:
    rows = []
    for one in found:
        of = one.quota.of
        kind = of.WhichOneof("of")
        limits = {name: getattr(one.quota, name) for name in _LIMITS if getattr(one.quota, name)}
        used = {name: getattr(one, name) for name in _USED if name in limits}
        if as_json:
            per_host = {"per_host": True} if one.quota.per_host else {}
            print_json({kind: getattr(of, kind), "limits": limits | per_host, "used": used})
        rows += [
            (f"{kind} {getattr(of, kind)}", name, f"{limit:,}", f"{used.get(name, 0):,.0f}" if name in used else "-")
            for name, limit in limits.items()
        ]
    if not as_json:
        print_table(["quota", "limit", "#at most", "#used"], rows)
