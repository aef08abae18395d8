"""`duetime users` and `duetime grants`: who may call gateways, and what they may do. Plug-ins of the `duetime` command.

They work on the metadata database, and not by a gateway: the first user is made where there is none who could ask, no
token travels but to the terminal that asked for it, and a gateway has no call by which rights could be taken.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from duetime.cli.options import Json
from duetime.cli.output import iso, local, moment_or_none, now_ms, print_json, print_table
from duetime.client.errors import DueTimeError as ClientError
from duetime.client.message import delay_ms
from duetime_core.errors import DueTimeError, StartupError
from duetime_core.metadata import Database
from duetime_core.metadata import users as table
from duetime_core.secrets import masked
from duetime_core.settings import DATABASE_URL_VARIABLE, SECRETS_KEY_VARIABLE, secrets_key_of_commands
from sqlalchemy.orm import Session

from duetime_gateway.access.grants import ADMIN, GROUP_PREFIX, RIGHTS, Kind, admin_grant, check_pattern
from duetime_gateway.access.sealing import Seal
from duetime_gateway.access.tokens import Token, hash_of, new_access_key, new_token

T = TypeVar("T")

# The database of `duetime up` without --data.
UP_DATABASE = Path("duetime-data") / "metadata.db"
_USERS_HELP = """List the users; with a command, create, show, revoke, restore or delete one, or change tokens and keys.

\b
Examples:
  duetime users create shop
  duetime users create ops --admin
  duetime users rotate shop --old-ends 1h
  duetime users revoke shop
"""
_GRANTS_HELP = """List what users may do; with a command, add or remove a right.

Patterns are names in which * stands for any characters and ? for one. A user of an identity provider needs no tokens; a
user named group:NAME stands for all of its group NAME.

\b
Examples:
  duetime grants add shop send 'orders.*'
  duetime grants add billing receive orders --group 'billing*'
  duetime grants add ops admin
  duetime grants remove shop send 'orders.*'
"""

users = typer.Typer(name="users", help=_USERS_HELP, rich_markup_mode=None, add_completion=False)
grants = typer.Typer(name="grants", help=_GRANTS_HELP, rich_markup_mode=None, add_completion=False)

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
Expires = Annotated[
    str | None, typer.Option(metavar="LENGTH", help="How long the new token counts: 12h, 90d. Default: for ever.")
]
RightName = Annotated[
    str, typer.Argument(metavar="RIGHT", help=f"{', '.join(RIGHTS)} (of topics and groups), or {ADMIN} (everything).")
]
Pattern = Annotated[str | None, typer.Argument(metavar="[TOPICS]", help="Names of topics, as a pattern.")]
GroupPattern = Annotated[str | None, typer.Option("--group", metavar="GROUPS", help="Names of groups, as a pattern.")]


# --- users ----------------------------------------------------------------------------------------------------------


@users.callback(invoke_without_command=True)
def list_users(context: typer.Context, database_url: Url = "", as_json: Json = False) -> None:
    """See _USERS_HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (database_url, as_json)  # options before the command apply to it too
        return
    found = _work(database_url, table.read_users).values()
    if as_json:
        for user in found:
            print_json(_user_object(user))
    elif found:
        rows = [(one.name, _state(one), str(len(one.tokens)), str(len(one.grants)), _when(one)) for one in found]
        print_table(["user", "state", "#tokens", "#grants", "created"], rows)
    else:
        print("no users yet; `duetime users create NAME --admin` makes one who may do everything")


