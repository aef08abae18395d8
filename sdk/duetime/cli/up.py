"""`duetime up`: the whole cluster on this machine."""

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from duetime.cli.demo import Demo
from duetime.cli.options import Json
from duetime.cli.preflight import HOST, check_port, check_software, claimed
from duetime.cli.supervisor import Cluster


def up(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The directory for all data.")] = Path("duetime-data"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The gateway's port; 0: any free one.")] = 9800,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address on which the gateway listens.")] = HOST,
    demo: Annotated[bool, typer.Option("--demo", help="Send a few delayed messages and show them arrive.")] = False,
    processes: Annotated[
        bool, typer.Option("--processes", envvar="DUETIME_UP_PROCESSES", help="A process for each service.")
    ] = False,
    inner_ports: Annotated[
        bool, typer.Option("--inner-ports", help="Store, scheduler and retry listen too, on free ports.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start the cluster on this machine: store, gateway, scheduler, retry.

    All four run in one process, which is started again if it dies; with --processes each has its own, for machines
    with cores to spare. Prints one line when it is ready. Stop it with Ctrl-C or SIGTERM; the next start continues with
    the same data, pending messages included, in either way. Variables such as DUETIME_STORE_FLUSH_MODE configure the
    services. Beyond this machine (--host) the gateway listens only with TLS and authentication, or if
    DUETIME_INSECURE=1 says that the network keeps strangers out.

    \b
    Examples:
      duetime up
      duetime up --demo
      duetime up --data /var/tmp/duetime --port 0 --json
      duetime up --processes                        one process for each service, as in compose
      duetime up --inner-ports --json               tells the ports of store, scheduler and retry
    """
    check_software()
    # All files of the cluster are readable by this user only.
    os.umask(0o077)
    data = data.absolute()
    with claimed(data):
        if port:
            check_port(port, host)
        cluster = Cluster(data, port, host=host, processes=processes, inner_ports=inner_ports)
        asyncio.run(_serve(cluster, demo=demo, as_json=as_json))


async def _serve(cluster: Cluster, *, demo: bool, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    shown = Demo(cluster.gateway.address, as_json=as_json) if demo else None
    try:
        if await _unless(stop, cluster.start()):
            _print_address(cluster, as_json)
            await _unless(stop, _run(cluster, shown))
    finally:
        await cluster.stop()


async def _run(cluster: Cluster, demo: Demo | None) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.keep_running())
        if demo is not None:
            tasks.create_task(demo.run())


def _print_address(cluster: Cluster, as_json: bool) -> None:
    line = (
        json.dumps(cluster.describe())
        if as_json
        else f"DueTime serves at {cluster.gateway.address}, data in {cluster.data}"
    )
    print(line, flush=True)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs the work until it ends or is stopped, which cancels it; returns whether it ended."""
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
