"""`duetime certs`: makes and shows a cluster's certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.files import write_private
from duetime.cli.options import Json
from duetime.cli.output import print_json
from duetime.cli.preflight import CannotStart

if TYPE_CHECKING:
    from duetime.cli.authority import Authority

_HELP = """Make a cluster's certificates, and show them.

\b
Examples:
  duetime certs init certs --dns duetime.example.com
  duetime certs show certs/gateway/tls.crt
"""

certs = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help=_HELP, add_completion=False)

SERVERS = ("gateway", "store", "scheduler", "retry", "console", "webhooks")
CALLERS = ("spark", "keda", "prometheus", "operator", "client")
DAYS = 365
SPIFFE_PREFIX = "spiffe://duetime/"


@certs.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Target folder: ca.crt, ca.key, ROLE/tls.crt, …")],
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Only this role; may be repeated. Default: all.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", "--dns", metavar="HOST", help="Another host or address of the servers."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3_650, help="Validity of certificates; the CA is valid ten years.")
    ] = (DAYS),
    prefix: Annotated[
        str,
        typer.Option(
            envvar="DUETIME_TLS_SPIFFE_PREFIX",
            metavar="URI",
            help="The prefix of the role in a certificate's URI.",
        ),
    ] = SPIFFE_PREFIX,
    force: Annotated[
        bool, typer.Option("--force", help="Make a new CA; certificates of the old one become invalid.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a small CA, and one certificate for each role.

    An existing CA in DIR renews the certificates; running processes load them within a second, without a lost call.
    Anyone who reads DIR/ca.key can impersonate every role: store it elsewhere. Only the owner can read the files.

    \b
    Examples:
      duetime certs init certs && duetime up --certs certs
      duetime certs init certs --dns db-0.example.com --days 90
      duetime certs init certs --role gateway --dns 203.0.113.7     renews the gateway's
    """
    roles = list(dict.fromkeys(role or [*SERVERS, *CALLERS]))
    if unknown := [one for one in roles if one not in (*SERVERS, *CALLERS)]:
        raise typer.BadParameter(f"no role {unknown[0]!r}; there are {', '.join((*SERVERS, *CALLERS))}")
    module = _module()
    authority = _authority(module, directory, force=force)
    ends_at = datetime.now(UTC) + timedelta(days=days)
    for one in roles:
        serves = one in SERVERS
        names = [*module.names_of(one), *(name or ())] if serves else []
        pair = authority.issue(prefix + one, names, ends_at, serves=serves)
        # The key first: a process that reads in between finds a mismatch and loads neither.
        for file, data in (("tls.key", pair.key), ("tls.crt", pair.cert), ("ca.crt", authority.pair.cert)):
            write_private(directory / one / file, data)
    if as_json:
        print_json({"directory": str(directory), "roles": roles, "ends_at": ends_at.isoformat(timespec="seconds")})
    else:
        echo(f"certificates of {', '.join(roles)} in {directory}, until {ends_at:%Y-%m-%d}")


@certs.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Certificates (PEM).")],
    as_json: Json = False,
) -> None:
    """Show the roles, names and validity of certificates.

    \b
    Examples:
      duetime certs show certs/gateway/tls.crt
      duetime certs show certs/ca.crt --json
    """
    try:
        found = list(_module().read(file.read_bytes()))
    except ValueError as error:
        raise CannotStart(f"{file} has no certificates: {error}") from error
    for one in found:
        value = _object(one)
        if as_json:
            print_json(value)
        else:
            names = value.pop("names") or ["-"]
            for key, text in [*value.items(), *(("name", name) for name in names)]:
                echo(f"{key.replace('_', ' '):<10} {text or '-'}")


def _object(one: Any) -> dict[str, Any]:
    return {
        "subject": one.subject,
        "role": one.role,
        "names": one.names,
        "issuer": one.issuer,
        "is_ca": one.is_ca,
        "starts_at": one.starts_at.isoformat(),
        "ends_at": one.ends_at.isoformat(),
    }


def _authority(module: Any, directory: Path, *, force: bool) -> "Authority":
    """The CA of a directory, or a new one. Raises: CannotStart: the files are not a CA, or only half of one."""
    cert, key = directory / "ca.crt", directory / "ca.key"
    there = [path for path in (cert, key) if path.exists()]
    if there and not force:
        if len(there) == 1:
            text = f"{there[0]} exists without the other half of the CA; --force makes a new CA"
            raise CannotStart(text)
        try:
            return module.Authority(module.Pair(cert.read_bytes(), key.read_bytes()))  # type: ignore[no-any-return]
        except ValueError as error:
            raise CannotStart(f"{directory} has no usable CA: {error}") from error
    made: Authority = module.Authority.make()
    write_private(key, made.pair.key)
    write_private(cert, made.pair.cert)
    return made


def _module() -> Any:
    """The module, loaded on use: it needs a library that a client install lacks."""
    try:
        from duetime.cli import authority
    except ModuleNotFoundError as error:
        text = f"certificates need the server extra ({error.name} is missing): pip install 'duetime[server]'"
        raise CannotStart(text) from None
    return authority
