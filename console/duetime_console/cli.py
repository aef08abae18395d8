"""`duetime console`: the cluster in a browser."""

from pathlib import Path
from typing import Annotated

import typer
from duetime.cli.options import Server
from duetime.cli.preflight import CannotStart
from duetime.client.connection import resolve_server
from duetime_core.errors import StartupError
from duetime_core.telemetry.secrets import masked

from duetime_console.running import run
from duetime_console.settings import PORT

console = typer.Typer(name="console", rich_markup_mode=None, add_completion=False)


@console.command()
def serve(
    server: Server = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port of pages; 0: any free one.")] = PORT,
    host: Annotated[str, typer.Option(metavar="HOST", help="The console's address.")] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Reject all changes to the cluster.")] = False,
    prometheus: Annotated[
        str,
        typer.Option(
            "--prometheus",
            metavar="URL",
            help="A Prometheus that scrapes the cluster, for history beyond the console's own.",
        ),
    ] = "",
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="The console's certificate: serve HTTPS only.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")] = None,
) -> None:
    """Show the cluster in a browser.

    Future and past deliveries, messages, topics, groups, lanes, dead letters; the same as JSON below /api/v1. If the
    cluster has users, people sign in with their tokens and have those users' rights. Stop it with Ctrl-C or SIGTERM.
    Variables such as DUETIME_CONSOLE_REFRESH_MS set values without an option.

    \b
    Examples:
      duetime console
      duetime console --server gateway.example.com:9800 --read-only
      duetime console --context prod --port 9990
      duetime console --prometheus http://localhost:9090
    """
    given = {
        "server": resolve_server(server),
        "port": port,
        "host": host,
        "tls_cert_file": str(tls_cert or ""),
        "tls_key_file": str(tls_key or ""),
    }
    chosen = {"read_only": read_only, "prometheus_url": prometheus}
    try:
        run(**given, **{name: value for name, value in chosen.items() if value})
    except StartupError as error:
        raise CannotStart(masked(error.text)) from None
