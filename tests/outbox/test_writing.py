"""Messages are written in the caller's transaction, with all that they say."""

import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from duetime import InvalidMessage, Message
from duetime.client.message import Repeatable
from duetime.outbox import Outbox
from duetime.outbox.table import message_of, now_ms
from duetime_format.record import LITE_TOPIC
from sqlalchemy import MetaData, insert, select
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import CompileError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.outbox.shop import Shop

CHRISTMAS = datetime(2026, 12, 24, 18, tzinfo=UTC)


def test_message_commits_with_its_transaction(shop: Shop) -> None:
    with Session(shop.engine) as session, session.begin():
        session.execute(insert(shop.orders))
        message_id = shop.outbox.send(session, "orders", b"cancel 42", delay="15m", tags="timeout")
    (row,) = shop.rows()
    assert (row.message_id, row.topic, row.body, row.state) == (message_id, "orders", b"cancel 42", "waiting")
    assert shop.orders_count() == 1


def test_message_of_a_transaction_that_is_rolled_back_never_was(shop: Shop) -> None:
    with Session(shop.engine) as session:
        session.execute(insert(shop.orders))
        shop.outbox.send(session, "orders", b"cancel 42")
        session.rollback()
    with shop.engine.connect() as connection, connection.begin() as transaction:
        shop.outbox.send(connection, "orders", b"cancel 42")
        transaction.rollback()
    assert shop.rows() == []
    assert shop.orders_count() == 0


def test_savepoint_that_is_rolled_back_takes_its_messages_with_it(shop: Shop) -> None:
    with Session(shop.engine) as session, session.begin():
        shop.outbox.send(session, "orders", b"kept")
        with session.begin_nested() as savepoint:
            shop.outbox.send(session, "orders", b"dropped")
            savepoint.rollback()
        shop.outbox.send(session, "orders", b"kept too")
    assert [row.body for row in shop.rows()] == [b"kept", b"kept too"]


def test_scoped_sessions_write_too(shop: Shop) -> None:
    session = scoped_session(sessionmaker(shop.engine))
    shop.outbox.send(session, "orders", b"scoped")
    session.commit()
    session.remove()
    assert [row.body for row in shop.rows()] == [b"scoped"]


@pytest.mark.postgres
async def test_asynchronous_sessions_and_connections_write_too(postgres_url: str) -> None:
    outbox, engine = Outbox(MetaData()), create_async_engine(postgres_url)
    async with engine.begin() as connection:
        await connection.run_sync(outbox.table.metadata.create_all)
        first = await outbox.send(connection, "orders", b"by a connection")
    async with AsyncSession(engine) as session, session.begin():
        second = await outbox.send(session, Message("orders", b"by a session"))
        others = await outbox.send_many(session, [Message("orders", b"many"), Message("orders", b"more")])
    async with AsyncSession(engine) as session:
        await outbox.send(session, "orders", b"never")
        await session.rollback()
    async with engine.begin() as connection:
        found = (
            (await connection.execute(select(outbox.table.c.message_id).order_by(outbox.table.c.id))).scalars().all()
        )
    await engine.dispose()
    assert found == [first, second, *others]


def test_row_has_all_that_a_message_says(shop: Shop) -> None:
    messages = [
        Message("orders", b"\x00\xff", tags="a", keys=("1", "2"), properties={"p": "ü"}, flag=7, retry="1s,5s,max=3"),
        Message("orders", b"", sharding_key="customer", id="my-own-id"),
        Message("orders", b"x", level=3, queue=2),
        Message("orders", b"x", deliver_at=CHRISTMAS),
        Message("orders", b"x", deliver_at=CHRISTMAS, replace=True, key="cart", max_wait=timedelta(hours=2)),
        Message("orders", b"x", deliver_at=CHRISTMAS, expires="2h"),
    ]
    ids = shop.order(*messages)
    rows = shop.rows()
    for message, message_id, row in zip(messages, ids, rows, strict=True):
        message.id, message.keys = message_id, list(message.keys) or ()
        message.max_wait = "7200000ms" if message.max_wait else None
        message.expires = "7200000ms" if message.expires else None
        values = {one.name: getattr(message, one.name) for one in fields(Message)}
        assert message_of(row, row.options) == Repeatable(**values, born_at_ms=row.created_at_ms)
    assert ids[1] == "my-own-id"
    assert [row.order_key for row in rows] == ["", "customer", "", "", "orders/cart", ""]


def test_rows_that_replace_each_other_have_one_order_key(shop: Shop) -> None:
    keys = {"delay": "1h", "replace": True, "key": "cart"}
    shop.order(*(Message("orders", b"x", properties={LITE_TOPIC: lite}, **keys) for lite in ("a", "b")))  # type: ignore[arg-type]
    shop.order(Message("orders", b"x", **keys))  # type: ignore[arg-type]
    assert [row.order_key for row in shop.rows()] == ["orders/cart"] * 3


