"""`duetime up`: the whole cluster on this machine."""

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.demo import Demo
from duetime.cli.options import Json, grouped
from duetime.cli.preflight import HOST, check_port, check_software, claimed
from duetime.cli.supervisor import ClusterOptions, ClusterSupervisor
from duetime.client.trust import Tls


@grouped
def up(
    *,
    data: Annotated[Path, typer.Option(metavar="DIR", help="The directory for all data.")] = Path("duetime-data"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The gateway's port; 0: any free one.")] = 9800,
    host: Annotated[str, typer.Option(metavar="HOST", help="The gateway's address.")] = HOST,
    demo: Annotated[bool, typer.Option("--demo", help="Send a few delayed messages and show their arrival.")] = False,
    options: ClusterOptions,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine.

    Store, gateway, scheduler and retry service run in one process, which is restarted if it dies; with --processes each
    has its own, for machines with cores to spare. Prints one line when it is ready. Stop it with Ctrl-C or SIGTERM; the
    next start continues with the same data, including pending messages. Variables such as DUETIME_STORE_FLUSH_MODE
    configure the services. A console for browsers starts beside them, on loopback. Beyond this machine (--host) the
    gateway requires TLS and authentication, or DUETIME_INSECURE=1 in a network that keeps strangers out.

    \b
    Examples:
      duetime up
      duetime up --demo
      duetime up --data /var/tmp/duetime --port 0 --json
      duetime up --no-console
      duetime up --webhooks                         with a worker for `duetime webhooks`
      duetime up --processes                        one process for each service, as in compose
      duetime up --inner-ports --json               prints the ports of store, scheduler and retry
      duetime up --certs certs                      clients: DUETIME_TLS_CA_FILE=certs/ca.crt, or --tls-ca
    """
    check_software()
    # Only this user can read the cluster's files.
    os.umask(0o077)
    data = data.absolute()
    with claimed(data):
        if port:
            check_port(port, host)
        if options.console_port and not options.no_console:
            check_port(options.console_port)
        cluster = ClusterSupervisor(data, port, host, options)
        asyncio.run(_serve(cluster, demo=demo, as_json=as_json))


async def _serve(cluster: ClusterSupervisor, *, demo: bool, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tls = None if cluster.ca is None else Tls(cluster.ca)
    shown = Demo(cluster.gateway.address, as_json=as_json, tls=tls) if demo else None
    try:
        if await _unless(stop, cluster.start()):
            _print_address(cluster, as_json)
            await _unless(stop, _run(cluster, shown))
    finally:
        await cluster.stop()


async def _run(cluster: ClusterSupervisor, demo: Demo | None) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.keep_running())
        if demo is not None:
            tasks.create_task(demo.run())


def _print_address(cluster: ClusterSupervisor, as_json: bool) -> None:
    line = (
        json.dumps(cluster.describe())
        if as_json
        else f"DueTime serves at {cluster.gateway.address}, data in {cluster.data}{_by_tls(cluster)}{_console(cluster)}"
    )
    echo(line, flush=True)


def _console(cluster: ClusterSupervisor) -> str:
    return "" if cluster.console is None else f", console at {cluster.console}"


def _by_tls(cluster: ClusterSupervisor) -> str:
    return "" if cluster.ca is None else f", by TLS: DUETIME_TLS_CA_FILE={cluster.ca}"


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs the work until it ends or is stopped by cancellation; returns whether it ended."""
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        working.cancel()
        stopped.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)
