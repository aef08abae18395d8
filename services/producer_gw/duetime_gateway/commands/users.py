"""`duetime users`."""

from typing import Annotated, Any

import typer
from duetime.cli.options import Json, watched
from duetime.cli.output import iso, local, moment_or_none, now_ms, print_json, print_table
from duetime.client.errors import DueTimeError as ClientError
from duetime.client.message import delay_ms
from duetime_core.access.sealing import Seal
from duetime_core.metadata import users as table
from duetime_core.metadata.models import ACCESS_KEY_CHARS
from duetime_core.node.settings import SECRETS_KEY_VARIABLE, secrets_key_of_all
from duetime_format.printing import echo
from sqlalchemy.orm import Session

from duetime_gateway.access.grants import GROUP_PREFIX, admin_grant
from duetime_gateway.access.tokens import TokenParts, hash_of, new_access_key, new_token
from duetime_gateway.commands.shared import (
    Name,
    Url,
    act,
    checked,
    found,
    grant_object,
    is_json,
    print_done,
    print_grants,
    transact,
    url_of,
)

_HELP = """List, create, revoke and delete users and their tokens.

\b
Examples:
  duetime users create shop
  duetime users create ops --admin
  duetime users rotate shop --old-ends 1h
  duetime users revoke shop
"""

_AS_ADMIN = ", admin"

users = typer.Typer(name="users", help=_HELP, rich_markup_mode=None, add_completion=False)
Expires = Annotated[
    str | None, typer.Option(metavar="LENGTH", help="Lifetime of the new token: 12h, 90d. Default: unlimited.")
]


@users.callback(invoke_without_command=True)
@watched
def list_users(context: typer.Context, database_url: Url = "", as_json: Json = False) -> None:
    """See _HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (database_url, as_json)  # options before the command apply to it too
        return
    _list(database_url, as_json=as_json)


@users.command("list")
@watched
def list_by_name(context: typer.Context, database_url: Url = "", as_json: Json = False) -> None:
    """List the users, as without a command.

    \b
    Examples:
      duetime users list --json
    """
    _list(url_of(context, database_url), as_json=is_json(context, as_json))


def _list(database_url: str, *, as_json: bool) -> None:
    found = transact(database_url, table.read_users).values()
    if as_json:
        for user in found:
            print_json(_user_object(user))
    elif found:
        rows = [(one.name, _state(one), str(len(one.tokens)), str(len(one.grants)), _when(one)) for one in found]
        print_table(["user", "state", "#tokens", "#grants", "created?1"], rows)
    else:
        echo("no users yet; `duetime users create NAME --admin` creates one with all rights")


@users.command()
def create(
    context: typer.Context,
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Give the right to everything.")] = False,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Create no token: an identity provider issues them.")
    ] = False,
    expires: Expires = None,
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Create a user and a token, which is shown only once.

    \b
    Examples:
      duetime users create ops --admin
      duetime users create shop --expires 90d
      duetime users create group:payments --no-token
    """
    checked(lambda: table.check_name(name))
    token = None if no_token or name.startswith(GROUP_PREFIX) else new_token()
    stored = None if token is None else _stored(token, expires)

    def change(session: Session) -> None:
        table.create_user(session, name, now_ms())
        if stored is not None:
            table.add_token(session, name, stored)
        if admin:
            table.add_grants(session, name, [admin_grant()])

    act(url_of(context, database_url), "users create", f"user {name}{_AS_ADMIN * admin}", change)
    _print_token(name, token, stored, as_json=is_json(context, as_json))