def test_message_without_properties_is_written(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        shop.outbox.send(connection, "orders", b"x", properties=None)
    (row,) = shop.rows()
    assert (row.order_key, message_of(row, row.options).properties or {}) == ("", {})


def test_delay_counts_from_when_it_was_written_by_the_databases_clock(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        before = connection.execute(select(now_ms())).scalar_one()
        shop.outbox.send(connection, "orders", b"x", delay="1h30m")
        shop.outbox.send(connection, "orders", b"x", delay="0s")
        after = connection.execute(select(now_ms())).scalar_one()
    delayed, plain = shop.rows()
    assert before <= delayed.due_at_ms - 5_400_000 <= after
    assert before <= delayed.created_at_ms <= after
    assert plain.due_at_ms is None
    assert abs(before - datetime.now(UTC).timestamp() * 1000) < 60_000


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"topic": "a b"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "t" * 128}, "topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "topic"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "body"),
        ({"id": "x" * 256}, "id"),
        ({"delay": "-1s"}, "delay"),
        ({"delay": 30}, "delay"),
        ({"delay": "1s", "level": 3}, "delay"),
        ({"retry": "sometimes"}, "retry"),
        ({"keys": [7]}, "keys[0]"),
        ({"tags": "a||b"}, "tags"),
        ({"tags": " a"}, "tags"),
        ({"key": "order 42"}, "keys[0]"),
        ({"keys": ["a", ""]}, "keys[1]"),
        ({"id": "a b"}, "id"),
        ({"sharding_key": "a\x01b"}, "sharding_key"),
        ({"properties": {"p": "a\x02b"}}, 'properties["p"]'),
        ({"properties": {"": "x"}}, 'properties[""]'),
        ({"properties": {"p": ""}}, 'properties["p"]'),
        ({"properties": {"UNIQ_KEY": "x"}}, 'properties["UNIQ_KEY"]'),
        ({"properties": {"p": "x" * 40_000}}, "properties"),
        ({"tags": "t" * 33_000}, "properties"),
        # The property of a due time, by which the relay sends it, does not fit.
        ({"properties": {"p": "x" * 32_300}, "delay": "1h"}, "properties"),
        ({"queue": -1}, "queue"),
        ({"queue": 1_024}, "queue"),
        ({"level": -1}, "level"),
        ({"deliver_at": datetime.max.replace(tzinfo=UTC)}, "deliver_at"),
        ({"replace": True, "key": "cart"}, "replace"),
        ({"replace": True, "delay": "5s"}, "replace"),
        ({"replace": True, "delay": "5s", "keys": ["a", "b"]}, "replace"),
        ({"replace": True, "delay": "5s", "key": "cart", "queue": 1}, "replace"),
        ({"delay": "5s", "max_wait": "1m"}, "max_wait"),
        ({"flag": 1 << 31}, "flag"),
    ],
)
def test_message_invalid_for_every_server_is_rejected_on_write(
    shop: Shop, fields: dict[str, object], field: str
) -> None:
    bad = Message(**({"topic": "orders", "body": b"x"} | fields))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage) as raised, shop.engine.begin() as connection:
        shop.outbox.send_many(connection, [Message("orders", b"good"), bad])
    assert [violation.field for violation in raised.value.violations] == [field]
    assert shop.rows() == []


def test_row_of_release_0_1_has_its_wait_in_milliseconds(shop: Shop) -> None:
    shop.order(Message("orders", b"x", delay="1h", replace=True, key="cart"))
    (row,) = shop.rows()
    assert message_of(row, row.options | {"max_wait": 7_200_000}).max_wait == "7200000ms"


def test_key_with_a_nul_is_written_to_any_database(shop: Shop) -> None:
    shop.order(Message("orders", b"x", sharding_key="a\0b"))
    (row,) = shop.rows()
    assert message_of(row, row.options).sharding_key == "a\0b"


def test_alembic_finds_nothing_to_do_once_the_table_is_there(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, shop.outbox.table.metadata) == []


def test_alembic_makes_the_table(engine) -> None:  # type: ignore[no-untyped-def]
    outbox = Outbox(MetaData(), "events")
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), outbox.table.metadata)
    assert [difference[0] for difference in found] == ["add_table", "add_index", "add_index"]


def test_numbers_of_deleted_rows_are_not_used_again(shop: Shop) -> None:
    shop.order(Message("orders", b"first"))
    (first,) = shop.rows()
    with shop.engine.begin() as connection:
        connection.execute(shop.outbox.table.delete())
    shop.order(Message("orders", b"second"))
    (second,) = shop.rows()
    assert second.id > first.id


def test_other_databases_are_refused() -> None:
    outbox = Outbox(MetaData())
    with pytest.raises(CompileError, match="needs PostgreSQL or SQLite, and this is mysql"):
        outbox._insert.compile(dialect=mysql.dialect())


def test_the_sdk_loads_no_database() -> None:
    code = "import sys, duetime; duetime.Producer; duetime.Message; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_the_outbox_loads_neither_a_driver_nor_asynchronous_engines() -> None:
    code = "import sys, duetime.outbox; print({'psycopg', 'greenlet', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def test_value_is_written_as_its_json(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        shop.outbox.send(connection, "orders", {"order": 42}, properties={"size": "6"})
        row = connection.execute(select(shop.outbox.table)).one()
        message = message_of(row, row.options)
    assert message.body == b'{"order":42}'
    assert message.properties == {"size": "6", "content_type": "application/json"}
