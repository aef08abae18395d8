"""`duetime outbox`: the relay of a transactional outbox, its status, and its faulty rows. Needs the `outbox` extra."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import typer
from duetime_format.printing import echo
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from duetime.cli.options import Json, Server, grouped, show_help, watched
from duetime.cli.output import LogFormatter, about, iso, local, print_json, print_table
from duetime.client.errors import DueTimeError, InvalidArgument, NotFound
from duetime.client.message import moment
from duetime.outbox import Faulty, Outbox, OutboxStatus, Relay, Rows
from duetime.outbox.relay import BATCH_MAX
from duetime.outbox.table import TABLE_NAME

# PostgreSQL only: a dead connection is noticed.
CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_MS = 30_000

T = TypeVar("T")

_HELP = """Move messages from an outbox to the server.

A transactional outbox is a table of your own database.

\b
Examples:
  duetime outbox relay --database postgresql://app@db/shop --server localhost:9800
  duetime outbox status --database sqlite:///shop.db
  duetime outbox resolve 7F0000010001070D0D0D000000000000 --resend --database sqlite:///shop.db
"""

outbox = typer.Typer(help=_HELP, invoke_without_command=True, rich_markup_mode=None, add_completion=False)

_Database = Annotated[
    str,
    typer.Option(metavar="URL", envvar="DUETIME_OUTBOX_DATABASE", help="postgresql://USER@HOST/NAME, sqlite:///FILE."),
]
_Table = Annotated[str, typer.Option(metavar="NAME", help="The table, or SCHEMA.TABLE.")]
outbox.callback()(show_help)


@dataclass
class RelayOptions:
    """The arguments of a relay."""

    window: Annotated[
        str, typer.Option(metavar="LENGTH", help="Time within which the server detects repeats; less than its window.")
    ] = "5m"
    retention: Annotated[
        str,
        typer.Option(metavar="LENGTH", help="Server retention. A message missing within it was never sent."),
    ] = "1h"
    keep: Annotated[str, typer.Option(metavar="LENGTH", help="Retention of sent rows.")] = "0s"
    poll: Annotated[str, typer.Option(metavar="LENGTH", help="Poll interval if no commit wakes the relay.")] = "1s"
    lease: Annotated[str, typer.Option(metavar="LENGTH", help="Time until a dead relay's rows are free again.")] = "60s"
    batch: Annotated[int, typer.Option(min=1, max=BATCH_MAX, help="Rows in one round.")] = BATCH_MAX


@outbox.command()
@grouped
def relay(
    *,
    database: _Database,
    table: _Table = TABLE_NAME,
    server: Server = None,
    options: RelayOptions,
    drain: Annotated[bool, typer.Option("--drain", help="End when no rows are left to move.")] = False,
    as_json: Json = False,
) -> None:
    """Move rows to the server until SIGTERM or Ctrl-C.

    It prints the counts at the end.

    Several relays may run at once. Rejected rows, and rows possibly sent too long ago to be repeated, are logged; see
    `duetime outbox status` and `resolve`.

    \b
    Examples:
      duetime outbox relay --database postgresql://app@db/shop
      duetime outbox relay --database sqlite:///shop.db --poll 200ms --keep 24h
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("duetime: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("duetime").setLevel(logging.INFO)

    def make(engine: Engine, found: Outbox) -> Relay:
        return Relay(engine, server, outbox=found, **asdict(options))

    with _opened(database, table, make) as moving:
        echo(f"duetime: moving rows of {table}", err=True)
        moving.run(drain=drain)
    stats = asdict(moving.stats)
    if as_json:
        print_json(stats)
    else:
        echo(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in stats.items()))


@outbox.command()
@watched
def status(database: _Database, table: _Table = TABLE_NAME, as_json: Json = False) -> None:
    """Count rows, and list the faulty ones.

    Faulty rows were rejected, or may have been sent. Exit code 1 if there are any.

    \b
    Examples:
      duetime outbox status --database sqlite:///shop.db
      duetime outbox status --database sqlite:///shop.db --json | jq -r '.faulty[] | select(.state == "doubtful").id'
    """
    found = _in_transaction(database, table, Rows.status)
    if as_json:
        print_json(_status_object(found))
    else:
        oldest = f", the oldest for {about(found.oldest_ms)}" if found.waiting else ""
        echo(f"{found.waiting:,} waiting{oldest}; {found.retried:,} of them tried before")
        echo(f"{found.failed:,} failed, {found.doubtful:,} doubtful, {found.sent:,} sent and kept")
        if found.faulty:
            rows = [(one.message_id, one.topic, one.state, local(_created(one)), one.error) for one in found.faulty]
            print_table(["id", "topic?2", "state", "written?1", "error"], rows)
    if found.failed or found.doubtful:
        raise typer.Exit(1)


@outbox.command()
def resolve(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Message ids from `duetime outbox status`.")],
    database: _Database,
    resend: Annotated[bool, typer.Option("--resend", help="They were not sent: send them.")] = False,
    sent: Annotated[
        bool, typer.Option("--sent", help="They were sent, or should be dropped: delete the rows.")
    ] = False,
    table: _Table = TABLE_NAME,
) -> None:
    """Resolve failed or doubtful rows.

    \b
    Examples:
      duetime outbox resolve 7F0000010001070D0D0D000000000000 --sent --database sqlite:///shop.db
      duetime outbox resolve $(cat ids) --resend --database postgresql://app@db/shop
    """
    if resend is sent:
        raise typer.BadParameter("give --resend or --sent")
    missing = _in_transaction(database, table, lambda rows, connection: rows.resolve(connection, ids, resend=resend))
    echo(f"{len(ids) - len(missing):,} {'will be sent' if resend else 'deleted'}")
    if missing:
        raise NotFound(f"neither failed nor doubtful: {', '.join(missing)}", reason="MESSAGE_NOT_FOUND")


def _in_transaction(database: str, table: str, work: Callable[[Rows, Connection], T]) -> T:
    with _opened(database, table, lambda *found: found) as (engine, found), engine.begin() as connection:
        return work(Rows(found), connection)


@contextmanager
def _opened(database: str, name: str, make: Callable[[Engine, Outbox], T]) -> Iterator[T]:
    """Yields an object made of the database and its table, before any query.

    Raises:
        DueTimeError: the table does not exist, or the database reports an error.
    """
    schema, _, plain = name.rpartition(".")
    found = Outbox(MetaData(), plain, schema=schema or None)
    try:
        engine = _engine(database)
        try:
            made = make(engine, found)
            if not inspect(engine).has_table(plain, schema=schema or None):
                raise NotFound(f"the database has no table {name}", reason="TABLE_NOT_FOUND")
            yield made
        finally:
            engine.dispose()
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise InvalidArgument.of("database", str(error)) from error
    except DBAPIError as error:
        raise DueTimeError(f"database: {error.orig}", reason="DATABASE") from error


def _engine(database: str) -> Engine:
    url = make_url(database)
    if url.get_backend_name() != "postgresql":
        return create_engine(url)
    options = {"options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS}", "tcp_user_timeout": STATEMENT_TIMEOUT_MS}
    return create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args={"connect_timeout": CONNECT_TIMEOUT_S, **options}
    )


def _status_object(found: OutboxStatus) -> dict[str, Any]:
    faulty = [
        {"id": one.message_id, "topic": one.topic, "state": one.state, "error": one.error, "at": iso(_created(one))}
        for one in found.faulty
    ]
    return asdict(found) | {"faulty": faulty}


def _created(row: Faulty) -> Any:
    return moment(row.created_at_ms)