@users.command()
def show(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Show a user's tokens (their ids), keys and rights.

    \b
    Examples:
      duetime users show shop --json
    """
    user, keys = transact(url_of(context, database_url), lambda one: (found(one, name), table.read_keys(one, name)))
    if is_json(context, as_json):
        print_json(_user_object(user) | {"keys": [_key_object(key) for key in keys]})
        return
    echo(f"user {name}, {_state(user)}, created {_when(user)}")
    if user.tokens:
        rows = [(one.id, local(moment_or_none(one.created_at_ms)), _end(one.expires_at_ms)) for one in user.tokens]
        print_table(["token", "created", "ends"], rows)
    if keys:
        print_table(
            ["access key", "created"], [(key.access_key, local(moment_or_none(key.created_at_ms))) for key in keys]
        )
    print_grants([user])


@users.command()
def rotate(
    context: typer.Context,
    name: Name,
    old_ends: Annotated[str, typer.Option(metavar="LENGTH", help="Remaining lifetime of the other tokens.")] = "1h",
    expires: Expires = None,
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Create a new token and let the user's others expire.

    The token is shown only once.

    \b
    Examples:
      duetime users rotate shop --old-ends 24h
      duetime users rotate shop --old-ends 0s          at once
    """
    _refuse_group(name, "tokens")
    token = new_token()
    stored, ends_at_ms = _stored(token, expires), now_ms() + delay_ms(old_ends, "--old-ends")

    def change(session: Session) -> None:
        table.add_token(session, name, stored)
        table.end_others(session, name, stored.id, ends_at_ms)

    act(url_of(context, database_url), "users rotate", f"user {name}, new token {token.id}", change)
    _print_token(name, token, stored, as_json=is_json(context, as_json))


@users.command()
def revoke(
    context: typer.Context,
    name: Name,
    token: Annotated[str, typer.Option("--token", metavar="ID", help="Delete only this token.")] = "",
    database_url: Url = "",
    as_json: Json = False,
) -> None:
    """Revoke a user's access, or delete one of their tokens.

    Takes effect within 5 s at every gateway, including streams.

    \b
    Examples:
      duetime users revoke shop
      duetime users revoke shop --token k2xwq7mzc4ta
    """

    def change(session: Session) -> None:
        if token:
            table.revoke_token(session, name, token)
        else:
            table.set_revoked(session, name, revoked=True)

    resource = f"user {name}, token {token}" if token else f"user {name}"
    act(url_of(context, database_url), "users revoke", resource, change)
    print_done(name, f"token {token} is deleted" if token else "is revoked", as_json=is_json(context, as_json))


@users.command()
def restore(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Give a revoked user access again.

    Tokens and rights are as before.

    \b
    Examples:
      duetime users restore shop
    """
    url = url_of(context, database_url)
    act(url, "users restore", f"user {name}", lambda session: table.set_revoked(session, name, revoked=False))
    print_done(name, "is active", as_json=is_json(context, as_json))


@users.command("delete")
def delete_user(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Delete a user with all tokens, keys and rights.

    \b
    Examples:
      duetime users delete shop
    """
    url = url_of(context, database_url)
    act(url, "users delete", f"user {name}", lambda session: table.delete_user(session, name))
    print_done(name, "is deleted", as_json=is_json(context, as_json))


@users.command("add-key")
def add_key(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """Create a pair of keys for RocketMQ's clients.

    An access key and a secret key; the secret is shown only once.

    It is stored encrypted with DUETIME_SECRETS_KEY (32 bytes in base64). `duetime users show` lists access keys.

    \b
    Examples:
      duetime users add-key shop
    """
    _refuse_group(name, "keys")
    access_key, secret = new_access_key()
    key = table.StoredKey(access_key, name, _seal().close(access_key, secret), now_ms())
    resource = f"user {name}, access key {access_key}"
    act(url_of(context, database_url), "users add-key", resource, lambda session: table.add_key(session, key))
    if is_json(context, as_json):
        print_json({"user": name, "access_key": access_key, "secret_key": secret})
    else:
        echo(f"access key {access_key}\nsecret key {secret}")
        echo("keep the secret: it is shown only once", err=True)


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
    if len(access_key) != ACCESS_KEY_CHARS:
        # It may be the secret, given by mistake: do not repeat it.
        raise typer.BadParameter(
            f"an access key has {ACCESS_KEY_CHARS} characters; `duetime users show USER` lists them"
        )
    url = url_of(context, database_url)
    act(url, "users delete-key", f"access key {access_key}", lambda session: table.delete_key(session, access_key))
    if is_json(context, as_json):
        print_json({"access_key": access_key, "state": "is deleted"})
    else:
        echo(f"key {access_key} is deleted")


def _refuse_group(name: str, what: str) -> None:
    if name.startswith(GROUP_PREFIX):
        raise typer.BadParameter(f"{name} stands for an identity provider's users, and has no {what}")


def _stored(token: TokenParts, expires: str | None) -> table.StoredToken:
    made_at_ms = now_ms()
    length_ms = None if expires is None else delay_ms(expires, "--expires")
    if length_ms == 0:
        raise typer.BadParameter("--expires 0 would make a token that is never valid")
    ends_at_ms = 0 if length_ms is None else made_at_ms + length_ms
    return table.StoredToken(token.id, hash_of(token.secret), made_at_ms, ends_at_ms)


def _seal() -> Seal:
    text = secrets_key_of_all()
    if not text:
        raise ClientError(
            f"{SECRETS_KEY_VARIABLE} is not set: `openssl rand -base64 32` makes one; use it in all processes"
        )
    try:
        return Seal(text)
    except ValueError as error:
        raise ClientError(f"{SECRETS_KEY_VARIABLE} {error}") from error


def _print_token(name: str, token: TokenParts | None, stored: table.StoredToken | None, *, as_json: bool) -> None:
    """Prints only the token to standard output, so that it can be redirected to a file."""
    if as_json:
        made = None if stored is None else _token_object(stored)
        print_json({"user": name, "token": None if token is None else str(token), "made": made})
    elif token is None:
        echo(f"user {name} has no token")
    else:
        echo(str(token))
        echo(f"the token of {name}; keep it: it is shown only once", err=True)


def _user_object(user: table.StoredUser) -> dict[str, Any]:
    return {
        "user": user.name,
        "revoked": user.revoked,
        "created_at": iso(moment_or_none(user.created_at_ms)),
        "tokens": [_token_object(token) for token in user.tokens],
        "grants": [grant_object(grant) for grant in user.grants],
    }


def _token_object(token: table.StoredToken) -> dict[str, Any]:
    ends = {"created_at": iso(moment_or_none(token.created_at_ms)), "ends_at": iso(moment_or_none(token.expires_at_ms))}
    return {"id": token.id} | ends


def _key_object(key: table.StoredKey) -> dict[str, Any]:
    return {"access_key": key.access_key, "created_at": iso(moment_or_none(key.created_at_ms))}


def _state(user: table.StoredUser) -> str:
    return "revoked" if user.revoked else "active"


def _when(user: table.StoredUser) -> str:
    return local(moment_or_none(user.created_at_ms))


def _end(at_ms: int) -> str:
    return local(moment_or_none(at_ms)) if at_ms else "never"
