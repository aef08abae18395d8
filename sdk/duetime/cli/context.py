"""`duetime context`: servers by name, as a substitute for --server and a token."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.contexts import NAME_RULE, Contexts, ServerContext, check_name, path, read, write
from duetime.cli.options import Json, show_help
from duetime.cli.output import print_json, print_table
from duetime.client.connection import resolve_server

_HELP = """Name servers, and choose one.

Precedence of servers: --server or --context, DUETIME_SERVER, the current context, localhost:9800. A context's token is
sent to its server only.

\b
Examples:
  duetime context add prod --server gateway.example.com:9800 --token-file ~/.duetime-token
  duetime context use prod
  duetime lanes --context staging
"""

context = typer.Typer(help=_HELP, invoke_without_command=True, rich_markup_mode=None, add_completion=False)

_STDIN = "-"
_MASK = "********"
_Name = Annotated[str, typer.Argument(metavar="NAME", help=f"{NAME_RULE}.")]
context.callback()(show_help)


@context.command()
def add(
    name: _Name,
    at: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="The gateway.")],
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the token; read at each use.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN|-", help="The token itself; -: a line of standard input.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="Connect by TLS and trust this CA.")
    ] = None,
    in_plain: Annotated[
        bool, typer.Option("--token-in-plain", help="Send the token to another machine without encryption.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context; the first one always is.")] = False,
) -> None:
    """Add a context, or change one.

    \b
    Examples:
      duetime context add prod --server gateway.example.com:9800 --token-file ~/.duetime-token --tls-ca ca.crt
      duetime context add local --server localhost:9800 --use
      pass show duetime | duetime context add prod --server gateway.example.com:9800 --token -
    """
    check_name(name)
    if token is not None and token_file is not None:
        raise typer.BadParameter("give --token or --token-file")
    token = sys.stdin.readline().strip() if token == _STDIN else token
    if token is not None and not token:
        raise typer.BadParameter("--token is empty")
    contexts = read()
    existed = name in contexts.by_name
    file, ca = (str(one.expanduser().absolute()) if one is not None else "" for one in (token_file, tls_ca))
    contexts.by_name[name] = ServerContext(resolve_server(at), token or "", file, in_plain, ca)
    if use or not contexts.in_use:
        contexts.in_use = name
    write(contexts)
    echo(f"context {name} is {'changed' if existed else 'added'}{' and in use' * (contexts.in_use == name)}")


@context.command("use")
def use_context(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: no context.")] = None,
) -> None:
    """Make a context the current one.

    \b
    Examples:
      duetime context use prod
    """
    contexts = read()
    if name is not None:
        contexts.get(name)
    contexts.in_use = name or ""
    write(contexts)
    echo(f"context {name} is in use" if name else "no context is in use")


@context.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List the contexts.

    \b
    Examples:
      duetime context list
    """
    contexts = read()
    if as_json:
        for name in sorted(contexts.by_name):
            print_json(_object(contexts, name))
    elif contexts.by_name:
        rows = [
            ("*" if name == contexts.in_use else "", name, one.server, _token(one))
            for name, one in sorted(contexts.by_name.items())
        ]
        print_table(["in use", "context", "server", "token?1"], rows)
    else:
        echo("no contexts yet; `duetime context add NAME --server HOST:PORT` adds one")


@context.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: the current one.")] = None,
    as_json: Json = False,
) -> None:
    """Show a context; its token is masked.

    \b
    Examples:
      duetime context show
      duetime context show prod --json
    """
    contexts = read()
    name = name or contexts.in_use
    if not name:
        echo("no context is in use")
        return
    one = contexts.get(name)
    if as_json:
        print_json(_object(contexts, name))
        return
    echo(f"context     {name}{' (in use)' * (name == contexts.in_use)}")
    echo(f"server      {one.server}")
    echo(f"token       {_token(one)}{', in plain text' * one.token_in_plain}")
    echo(f"TLS         {'by ' + one.tls_ca if one.tls_ca else 'none'}")
    echo(f"file        {path()}")


@context.command()
def remove(name: _Name) -> None:
    """Remove a context.

    \b
    Examples:
      duetime context remove staging
    """
    contexts = read()
    contexts.get(name)
    del contexts.by_name[name]
    contexts.in_use = "" if contexts.in_use == name else contexts.in_use
    write(contexts)
    echo(f"context {name} is removed")


def _token(one: ServerContext) -> str:
    return _MASK if one.token else one.token_file or "-"


def _object(contexts: Contexts, name: str) -> dict[str, Any]:
    one = contexts.by_name[name]
    return {
        "context": name,
        "in_use": name == contexts.in_use,
        "server": one.server,
        "token": _MASK if one.token else None,
        "token_file": one.token_file or None,
        "token_in_plain": one.token_in_plain,
        "tls_ca": one.tls_ca or None,
    }
