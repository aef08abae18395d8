"""The console's life: settings, socket, ready line, signals, and a stop that waits for requests in flight."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from duetime.client.errors import DueTimeError
from duetime.tls import PemFiles
from duetime_core.access.certificates import Certificates, HttpCertificates
from duetime_core.access.exposure import INSECURE_VARIABLE, refuse_exposed
from duetime_core.clock import Clock, SystemClock
from duetime_core.errors import StartupError
from duetime_core.node.life import raise_descriptors, serve_metrics
from duetime_core.node.supervised import die_with_parent, is_supervised
from duetime_core.telemetry.logs import configure_logs
from duetime_core.telemetry.secrets import masked
from duetime_format.printing import echo
from prometheus_client import CollectorRegistry

from duetime_console.app import make_app
from duetime_console.connections import ConsoleConnections
from duetime_console.pages.now import figures_of
from duetime_console.settings import Settings

log = structlog.get_logger()

BACKLOG = 128
NICE = 5


class _Server(uvicorn.Server):
    """Uvicorn's server, with the console's signals and connections."""

    def __init__(self, config: uvicorn.Config, connections: ConsoleConnections, listener: socket.socket) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._connections = connections
        self._listener = listener

    async def main_loop(self) -> None:
        """Uvicorn's loop without its sockets: all connections come from `ConsoleConnections`."""
        async with asyncio.TaskGroup() as tasks:
            accepting = tasks.create_task(
                self._connections.accept(self._listener, self.config, self.server_state, self.lifespan.state)
            )
            self.ready.set()
            await super().main_loop()
            accepting.cancel()
        self._listener.close()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def main() -> None:
    """Serves with the settings of the environment. Exit code 0 after a clean stop, 1 otherwise."""
    try:
        run()
    except (StartupError, DueTimeError) as error:
        echo(f"duetime console: {masked(str(error))}", err=True)
        raise SystemExit(1) from None


def run(**given: Any) -> None:
    """Serves until SIGTERM or SIGINT. `given`: settings that take precedence over the environment.

    Raises:
        StartupError, DueTimeError: the console can't serve.
    """
    settings = Settings.read(**given)
    if settings.listener.is_exposed and not settings.insecure:
        raise StartupError(
            f"{settings.reached_at} is reachable from other machines, without TLS: set "
            f"DUETIME_CONSOLE_TLS_CERT_FILE and DUETIME_CONSOLE_TLS_KEY_FILE, or {INSECURE_VARIABLE}=1 if a proxy "
            "encrypts, or the network keeps strangers out; see docs/console.md"
        )
    for one in settings.metrics_listener:
        refuse_exposed(one, settings.insecure)
    raise_descriptors()
    configure_logs("console", settings.log_level, settings.log_format)
    with _listening(settings) as listener, asyncio.Runner() as runner:
        runner.run(_run(settings, listener))


def _listening(settings: Settings) -> socket.socket:
    """The socket on standard input from a supervisor, or a new one. Raises: StartupError."""
    if is_supervised() and stat.S_ISSOCK(os.fstat(0).st_mode):
        return socket.socket(fileno=os.dup(0))
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((settings.host, settings.port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        text = f"can't listen on {settings.host}:{settings.port}: {(error.strerror or str(error)).lower()}"
        raise StartupError(text) from error
    return made


def _certificates(settings: Settings, registry: CollectorRegistry) -> HttpCertificates | None:
    """The console's certificates, read from the files; None: none are set. Raises: StartupError."""
    if not settings.tls_cert_file:
        return None
    own = Path(settings.tls_cert_file)
    files = PemFiles(Path(settings.server_ca_file or own), own, Path(settings.tls_key_file))
    return HttpCertificates(Certificates(files, registry), asked=False)


def _following(certificates: HttpCertificates) -> ssl.SSLContext:
    """A context for a listener: each new connection uses the current certificate."""
    context = certificates.context()

    def choose(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        # OpenSSL calls this at each handshake, even if the client names no host.
        connection.context = certificates.context()

    context.sni_callback = choose
    return context


class Console:
    """A console on a listening socket."""

    def __init__(self, settings: Settings, listener: socket.socket, clock: Clock | None = None) -> None:
        """Raises: StartupError, InvalidArgument."""
        # Inherited by connections: otherwise a body waits 40 ms until the browser acknowledges the headers. asyncio
        # sets it only for sockets with an explicit protocol, unlike those that Python makes.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._app = make_app(settings, clock)
        self._certificates = certificates = _certificates(settings, self._app.state.metrics.registry)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            # Its warnings are about invalid requests, which any caller can send.
            log_level="error",
            timeout_graceful_shutdown=max(1, settings.drain_ms // 1_000),
            timeout_keep_alive=15,
        )
        config.load()
        if certificates is not None:
            # Uvicorn's own context reads the files only once.
            config.ssl = _following(certificates)
        self._connections = ConsoleConnections(
            settings.connections_max, clock or SystemClock(), self._app.state.metrics.registry
        )
        self._server = _Server(config, self._connections, listener)

    async def serve(self) -> None:
        """Serves until it is stopped, or a loop dies."""
        async with asyncio.TaskGroup() as tasks:
            state = self._app.state
            loops = (
                state.watch.run(figures_of(self._app)),
                state.watch.guard(state.sessions.forget),
                self._connections.sweep(),
            )
            running = [tasks.create_task(one) for one in loops]
            await self._server.serve(sockets=[])
            for one in running:
                one.cancel()

    def serve_metrics(self, settings: Settings) -> tuple[int, Callable[[], None]]:
        """Serves the metrics at the configured port; returns the port (-1: none) and a stop. Raises: StartupError."""
        registry = self._app.state.metrics.registry
        host = settings.metrics_host or settings.host
        return serve_metrics(registry, host, settings.metrics_port, certificates=self._certificates)

    async def started(self) -> None:
        """Returns when it serves."""
        await self._server.ready.wait()

    def stop(self) -> None:
        """Waits for requests in flight within the limit; ends streams."""
        self._app.state.watch.events.end()
        self._server.should_exit = True


async def _run(settings: Settings, listener: socket.socket) -> None:
    supervised = is_supervised()
    if supervised:
        die_with_parent()
        # A console beside a cluster takes the file descriptors that the cluster leaves.
        os.nice(NICE)
    console = Console(settings, listener)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, console.stop)
    with ExitStack() as stopping:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(console.serve())
            await console.started()
            metrics_port, stop_metrics = console.serve_metrics(settings)
            stopping.callback(stop_metrics)
            port = listener.getsockname()[1]
            ready = {"serving": "console", "port": port, "metrics_port": metrics_port}
            if supervised:
                echo(json.dumps(ready), flush=True)
            else:
                echo(f"The console of {settings.server} is at {_address(settings, port)}", flush=True)
            log.info("serving", **ready, server=settings.server, read_only=settings.read_only)
    log.info("stopped")


def _address(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert_file else 'http'}://{host}:{port}/"