@users.command()
def create(
    context: typer.Context,
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Give the right to everything.")] = False,
    no_token: Annotated[bool, typer.Option("--no-token", help="Make no token: an identity provider does.")] = False,
    expires: Expires = None,
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Create a user and a token, which is shown this once.

    \b
    Examples:
      duetime users create ops --admin
      duetime users create shop --expires 90d
      duetime users create group:payments --no-token
    """
    _checked(lambda: table.check_name(name))
    token = None if no_token or name.startswith(GROUP_PREFIX) else new_token()
    stored = None if token is None else _stored(token, expires)

    def work(session: Session) -> None:
        table.create_user(session, name, now_ms())
        if stored is not None:
            table.add_token(session, name, stored)
        if admin:
            table.add_grants(session, name, [admin_grant()])

    _work(*_database(context, database_url), work)
    _print_token(name, token, stored, as_json=_is_json(context, as_json))


@users.command()
def show(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Show a user's tokens (their ids), keys and rights.

    \b
    Examples:
      duetime users show shop --json
    """
    user, keys = _work(*_database(context, database_url), lambda one: (_found(one, name), table.read_keys(one, name)))
    if _is_json(context, as_json):
        print_json(_user_object(user) | {"keys": [_key_object(key) for key in keys]})
        return
    print(f"user {name}, {_state(user)}, created {_when(user)}")
    if user.tokens:
        rows = [(one.id, local(moment_or_none(one.created_at_ms)), _end(one.expires_at_ms)) for one in user.tokens]
        print_table(["token", "created", "ends"], rows)
    if keys:
        print_table(
            ["access key", "created"], [(key.access_key, local(moment_or_none(key.created_at_ms))) for key in keys]
        )
    _print_grants([user])


@users.command()
def rotate(
    context: typer.Context,
    name: Name,
    old_ends: Annotated[str, typer.Option(metavar="LENGTH", help="How long the others count on.")] = "1h",
    expires: Expires = None,
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Make a new token, which is shown this once; all others of the user end after a while.

    \b
    Examples:
      duetime users rotate shop --old-ends 24h
      duetime users rotate shop --old-ends 0s          at once
    """
    token = new_token()
    stored, ends_at_ms = _stored(token, expires), now_ms() + delay_ms(old_ends, "--old-ends")

    def work(session: Session) -> None:
        table.add_token(session, name, stored)
        table.end_others(session, name, stored.id, ends_at_ms)

    _work(*_database(context, database_url), work)
    _print_token(name, token, stored, as_json=_is_json(context, as_json))


@users.command()
def revoke(
    context: typer.Context,
    name: Name,
    token: Annotated[str, typer.Option("--token", metavar="ID", help="This token only, which is deleted.")] = "",
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Shut a user out, or delete one of their tokens: within 5 s at every gateway, streams included.

    \b
    Examples:
      duetime users revoke shop
      duetime users revoke shop --token k2xwq7mzc4ta
    """

    def work(session: Session) -> None:
        if token:
            table.revoke_token(session, name, token)
        else:
            table.set_revoked(session, name, revoked=True)

    _work(*_database(context, database_url), work)
    _print_done(name, f"token {token} is deleted" if token else "is revoked", as_json=_is_json(context, as_json))


@users.command()
def restore(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Let a revoked user in again, with the tokens and rights from before.

    \b
    Examples:
      duetime users restore shop
    """
    _work(*_database(context, database_url), lambda session: table.set_revoked(session, name, revoked=False))
    _print_done(name, "is active", as_json=_is_json(context, as_json))


@users.command("delete")
def delete_user(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Delete a user with all tokens, keys and rights.

    \b
    Examples:
      duetime users delete shop
    """
    _work(*_database(context, database_url), lambda session: table.delete_user(session, name))
    _print_done(name, "is deleted", as_json=_is_json(context, as_json))


@users.command("add-key")
def add_key(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Make an access key and a secret key for RocketMQ's clients; the secret is shown this once.

    It is encrypted with the key in DUETIME_SECRETS_KEY (32 bytes in base64). `duetime users show` lists access keys.

    \b
    Examples:
      duetime users add-key shop
    """
    access_key, secret = new_access_key()
    key = table.StoredKey(access_key, name, _seal().close(access_key, secret), now_ms())
    _work(*_database(context, database_url), lambda session: table.add_key(session, key))
    if _is_json(context, as_json):
        print_json({"user": name, "access_key": access_key, "secret_key": secret})
    else:
        print(f"access key {access_key}\nsecret key {secret}")
        print("keep the secret: it is shown this once", file=sys.stderr)


@users.command("delete-key")
def delete_key(
    context: typer.Context,
    access_key: Annotated[str, typer.Argument(metavar="ACCESS_KEY")],
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Delete an access key.

    \b
    Examples:
      duetime users delete-key DTMQ7XWQ2ZC4TAK5RNLB3YHV
    """
    _work(*_database(context, database_url), lambda session: table.delete_key(session, access_key))
    if _is_json(context, as_json):
        print_json({"access_key": access_key, "state": "is deleted"})
    else:
        print(f"key {access_key} is deleted")


# --- grants ---------------------------------------------------------------------------------------------------------


@grants.callback(invoke_without_command=True)
def list_all_grants(context: typer.Context, database_url: Url = "", as_json: Json = False) -> None:
    """See _GRANTS_HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (database_url, as_json)
        return
    _list_grants(list(_work(database_url, table.read_users).values()), as_json=as_json)


@grants.command("list")
def list_grants(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """List what one user may do.

    \b
    Examples:
      duetime grants list shop
    """
    user = _work(*_database(context, database_url), lambda session: _found(session, name))
    _list_grants([user], as_json=_is_json(context, as_json))


@grants.command()
def add(
    context: typer.Context,
    name: Name,
    right: RightName,
    topics: Pattern = None,
    groups: GroupPattern = None,
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Give a user a right on topics, on groups, or on both.

    \b
    Examples:
      duetime grants add shop send 'orders.*'
      duetime grants add billing receive orders --group billing
      duetime grants add planner manage '*' --group '*'
      duetime grants add ops admin
    """
    wanted = _grants_of(right, topics, groups)
    _work(*_database(context, database_url), lambda session: table.add_grants(session, name, wanted))
    _print_done(name, f"may {_sentence(wanted)}", as_json=_is_json(context, as_json))


@grants.command()
def remove(
    context: typer.Context,
    name: Name,
    right: RightName,
    topics: Pattern = None,
    groups: GroupPattern = None,
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Take a right away, as it was given: within 5 s at every gateway, streams included.

    \b
    Examples:
      duetime grants remove shop send 'orders.*'
    """
    wanted = _grants_of(right, topics, groups)

    def work(session: Session) -> None:
        for grant in wanted:
            table.remove_grant(session, name, grant)

    _work(*_database(context, database_url), work)
    _print_done(name, f"may no longer {_sentence(wanted)}", as_json=_is_json(context, as_json))


def _grants_of(right: str, topics: str | None, groups: str | None) -> Sequence[table.StoredGrant]:
    """Raises: ClientError."""
    if right == ADMIN:
        if topics is not None or groups is not None:
            raise ClientError(f"{ADMIN} is the right to everything; it takes no pattern")
        return [admin_grant()]
    if right not in RIGHTS:
        raise ClientError(f"{right!r} is no right; rights are {', '.join(RIGHTS)} and {ADMIN}")
    given = [(Kind.TOPIC, topics), (Kind.GROUP, groups)]
    wanted = [table.StoredGrant(right, kind.value, pattern) for kind, pattern in given if pattern is not None]
    if not wanted:
        raise ClientError(f"{right} is a right on topics or groups: name some, such as 'orders.*' or --group billing")
    for grant in wanted:
        _checked(partial(check_pattern, grant.pattern))
    return wanted


def _sentence(wanted: Sequence[table.StoredGrant]) -> str:
    if wanted[0].right == ADMIN:
        return "do everything"
    return f"{wanted[0].right}: " + ", ".join(f"{grant.kind}s {grant.pattern}" for grant in wanted)


# --- the database ---------------------------------------------------------------------------------------------------


def _work(database_url: str, work: Callable[[Session], T]) -> T:
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
    return _checked(lambda: asyncio.run(run()))


def _checked(work: Callable[[], T]) -> T:
    """Errors of the cluster's processes as those that commands print on one line. Raises: ClientError."""
    try:
        return work()
    except (DueTimeError, StartupError) as error:
        raise ClientError(masked(error.text), reason=error.reason) from error


def _database(context: typer.Context, database_url: str) -> tuple[str]:
    return (database_url or context.obj[0],)


def _is_json(context: typer.Context, as_json: bool) -> bool:
    return bool(as_json or context.obj[1])


def _found(session: Session, name: str) -> table.StoredUser:
    found = table.read_users(session, [name])
    if name not in found:
        raise table.no_user(name)
    return found[name]


def _stored(token: Token, expires: str | None) -> table.StoredToken:
    made_at_ms = now_ms()
    length_ms = None if expires is None else delay_ms(expires, "--expires")
    if length_ms == 0:
        raise ClientError("--expires 0 makes a token that never counts")
    ends_at_ms = 0 if length_ms is None else made_at_ms + length_ms
    return table.StoredToken(token.id, hash_of(token.secret), made_at_ms, ends_at_ms)


def _seal() -> Seal:
    text = secrets_key_of_commands()
    if not text:
        raise ClientError(f"{SECRETS_KEY_VARIABLE} is not set: `openssl rand -base64 32` makes one, for all processes")
    try:
        return Seal(text)
    except ValueError as error:
        raise ClientError(f"{SECRETS_KEY_VARIABLE} {error}") from error


# --- what is printed ------------------------------------------------------------------------------------------------


def _print_token(name: str, token: Token | None, stored: table.StoredToken | None, *, as_json: bool) -> None:
    """The token alone goes to standard output, so that it can be put into a file."""
    if as_json:
        made = None if stored is None else _token_object(stored)
        print_json({"user": name, "token": None if token is None else str(token), "made": made})
    elif token is None:
        print(f"user {name} has no token")
    else:
        print(token)
        print(f"the token of {name}; keep it: it is shown this once", file=sys.stderr)


def _print_done(name: str, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"user": name, "state": state})
    else:
        print(f"user {name} {state}")


def _list_grants(found: Sequence[table.StoredUser], *, as_json: bool) -> None:
    if as_json:
        for user in found:
            for grant in user.grants:
                print_json({"user": user.name} | _grant_object(grant))
    elif not _print_grants(found):
        print("no grants; `duetime grants add USER RIGHT TOPICS` gives one")


def _print_grants(found: Sequence[table.StoredUser]) -> bool:
    rows = [(user.name, one.right, one.kind or "-", one.pattern) for user in found for one in user.grants]
    if rows:
        print_table(["user", "right", "on", "pattern"], rows)
    return bool(rows)


def _user_object(user: table.StoredUser) -> dict[str, Any]:
    return {
        "user": user.name,
        "revoked": user.revoked,
        "created_at": iso(moment_or_none(user.created_at_ms)),
        "tokens": [_token_object(token) for token in user.tokens],
        "grants": [_grant_object(grant) for grant in user.grants],
    }


def _token_object(token: table.StoredToken) -> dict[str, Any]:
    ends = {"created_at": iso(moment_or_none(token.created_at_ms)), "ends_at": iso(moment_or_none(token.expires_at_ms))}
    return {"id": token.id} | ends


def _grant_object(grant: table.StoredGrant) -> dict[str, Any]:
    return {"right": grant.right, "on": grant.kind or None, "pattern": grant.pattern}


def _key_object(key: table.StoredKey) -> dict[str, Any]:
    return {"access_key": key.access_key, "created_at": iso(moment_or_none(key.created_at_ms))}


def _state(user: table.StoredUser) -> str:
    return "revoked" if user.revoked else "active"


def _when(user: table.StoredUser) -> str:
    return local(moment_or_none(user.created_at_ms))


def _end(at_ms: int) -> str:
    return local(moment_or_none(at_ms)) if at_ms else "never"
