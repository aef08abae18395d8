"""The life of a process, the same for every service: settings, start, one ready line, signals, stop."""

import asyncio
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from socket import AF_INET, AF_INET6
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, TypeVar
from wsgiref.simple_server import make_server

import structlog
import uvloop
from duetime_format.compiled import in_use
from duetime_format.printing import echo
from prometheus_client import CollectorRegistry, Histogram, make_wsgi_app

from duetime_core.access.certificates import HttpCertificates
from duetime_core.access.exposure import refuse_exposed
from duetime_core.clock import Clock, SystemClock
from duetime_core.errors import StartupError
from duetime_core.node.scrapes import ScrapeHandler, ScrapeServer
from duetime_core.node.settings import ProcessSettings
from duetime_core.node.supervised import await_turn, die_with_parent, is_supervised
from duetime_core.rpc.probes import NodeCondition, ProbePages
from duetime_core.telemetry.lag import LoopLag
from duetime_core.telemetry.logs import configure_logs
from duetime_core.telemetry.meter import export_process
from duetime_core.telemetry.secrets import masked
from duetime_core.telemetry.traces import name_of
from duetime_core.telemetry.tracing import TraceExporter

log = structlog.get_logger()

S = TypeVar("S", bound=ProcessSettings)

# Creates files with mode 0600, directories with 0700.
PRIVATE_UMASK = 0o077

# Values for glibc's mallopt: largest block from the heap, and free memory kept in the heap. Batches use buffers of some
# hundred KiB: by default each would be mapped, its pages faulted in one by one, and unmapped.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
HEAP_BLOCK_BYTES_MAX = 6 * 1024 * 1024
HEAP_FREE_BYTES_MAX = 16 * 1024 * 1024

# Linux's default maximum (fs.nr_open).
DESCRIPTORS_MAX = 1 << 20
# Longest time for which a computing thread (a checkpoint's, a scrape's, the database's) delays the event loop. With
# Python's default, 5 ms, a chain of eight callbacks beside such a thread took 45 ms at the median, with 0.5 ms 7.
SWITCH_S = 0.000_5
# Number of new objects between two collections during the start: most objects then are permanent. With Python's
# default, 700, collections took a tenth of a start.
START_GC_THRESHOLD = 50_000
# New objects between two collections. Reference counting frees nearly all; a collection inspects the others, for about
# 0.2 us each, and blocks everything else.
GC_THRESHOLD = 5_000


class Node(Protocol):
    """One running service: the same object in its own process, with others in one process, and in the test kit."""

    registry: CollectorRegistry

    @property
    def port(self) -> int:
        """The gRPC port, once started."""
        ...

    @property
    def health(self) -> NodeCondition:
        """The health reported to probes, once started."""
        ...

    async def start(self) -> None:
        """Returns when the node serves. Raises StartupError."""
        ...

    async def stop(self) -> None:
        """Ends everything in order; may be called after a failed start."""
        ...

    async def failed(self) -> None:
        """Returns (or raises) only when the node can't continue: one of its loops died."""
        ...


def serve_metrics(
    registry: CollectorRegistry,
    host: str,
    port: int,
    pages: ProbePages | None = None,
    certificates: HttpCertificates | None = None,
) -> tuple[int, Callable[[], None]]:
    """Serves `registry` and `pages` over HTTP or HTTPS. Returns the port and a function that stops it. Port -1: no
    server."""
    if port < 0:
        return -1, lambda: None
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        page = pages.answer(environ["PATH_INFO"]) if pages else None
        if page is None:
            return metrics(environ, start_response)
        status, text = page
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    server: ScrapeServer
    own = {"address_family": AF_INET6 if ":" in host else AF_INET, "certificates": certificates}
    kind = type("_Server", (ScrapeServer,), own)
    try:
        server = make_server(host, port, answer, kind, ScrapeHandler)
    except OSError as error:
        raise StartupError(f"cannot serve metrics on {host}:{port}: {str(error.strerror).lower()}") from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop


def main(process: str, settings_class: type[S], make: Callable[[S, Clock], Node]) -> None:
    """Runs a service until SIGTERM, SIGINT or the end of a loop. Exit code 0 after a clean stop, 1 otherwise."""
    # All created files are private, including those of libraries.
    os.umask(PRIVATE_UMASK)
    # Objects of modules stay; they were made without collections (duetime_core.starting).
    gc.freeze()
    gc.enable()
    gc.set_threshold(START_GC_THRESHOLD)
    try:
        await_turn()
        settings = settings_class.read()
        for listener in (*settings.listeners, *settings.metrics_listener):
            refuse_exposed(listener, settings.insecure)
        configure_logs(process, settings.log_level, settings.log_format)
        _take_hooks(process)
        sys.setswitchinterval(SWITCH_S)
        _keep_heap()
        raise_descriptors()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(process, settings, make))
    except StartupError as error:
        echo(f"duetime {error.node or process}: {masked(error.text)}", err=True)
        raise SystemExit(1) from None


async def _run(process: str, settings: S, make: Callable[[S, Clock], Node]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_tell_untaken)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervised = is_supervised()
    if supervised:
        die_with_parent()
    exporting = TraceExporter(process, settings.otlp_endpoint)
    node = make(settings, SystemClock())
    with_metrics = ExitStack()
    try:
        await node.start()
        pages = ProbePages(node.health, loop)
        metrics_port, stop_metrics = serve_metrics(
            node.registry, settings.metrics_at, settings.metrics_port, pages, settings.metrics_certificates()
        )
        with_metrics.callback(stop_metrics)
        export_process(process, node.registry, settings.front.value)
        _calm_collector(node.registry)
        lag = LoopLag(node.registry)
        lag.start()
        with_metrics.callback(lag.stop)
        ready: dict[str, Any] = {"serving": process, "port": node.port, "metrics_port": metrics_port}
        log.info("serving", **ready, compiled=in_use, front=settings.front.value)
        _warn_of_exposed(settings)
        if supervised:
            echo(json.dumps(ready), flush=True)
        stopped, failed = asyncio.create_task(stop.wait()), asyncio.create_task(node.failed())
        try:
            done, _ = await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed in done:
                failed.result()
                raise StartupError("a loop of this process ended; its log has the reason")
        finally:
            stopped.cancel()
            failed.cancel()
        log.info("stopping")
    finally:
        with_metrics.close()
        await node.stop()
        await exporting.stop()
    log.info("stopped")


def _take_hooks(process: str) -> None:
    """Logs unhandled exceptions like all others: Python itself would print their texts."""
    sys.excepthook = partial(_tell_end, process)
    threading.excepthook = lambda untaken: log.error("exception in a thread", exc_info=untaken.exc_value)
    sys.unraisablehook = lambda untaken: log.error("unraisable exception", exc_info=untaken.exc_value)


def _tell_untaken(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an exception that nobody awaited, without asyncio's objects: they show its text."""
    exception = context.get("exception")
    if exception is None:
        log.error("event loop error", what=context["message"])
    else:
        log.error("exception in a task or callback", exc_info=exception)


def _tell_end(process: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Reports the end of a process by a defect: in its log, and in one line for the operator."""
    log.critical("ended by a defect", exc_info=error)
    echo(f"duetime {process}: ended by a defect, {name_of(error)}; its log has the trace", err=True)


def _warn_of_exposed(settings: ProcessSettings) -> None:
    """Warns in one line."""
    exposed = [one for one in (*settings.listeners, *settings.metrics_listener) if one.is_exposed]
    if exposed:
        log.warning(
            "listening beyond this machine without TLS and authentication",
            hosts=sorted({one.host for one in exposed}),
            tls=all(one.tls for one in exposed),
            authenticated=all(one.authenticated for one in exposed),
        )


def _calm_collector(registry: CollectorRegistry) -> None:
    """Freezes objects created at startup, so that the garbage collector does not inspect them again, and makes
    collections less frequent than every 700 new objects.

    Exports its pauses, in which the process does nothing else.
    """
    pauses = Histogram(
        "duetime_gc_pause_seconds",
        "Pauses of the garbage collector, by generation.",
        ["generation"],
        buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1),
        registry=registry,
    )
    of_generation = [pauses.labels(generation) for generation in range(3)]
    started = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            of_generation[info["generation"]].observe(time.perf_counter() - started)

    # Skips a collection here: a start leaves some 150 garbage objects, and finding them took 6 % of it.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    gc.callbacks.append(note)


def _keep_heap() -> None:
    """Sets glibc's heap limits; does nothing in C libraries without them (musl)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, HEAP_FREE_BYTES_MAX)


def raise_descriptors() -> None:
    """Raises this process's limit of descriptors to the hard limit: many systems start with 1,024, for programs that
    use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
