"""The table of an outbox, and writes of messages to it in the caller's transaction.

waiting ──▶ sent (deleted, at once or later)
   │ ▲
   │ └──────────────── an operator resolves it
   ├──▶ failed         the server rejects it for good, or this release can't read it
   └──▶ doubtful       it may have been sent, and the server no longer knows it
"""

from collections.abc import Awaitable, Coroutine, Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Union, overload

from duetime_format.limits import ID_CHARS_MAX, TOPIC_CHARS_MAX
from duetime_format.record import LITE_TOPIC
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Index,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    func,
    insert,
)
from sqlalchemy.exc import CompileError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.functions import FunctionElement

from duetime.client.bodies import Body
from duetime.client.ids import new_id
from duetime.client.message import Message, Repeatable, delay_ms, moment, to_proto

if TYPE_CHECKING:
    # Imported only for asyncio: it needs greenlet.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

TABLE_NAME = "duetime_outbox"
# PostgreSQL's limit for the names of channels.
CHANNEL_CHARS_MAX = 63

WAITING, SENT, FAILED, DOUBTFUL = "waiting", "sent", "failed", "doubtful"

# Fields of a message that have columns of their own; all others are in the column `options`.
_IN_COLUMNS = {"topic", "body", "id", "delay", "deliver_at"}
_PLAIN = Message("", b"")

AnySession = Session | scoped_session[Any] | Connection
AnyAsyncSession = Union["AsyncSession", "AsyncConnection"]


