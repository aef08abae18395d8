"""`duetime grants`."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from duetime.cli.options import Json, watched
from duetime.cli.output import print_json
from duetime_core.metadata import users as table
from duetime_format.printing import echo
from sqlalchemy.orm import Session

from duetime_gateway.access.grants import ADMIN, RIGHTS, Kind, Right, admin_grant, check_pattern
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

_HELP = """List, add and remove users' rights.

Patterns are names in which * matches any characters and ? matches one. Users of an identity provider need no tokens; a
user named group:NAME stands for all members of its group NAME.

\b
Examples:
  duetime grants add shop send 'orders-*'
  duetime grants add billing receive orders --group 'billing*'
  duetime grants add ops inspect 'DT_*'
  duetime grants add ops admin
  duetime grants remove shop send 'orders-*'
"""

grants = typer.Typer(name="grants", help=_HELP, rich_markup_mode=None, add_completion=False)
RightName = Annotated[
    str,
    typer.Argument(
        metavar="RIGHT", help=f"{', '.join(RIGHTS)} (on topics; most also on groups), or {ADMIN} (everything)."
    ),
]
Pattern = Annotated[str | None, typer.Argument(metavar="[TOPICS]", help="Pattern of topic names.")]
GroupPattern = Annotated[str | None, typer.Option("--group", metavar="GROUPS", help="Pattern of group names.")]


@grants.callback(invoke_without_command=True)
@watched
def list_all_grants(context: typer.Context, database_url: Url = "", as_json: Json = False) -> None:
    """See _HELP."""
    if context.invoked_subcommand is not None:
        context.obj = (database_url, as_json)
        return
    _list_grants(list(transact(database_url, table.read_users).values()), as_json=as_json)


@grants.command("list")
@watched
def list_grants(context: typer.Context, name: Name, database_url: Url = "", as_json: Json = False) -> None:
    """List a user's rights.

    \b
    Examples:
      duetime grants list shop
    """
    user = transact(url_of(context, database_url), lambda session: found(session, name))
    _list_grants([user], as_json=is_json(context, as_json))


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
      duetime grants add shop send 'orders-*'
      duetime grants add billing receive orders --group billing
      duetime grants add planner manage '*' --group '*'
      duetime grants add ops admin
    """
    wanted = _grants_of(right, topics, groups)
    url, resource = url_of(context, database_url), _resource(name, wanted)
    act(url, "grants add", resource, lambda session: table.add_grants(session, name, wanted))
    print_done(name, f"may {_sentence(wanted)}", as_json=is_json(context, as_json))


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
    """Remove a right, exactly as it was given.

    Takes effect within 5 s at every gateway, including streams.

    \b
    Examples:
      duetime grants remove shop send 'orders-*'
    """
    wanted = _grants_of(right, topics, groups)

    def change(session: Session) -> None:
        for grant in wanted:
            table.remove_grant(session, name, grant)

    act(url_of(context, database_url), "grants remove", _resource(name, wanted), change)
    print_done(name, f"may no longer {_sentence(wanted)}", as_json=is_json(context, as_json))


def _grants_of(right: str, topics: str | None, groups: str | None) -> Sequence[table.StoredGrant]:
    """Raises: BadParameter, ClientError."""
    if right == ADMIN:
        if topics is not None or groups is not None:
            raise typer.BadParameter(f"{ADMIN} is the right to everything; it takes no pattern")
        return [admin_grant()]
    if right not in RIGHTS:
        raise typer.BadParameter(f"{right!r} is not a right; rights are {', '.join(RIGHTS)} and {ADMIN}")
    given = [(Kind.TOPIC, topics), (Kind.GROUP, groups)]
    wanted = [table.StoredGrant(right, kind.value, pattern) for kind, pattern in given if pattern is not None]
    if not wanted:
        raise typer.BadParameter(
            f"{right} is a right on topics or groups: name some, such as 'orders-*' or --group billing"
        )
    if RIGHTS[right] is Right.INSPECT and groups is not None:
        raise typer.BadParameter(f"{right} is a right on system topics; it takes no --group")
    for grant in wanted:
        checked(partial(check_pattern, grant.pattern))
    return wanted


def _resource(name: str, wanted: Sequence[table.StoredGrant]) -> str:
    """Describes the change for the audit log."""
    return f"user {name}, {ADMIN if wanted[0].right == ADMIN else _sentence(wanted)}"


def _sentence(wanted: Sequence[table.StoredGrant]) -> str:
    if wanted[0].right == ADMIN:
        return "do everything"
    return f"{wanted[0].right}: " + ", ".join(f"{grant.kind}s {grant.pattern}" for grant in wanted)


def _list_grants(found: Sequence[table.StoredUser], *, as_json: bool) -> None:
    if as_json:
        for user in found:
            for grant in user.grants:
                print_json({"user": user.name} | grant_object(grant))
    elif not print_grants(found):
        echo("no grants; `duetime grants add USER RIGHT TOPICS` gives one")
