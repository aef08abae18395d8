"""Shared by both commands: the database, errors on one line, options, printed users."""

import asyncio
import os
import pwd
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from duetime.cli.output import now_ms, print_json, print_table
from duetime.client.errors import DueTimeError as ClientError
from duetime.client.errors import InvalidArgument as ClientInvalidArgument
from duetime_core.audit.events import AuditedCall, plain
from duetime_core.errors import DueTimeError, InvalidArgument, Unavailable
from duetime_core.metadata import AuditRow, Database
from duetime_core.metadata import users as table
from duetime_core.metadata.audit import add_rows
from duetime_core.node.settings import DATABASE_URL_VARIABLE
from duetime_core.telemetry.secrets import masked
from duetime_format.printing import echo
from sqlalchemy.orm import Session

T = TypeVar("T")

# The gateway's own variable: in its container the commands use the same database.
GATEWAY_DATABASE_URL_VARIABLE = "DUETIME_GATEWAY_DATABASE_URL"
# The database of `duetime up` without --data.
UP_DATABASE = Path("duetime-data") / "metadata.db"

Url = Annotated[
    str,
    typer.Option(
        "--database-url",
        metavar="URL",
        envvar=[DATABASE_URL_VARIABLE, GATEWAY_DATABASE_URL_VARIABLE],
        help=f"The metadata database. Default: that of `duetime up` in this directory, {UP_DATABASE}.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="USER", help="1 to 120 printable characters without blanks.")]


def transact(database_url: str, work: Callable[[Session], T]) -> T:
    """Runs one transaction, outside any event loop. Raises: ClientError."""
    return _with(database_url, lambda database: database.run(work))


def act(database_url: str, command: str, resource: str, work: Callable[[Session], T]) -> T:
    """As `transact`, for a change, which is audited: the change and its row are both written, or neither. A failed
    change has a row too. Raises: ClientError."""

    def audited(session: Session) -> T:
        done = work(session)
        add_rows(session, [_row(command, resource, "OK", "")])
        return done

    async def run(database: Database) -> T:
        try:
            return await database.run(audited)
        except DueTimeError as error:
            if not isinstance(error, Unavailable):
                row = _row(command, resource, error.status.name, error.reason)
                await database.run(lambda session: add_rows(session, [row]))
            raise

    return _with(database_url, run)


def _with(database_url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    if not database_url and not UP_DATABASE.exists():
        raise ClientError(
            f"no {UP_DATABASE} here: run this in the directory in which `duetime up` runs, or give --database-url"
        )

    async def run() -> T:
        database = Database(database_url or f"sqlite:///{UP_DATABASE}")
        try:
            await database.start()
            return await work(database)
        finally:
            await database.stop()

    # SQLite's extra files are readable only by their user.
    os.umask(0o077)
    return checked(lambda: asyncio.run(run()))


def _row(command: str, resource: str, status: str, reason: str) -> AuditRow:
    """A row in the name of this machine's user: the database's password is the only authentication."""
    user, host = _system_user(), socket.gethostname()
    event = AuditedCall(now_ms(), plain(user), plain(host), "", f"command/{command}", plain(resource), status, reason)
    return AuditRow(secrets.token_hex(16), "command", event)


def _system_user() -> str:
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        # The user has no name, as in containers.
        return f"uid {number}"


def checked(work: Callable[[], T]) -> T:
    """Converts errors of the cluster's processes into errors that commands print on one line. Raises: ClientError."""
    try:
        return work()
    except DueTimeError as error:
        kind = ClientInvalidArgument if isinstance(error, InvalidArgument) else ClientError
        raise kind(masked(error.text), reason=error.reason) from error


def url_of(context: typer.Context, database_url: str) -> str:
    """The command's option, else the option before the command."""
    return database_url or str(context.obj[0])


def is_json(context: typer.Context, as_json: bool) -> bool:
    return bool(as_json or context.obj[1])


def found(session: Session, name: str) -> table.StoredUser:
    """Raises: NotFound."""
    users = table.read_users(session, [name])
    if name not in users:
        raise table.no_user(name)
    return users[name]


def print_done(name: str, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"user": name, "state": state})
    else:
        echo(f"user {name} {state}")


def print_grants(found: Sequence[table.StoredUser]) -> bool:
    rows = [(user.name, one.right, one.kind or "-", one.pattern) for user in found for one in user.grants]
    if rows:
        print_table(["user", "right", "on", "pattern"], rows)
    return bool(rows)


def grant_object(grant: table.StoredGrant) -> dict[str, Any]:
    return {"right": grant.right, "on": grant.kind or None, "pattern": grant.pattern}
