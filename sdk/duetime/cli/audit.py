"""`duetime audit`: admin actions and rejected calls."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT_S, reach
from duetime.cli.options import Json, Server, given, length, watched
from duetime.cli.output import iso, local, now_ms, print_json, print_table
from duetime.client.connection import GatewayConnection
from duetime.client.message import moment
from duetime.v1 import audit_pb2

PAGE_COUNT = 100


@watched
def audit(
    since: Annotated[
        str | None, typer.Option("--since", metavar="LENGTH", help="Only the last LENGTH: 15m, 1h, 2d.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only this user.")] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="METHOD", help="Only this call, such as CreateTopic.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The latest N.")] = 100,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show admin actions and rejected calls.

    The latest first: actions with their outcomes, and rejected calls.

    \b
    Examples:
      duetime audit
      duetime audit --since 1h --user alice
      duetime audit --method DeleteGroup --limit 1000 --json | jq -r .resource
    """
    wanted = audit_pb2.ListAuditEventsRequest(
        from_ms=0 if since is None else max(0, now_ms() - length("--since", since)),
        user=given("--user", user),
        method=given("--method", method),
    )
    asyncio.run(_show(server, wanted, limit, as_json))


async def _show(server: str | None, wanted: audit_pb2.ListAuditEventsRequest, limit: int, as_json: bool) -> None:
    rows: list[tuple[str, ...]] = []
    count = 0
    async for event in _events(await reach(server), wanted):
        if count == limit:
            echo("duetime: more events exist; raise --limit", err=True)
            break
        count += 1
        if as_json:
            print_json(_object(event))
        else:
            rows.append(_line(event))
    if rows:
        print_table(["when", "user", "from?1", "call", "about?2", "outcome"], rows)
    elif not as_json:
        which = " that matches the options" if wanted.from_ms or wanted.user or wanted.method else ""
        echo(f"the audit log has no event{which}")


async def _events(address: str, wanted: audit_pb2.ListAuditEventsRequest) -> AsyncIterator[audit_pb2.AuditEvent]:
    connection = GatewayConnection(address)
    try:
        while True:
            wanted.max_count = PAGE_COUNT
            page = await connection.call("ListAuditEvents", wanted, CALL_TIMEOUT_S)
            for event in page.events:
                yield event
            if not page.next_page_token:
                return
            wanted.page_token = page.next_page_token
    finally:
        await connection.close()


def _line(event: audit_pb2.AuditEvent) -> tuple[str, ...]:
    outcome = f"{event.status} {event.reason}".strip()
    if event.left_out_count:
        outcome += f", and {event.left_out_count:,} more"
    call = event.method.rpartition("/")[2]
    return local(moment(event.at_ms)), event.user or "-", event.host, call, event.resource or "-", outcome


def _object(event: audit_pb2.AuditEvent) -> dict[str, Any]:
    return {
        "at": iso(moment(event.at_ms)),
        "process": event.process,
        "user": event.user,
        "host": event.host,
        "peer": event.peer,
        "method": event.method,
        "resource": event.resource,
        "status": event.status,
        "reason": event.reason,
        "left_out_count": event.left_out_count,
    }
