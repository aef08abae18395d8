"""`duetime work`: runs the tasks of an app in processes."""

import asyncio
import os
from typing import Annotated

import typer

from duetime.cli.options import Server, grouped, length
from duetime.cli.preflight import CannotStart
from duetime.cli.worker import WorkerOptions
from duetime.cli.workers import WorkerSupervisor
from duetime.client.connection import SERVER_VARIABLE
from duetime.client.tasks.processes import cores

TIME_LIMIT_MS_MIN = 1_000


@grouped
def work(
    *,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The module, and the duetime.App in it.")],
    processes: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="Number of processes.")] = 1,
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Maximum tasks of a topic at once, in each process.")
    ] = 32,
    pool: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000,
            metavar="N",
            help="Maximum tasks with process=True at once, in each process. Default: the cores, shared by --processes.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only tasks of this topic; may be repeated.")
    ] = None,
    drain: Annotated[str, typer.Option(metavar="LENGTH", help="Time for running tasks to finish on stop.")] = "30s",
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help="Tasks that run longer fail; a process that can't end them is replaced."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a Python file here changes.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="PORT", help="/metrics, /healthz, /readyz; 0: any port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="HOST", help="The address of that port.")] = "127.0.0.1",
    server: Server = None,
) -> None:
    """Run the tasks of a Python app.

    Imports MODULE from the working directory or the installed packages, and puts the schedules of its functions. A
    process that ends is restarted. On SIGTERM or Ctrl-C processes stop receiving, return tasks that have not started,
    and wait for running ones up to --drain; a second signal cancels these, a third one kills. Coroutine functions share
    the event loop of their process, others run in threads, and those with process=True in processes of their own, up to
    --pool at once. Other code that holds the interpreter holds its process, too: use --processes and --time-limit for
    it.

    \b
    Examples:
      duetime work shop:app
      duetime work shop.tasks:app --processes 4 --concurrency 64
      duetime work shop:app --topic mail --topic sms
      duetime work shop:app --topic pictures --pool 4         for tasks with process=True
      duetime work shop:app --reload                          while you write it
      duetime work shop:app --time-limit 5m --drain 1m --metrics-port 9890
    """
    if os.name != "posix":
        raise CannotStart("`duetime work` runs on Linux and macOS; on Windows, call app.run()")
    limit_ms = None if time_limit is None else length("--time-limit", time_limit)
    if limit_ms is not None and limit_ms < TIME_LIMIT_MS_MIN:
        raise typer.BadParameter(f"--time-limit {time_limit!r} is below {TIME_LIMIT_MS_MIN} ms")
    if server:
        os.environ[SERVER_VARIABLE] = server
    options = WorkerOptions(
        app=app,
        topics=topics or [],
        concurrency=concurrency,
        pool=pool or max(1, cores() // processes),
        drain_s=length("--drain", drain) / 1000,
        time_limit_s=None if limit_ms is None else limit_ms / 1000,
        report_fd=-1,
    )
    code = asyncio.run(WorkerSupervisor(options, processes, reloads=reload).run(metrics_host, metrics_port))
    if code:
        raise typer.Exit(code)
