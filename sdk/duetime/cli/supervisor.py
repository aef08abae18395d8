"""The cluster on this machine, started, kept running and stopped in order: one process, or four; and the console.

schema ┐
       ├─▶ gateway, scheduler, retry ─▶ serving ─▶ stop gateway ─▶ scheduler ─▶ retry ─▶ store
store  ┘                                 │    ▲
                                         └────┘ an ended process is restarted on its port

A single process keeps this order itself (duetime_core.together). The console and the webhook worker are separate
processes. They start once the others serve, and neither delay nor end them.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime import deadlines
from duetime.cli.child import Child, LocalService, exit_text, run
from duetime.cli.preflight import HOST, CannotStart, Ports, secrets_key
from duetime.cli.rotation import CHECK_INTERVAL_S, rotate

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 5.0
# A process that has served this long gets a spare, so that starts and short runs do not pay for one.
SPARE_AFTER_S = 2.0
# A process that ran this long is healthy: its next restart is immediate again.
STEADY_S = 30.0
# Longer than a process needs to drain its calls; the store also flushes and writes its checkpoint.
STOP_TIMEOUT_S = 10.0
STORE_STOP_TIMEOUT_S = 30.0
SHARD = 0
CONSOLE = "console"
CONSOLE_PORT = 9880
WEBHOOKS = "webhooks"
STORE = "store"


@dataclass
class ClusterOptions:
    """The processes of a cluster, and their ports."""

    processes: Annotated[
        bool, typer.Option("--processes", envvar="DUETIME_UP_PROCESSES", help="Run a process for each service.")
    ] = False
    inner_ports: Annotated[
        bool, typer.Option("--inner-ports", help="Let store, scheduler and retry listen too, on free ports.")
    ] = False
    certs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Accept TLS only, with the certificates of `duetime certs init DIR`."),
    ] = None
    console_port: Annotated[
        int | None,
        typer.Option(
            "--console-port",
            min=0,
            max=65_535,
            envvar="DUETIME_UP_CONSOLE_PORT",
            help="The console's port; 0: any free one. Default: 9880, or any free one if that is in use.",
        ),
    ] = None
    no_console: Annotated[
        bool, typer.Option("--no-console", envvar="DUETIME_UP_NO_CONSOLE", help="Start no console.")
    ] = False
    webhooks: Annotated[
        bool, typer.Option("--webhooks", envvar="DUETIME_UP_WEBHOOKS", help="Start a webhook worker too.")
    ] = False
    no_spares: Annotated[
        bool,
        typer.Option(
            "--no-spares",
            envvar="DUETIME_UP_NO_SPARES",
            help="Keep no processes ready for restarts: less memory, slower restarts.",
        ),
    ] = False


class ClusterSupervisor:
    """One shard and the services around it. Port 0 of the gateway means any free port."""

    def __init__(self, data: Path, port: int, host: str, options: ClusterOptions) -> None:
        """`host`: the gateway's address; the other services listen on loopback.

        Raises:
            CannotStart: files of `certs` are missing, or a port is in use.
        """
        processes = options.processes
        self.data = data
        self._host = host
        self._certs = None if options.certs is None else options.certs.absolute()
        database_url = f"sqlite:///{data / 'metadata.db'}"
        self._upgrade = ["-m", "duetime_core.metadata", "upgrade", "--database-url", database_url]
        self._ports = Ports()
        self._secrets_key = secrets_key(data, may_make=options.webhooks)
        logs = data / "logs"
        self._metadata_log = logs / "metadata.log"
        listen = processes or options.inner_ports
        self._nodes = self._make_nodes(port, database_url, one_page=not processes, listen=listen)
        self.gateway = self._nodes[0]
        spares = not options.no_spares
        self._extras: list[Child] = []
        if processes:
            self._children = [
                Child(one.name, ["-m", f"duetime_{one.name}"], [one], logs, has_spare=spares) for one in self._nodes
            ]
        else:
            together = ["-m", "duetime_core.together", *(["--inner-ports"] if options.inner_ports else [])]
            self._children = [Child("cluster", together, self._nodes, logs, has_spare=spares)]
        self._page: LocalService | None = None
        if not options.no_console:
            # Listens from now on: a browser that connects before the console serves waits.
            listener = self._console_listener(options.console_port)
            self._page = self._make_console(listener.getsockname()[1])
            self._extras.append(Child(CONSOLE, ["-m", "duetime_console"], [self._page], logs, listener))
        if options.webhooks:
            self._extras.append(Child(WEBHOOKS, ["-m", "duetime_webhooks"], [self._make_worker(database_url)], logs))

    def _make_nodes(self, port: int, database_url: str, *, one_page: bool, listen: bool) -> list[LocalService]:
        """The services in stop order: callers before callees, so that no last call fails."""
        take = self._ports.take
        page = take()

        def node(name: str, settings: Mapping[str, object]) -> LocalService:
            own = {**settings, **self._certified(name)}
            return LocalService(name, take(), page if one_page else take(), own, listens=listen)

        store = node(STORE, {"data_dir": self.data / f"store-{SHARD}", "shard": SHARD})
        above = {"database_url": database_url, "stores": f"{SHARD}={store.address}"}
        retry, scheduler = node("retry", above), node("scheduler", above)
        settings = above | {"retry_address": retry.address} | self._certified("gateway") | self._secrets_key
        if self._host != HOST:
            settings["metrics_host"] = HOST
        gateway = LocalService("gateway", take(port, self._host), page, settings, host=self._host)
        return [gateway, scheduler, retry, store]

    def _console_listener(self, port: int | None) -> socket.socket:
        """Listens at the port; None: at the default, or at any port if that is in use. Raises: CannotStart."""
        if port is not None:
            return self._ports.listen(port)
        try:
            return self._ports.listen(CONSOLE_PORT)
        except CannotStart:
            return self._ports.listen()

    def _make_console(self, port: int) -> LocalService:
        settings: dict[str, object] = {"server": self.gateway.address, "secret_file": self.data / "console.secret"}
        if self.ca is not None:
            settings["server_ca_file"] = self.ca
        return LocalService(CONSOLE, port, None, settings)

    def _make_worker(self, database_url: str) -> LocalService:
        take = self._ports.take
        settings: dict[str, object] = {"database_url": database_url, "server": self.gateway.address}
        if self.ca is not None:
            settings["server_ca_file"] = self.ca
        return LocalService(WEBHOOKS, take(), take(), {**settings, **self._secrets_key})

    def _certified(self, name: str) -> dict[str, str]:
        """Certificate settings of a service. Raises: CannotStart."""
        if self._certs is None:
            return {}
        files = {"tls_cert_file": "tls.crt", "tls_key_file": "tls.key", "tls_ca_file": "ca.crt"}
        paths = {setting: self._certs / name / file for setting, file in files.items()}
        if missing := [path for path in paths.values() if not path.is_file()]:
            raise CannotStart(f"{missing[0]} is missing; `duetime certs init {self._certs}` makes it")
        return {setting: str(path) for setting, path in paths.items()}

    @property
    def ca(self) -> Path | None:
        """The CA of the gateway's certificate, for clients; None: it uses no TLS."""
        return None if self._certs is None else self._certs / "ca.crt"

    @property
    def console(self) -> str | None:
        """The console's URL, valid soon after the others serve; None: no console."""
        return None if self._page is None else f"http://{self._page.address}/"

    async def start(self) -> None:
        """Returns when all processes serve.

        Raises:
            CannotStart: one of them does not; `stop` stops the others.
        """
        try:
            if len(self._children) > 1:
                *above, store = self._children
                async with asyncio.TaskGroup() as starts:
                    starts.create_task(run(self._upgrade, self._metadata_log))
                    starts.create_task(store.start())
            else:
                above = self._children
            async with asyncio.TaskGroup() as starts:
                for child in above:
                    starts.create_task(child.start())
        except ExceptionGroup as group:
            # One error is enough: other failures most likely follow from it.
            raise group.exceptions[0] from None

    async def keep_running(self) -> None:
        """Restarts ended processes, and limits their log files, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for child in self._children:
                tasks.create_task(_restart_forever(child))
            for child in self._extras:
                tasks.create_task(_run_forever(child))
            tasks.create_task(self._rotate())

    async def _rotate(self) -> None:
        while True:
            for path in (*(child.log_path for child in (*self._children, *self._extras)), self._metadata_log):
                await asyncio.to_thread(rotate, path)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def stop(self) -> None:
        for child in self._extras:
            await child.stop(STOP_TIMEOUT_S)
        for child in self._children:
            await child.stop(sum(STORE_STOP_TIMEOUT_S if one.name == STORE else STOP_TIMEOUT_S for one in child.nodes))
        self._ports.close()

    def describe(self) -> dict[str, Any]:
        """Addresses, ports and pids, for machines. Services without an address are reachable in their process only."""
        return {
            "serving": "cluster",
            "address": self.gateway.address,
            "port": self.gateway.port,
            "data": str(self.data),
            "pid": os.getpid(),
            **({} if self.ca is None else {"tls_ca": str(self.ca)}),
            **({} if self.console is None else {"console": self.console}),
            "processes": {
                node.name: {
                    "address": node.address if node.listens else None,
                    "port": node.port if node.listens else None,
                    "metrics_port": node.metrics_port,
                    "pid": child.pid,
                    "log": str(child.log_path),
                }
                for child in self._children
                for node in child.nodes
            },
        }


async def _run_forever(child: Child) -> None:
    """Starts the process until that succeeds, and restarts it whenever it ends."""
    pause_s = BACKOFF_S_MIN
    while True:
        try:
            await child.start()
            break
        except (CannotStart, OSError) as error:
            echo(f"duetime: {child.name} does not start: {error}", err=True)
        await asyncio.sleep(pause_s)
        pause_s = min(BACKOFF_S_MAX, pause_s * 2)
    await _restart_forever(child)


async def _end_of(child: Child) -> int:
    """The exit code of the process, which has a spare once it has served for a while."""
    try:
        async with deadlines.within(SPARE_AFTER_S):
            return await child.ended()
    except TimeoutError:
        with suppress(OSError):  # the next start makes a process
            await child.keep_spare()
    return await child.ended()


async def _restart_forever(child: Child) -> None:
    """Restarts the process at once, or after a pause if it ended soon after its start."""
    loop = asyncio.get_running_loop()
    pause_s = 0.0
    while True:
        began = loop.time()
        code = await _end_of(child)
        if loop.time() - began >= STEADY_S:
            pause_s = 0.0
        later = f" in {pause_s:g} s" if pause_s else ""
        text = f"{child.name} (pid {child.pid}) ended {exit_text(code)}; restarting it{later}"
        echo(f"duetime: {text}", err=True)
        await asyncio.sleep(pause_s)
        pause_s = min(BACKOFF_S_MAX, pause_s * 2) or BACKOFF_S_MIN
        try:
            await child.start()
        except CannotStart as error:
            echo(f"duetime: {error}".replace("duetime: duetime ", "duetime ", 1), err=True)