class now_ms(FunctionElement[int]):  # noqa: N801  an SQL function
    """The database's clock, Unix milliseconds: of the statement, not of the transaction's beginning."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms)
def _unknown(element: Any, compiler: Any, **_: Any) -> str:
    raise CompileError(f"an outbox needs PostgreSQL or SQLite, and this is {compiler.dialect.name}")


@compiles(now_ms, "postgresql")
def _postgresql(element: Any, compiler: Any, **_: Any) -> str:
    return "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)"


@compiles(now_ms, "sqlite")
def _sqlite(element: Any, compiler: Any, **_: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


class Outbox:
    """A table in the user's metadata, visible to `create_all` and Alembic, and the writer of its rows.

    Arguments:
        notify: on PostgreSQL, a commit wakes the relays at once. Commits that notify wait for each other there; without
            it relays poll every `poll`.
    """

    def __init__(
        self, metadata: MetaData, table_name: str = TABLE_NAME, *, schema: str | None = None, notify: bool = True
    ) -> None:
        number = BigInteger().with_variant(Integer, "sqlite")
        self.table = Table(
            table_name,
            metadata,
            # Never reused: a late relay would take another row for its own.
            Column("id", number, primary_key=True, autoincrement=True),
            Column("message_id", String(ID_CHARS_MAX), nullable=False),
            Column("topic", String(TOPIC_CHARS_MAX), nullable=False),
            Column("body", LargeBinary, nullable=False),
            Column("options", JSON, nullable=False),
            # Rows with the same order key are moved one after the other; empty: no order.
            Column("order_key", Text, nullable=False),
            Column("created_at_ms", BigInteger, nullable=False),
            Column("due_at_ms", BigInteger),
            Column("state", String(8), nullable=False),
            # The earliest time of the next step: waiting: end of its relay's lease or a pause; sent: deletion.
            Column("next_at_ms", BigInteger, nullable=False),
            Column("claim", String(32), nullable=False),
            Column("attempts", Integer, nullable=False),
            # The time of the first handover after which it may have been stored.
            Column("handed_at_ms", BigInteger),
            Column("error", Text, nullable=False),
            Index(f"ix_{table_name}_state_id", "state", "id"),
            Index(f"ix_{table_name}_state_next_at_ms", "state", "next_at_ms"),
            schema=schema,
            sqlite_autoincrement=True,
        )
        self.channel = self.table.fullname[:CHANNEL_CHARS_MAX]
        self._notify = notify
        due = func.coalesce(bindparam("at_ms", type_=BigInteger), now_ms() + bindparam("delay_ms", type_=BigInteger))
        self._insert: Insert = insert(self.table).values(
            created_at_ms=now_ms(), due_at_ms=due, state=WAITING, next_at_ms=0, claim="", attempts=0, error=""
        )

    @overload
    def send(self, session: AnySession, message: Message | str, body: Body = b"", **options: Any) -> str: ...

    @overload
    def send(
        self, session: AnyAsyncSession, message: Message | str, body: Body = b"", **options: Any
    ) -> Coroutine[Any, Any, str]: ...

    def send(
        self, session: AnySession | AnyAsyncSession, message: Message | str, body: Body = b"", **options: Any
    ) -> str | Coroutine[Any, Any, str]:
        """Writes one message in the session's transaction, and returns its id: `send(session, Message(...))`, or
        `send(session, topic, body, delay=...)` with the arguments of `Message`. For an asynchronous session: awaited.

        A `delay` counts from now, by the database's clock; a `level` from when the server has the message.

        Raises:
            InvalidMessage: the message breaks a rule that is checked without a server.
            TypeError: `Message` does not accept the body.
        """
        one = message if isinstance(message, Message) else Message(message, body, **options)
        run_sync: Any = getattr(session, "run_sync", None)
        return _first(run_sync(self._write, [one])) if run_sync else self._write(session, [one])[0]

    @overload
    def send_many(self, session: AnySession, messages: Iterable[Message]) -> list[str]: ...

    @overload
    def send_many(self, session: AnyAsyncSession, messages: Iterable[Message]) -> Coroutine[Any, Any, list[str]]: ...

    def send_many(
        self, session: AnySession | AnyAsyncSession, messages: Iterable[Message]
    ) -> list[str] | Coroutine[Any, Any, list[str]]:
        """Writes messages as `send` does, in one statement, and returns their ids; one invalid message rejects all."""
        listed = list(messages)
        run_sync: Any = getattr(session, "run_sync", None)
        # Awaited by the caller.
        written: list[str] | Coroutine[Any, Any, list[str]]
        written = run_sync(self._write, listed) if run_sync else self._write(session, listed)
        return written

    def _write(self, session: Any, messages: list[Message]) -> list[str]:
        rows = [row_of(message) for message in messages]
        if rows:
            session.execute(self._insert, rows)
            connection = session if isinstance(session, Connection) else session.connection()
            if self._notify and connection.dialect.name == "postgresql":
                # Sent with the commit; PostgreSQL merges equal ones of a transaction.
                session.execute(func.pg_notify(self.channel, "").select())
        return [row["message_id"] for row in rows]


async def _first(written: Awaitable[list[str]]) -> str:
    return (await written)[0]


def row_of(message: Message) -> dict[str, Any]:
    """The columns of a message; `at_ms` or `delay_ms` become its due time. Raises: InvalidMessage."""
    wire = to_proto(message)
    if wire.delay_ms:
        # The relay sends a due time instead, which takes more space among the properties.
        to_proto(replace(message, delay=None, deliver_at=moment(0)))
    options = {
        field.name: value
        for field in fields(Message)
        if field.name not in _IN_COLUMNS and (value := getattr(message, field.name)) != getattr(_PLAIN, field.name)
    }
    if message.max_wait is not None:
        options["max_wait"] = f"{delay_ms(message.max_wait, 'max_wait')}ms"
    if message.expires is not None:
        options["expires"] = f"{delay_ms(message.expires, 'expires')}ms"
    options |= {"keys": list(message.keys)} if message.keys else {}
    options |= {"properties": dict(message.properties)} if message.properties else {}
    # The key whose message it replaces, before any property; else the lite topic.
    lite = message.lite_topic or (message.properties or {}).get(LITE_TOPIC, "")
    stream = "".join(wire.keys) if message.replace else lite
    return {
        "message_id": message.id or new_id(),
        "topic": message.topic,
        "body": message.body,
        "options": options,
        # PostgreSQL texts can't contain U+0000. Two keys that become equal only wait for each other.
        "order_key": (message.sharding_key or (f"{message.topic}/{stream}" if stream else "")).replace("\0", "\\0"),
        "at_ms": wire.deliver_at_ms if message.deliver_at is not None else None,
        "delay_ms": wire.delay_ms or None,
    }


def message_of(row: Any, options: dict[str, Any]) -> Repeatable:
    """The message of a row, with its due time instead of a delay, born with its row.

    Raises:
        OverflowError: the due time is out of range.
        TypeError: an option is unknown, such as one of a newer release.
        InvalidMessage: a value is out of its range.
    """
    deliver_at = None if row.due_at_ms is None else moment(row.due_at_ms)
    message = Repeatable(
        row.topic, row.body, id=row.message_id, deliver_at=deliver_at, born_at_ms=row.created_at_ms, **options
    )
    if isinstance(message.max_wait, int):
        # Rows of release 0.1 have milliseconds.
        message.max_wait = f"{message.max_wait}ms"
    to_proto(message)
    return message
