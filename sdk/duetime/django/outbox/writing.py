"""Writes messages into the outbox, in the transaction of a database."""

import json
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, Func

from duetime.client.errors import InvalidArgument
from duetime.client.message import Message
from duetime.django.outbox.models import OutboxRow
from duetime.outbox.table import TABLE_NAME, WAITING, row_of

VENDORS = ("postgresql", "sqlite")


class DatabaseClock(Func):
    """The database's clock, Unix milliseconds: of the statement, not of the transaction's beginning."""

    arity = 0
    output_field = BigIntegerField()
    template = "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """The same in SQLite's words."""
        template = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
        return self.as_sql(compiler, connection, template=template, **context)


def write(using: str, message: Message) -> str:
    """Writes a message; returns its id.

    Raises:
        InvalidArgument: the database is neither PostgreSQL nor SQLite.
        InvalidMessage: the message breaks a rule that is checked without a server.
    """
    connection = connections[using]
    if connection.vendor not in VENDORS:
        text = f"the outbox needs PostgreSQL or SQLite, and {using!r} is {connection.vendor}"
        raise InvalidArgument.of("using", text)
    row = row_of(message)
    at_ms, delay_ms = row.pop("at_ms"), row.pop("delay_ms")
    OutboxRow.objects.using(using).create(
        **row | {"options": json.dumps(row["options"])},
        created_at_ms=DatabaseClock(),
        due_at_ms=at_ms if delay_ms is None else DatabaseClock() + delay_ms,
        state=WAITING,
        next_at_ms=0,
        claim="",
        attempts=0,
        error="",
    )
    if connection.vendor == "postgresql":
        # Wakes the relays at the commit; PostgreSQL merges equal notices of a transaction.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [TABLE_NAME])
    return str(row["message_id"])
