"""What both commands share: the database, errors on one line, options, users as they are printed."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from duetime.cli.output import print_json, print_table
from duetime.client.errors import DueTimeError as ClientError
from duetime_core.errors import DueTimeError
from duetime_core.metadata import Database
from duetime_core.metadata import users as table
from duetime_core.secrets import masked
from duetime_core.settings import DATABASE_URL_VARIABLE
from sqlalchemy.orm import Session

T = TypeVar("T")

# The database of `duetime up` without --data.
UP_DATABASE = Path("duetime-data") / "metadata.db"

Url = Annotated[
    str,
    typer.Option(
        "--database-url",
        metavar="URL",
        envvar=DATABASE_URL_VARIABLE,
        help=f"The metadata database. Default: that of `duetime up` in this directory, {UP_DATABASE}.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="USER", help="1 to 120 printable characters without blanks.")]


def transact(database_url: str, work: Callable[[Session], T]) -> T:
    """One transaction, from outside any event loop. Raises: ClientError."""

    async def run() -> T:
        database = Database(database_url or f"sqlite:///{UP_DATABASE}")
        try:
            await database.start()
            return await database.run(work)
        finally:
            await database.stop()

    # What SQLite keeps beside a database is for its user only.
    os.umask(0o077)
    return checked(lambda: asyncio.run(run()))


def checked(work: Callable[[], T]) -> T:
    """Errors of the cluster's processes as those that commands print on one line. Raises: ClientError."""
    try:
        return work()
    except DueTimeError as error:
        raise ClientError(masked(error.text), reason=error.reason) from error


def url_of(context: typer.Context, database_url: str) -> str:
    """An option before the command counts where the command has none."""
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
        print(f"user {name} {state}")


def print_grants(found: Sequence[table.StoredUser]) -> bool:
    rows = [(user.name, one.right, one.kind or "-", one.pattern) for user in found for one in user.grants]
    if rows:
        print_table(["user", "right", "on", "pattern"], rows)
    return bool(rows)


def grant_object(grant: table.StoredGrant) -> dict[str, Any]:
    return {"right": grant.right, "on": grant.kind or None, "pattern": grant.pattern}
